"""A base under a memory limit: what fits, what is read, and that the texts are the same."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lit_kvpred.cli import main
from lit_kvpred.errors import ConfigurationError, KVPredictionError
from lit_kvpred.evaluation import limited_run
from lit_kvpred.evaluation.limited_run import LimitedRun
from lit_kvpred.evaluation.memory import PeakPrivateMemory, reserved_bytes
from tests.base_folders import make_base

_LAYERS, _HIDDEN, _NEURONS = 6, 256, 16384
_FEED_FORWARDS = _LAYERS * 3 * _HIDDEN * _NEURONS * 4
_SHAPE = {
    "num_hidden_layers": _LAYERS,
    "hidden_size": _HIDDEN,
    "intermediate_size": _NEURONS,
}

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    """Nearly all of its 302 MB are feed-forward weights."""
    return make_base(tmp_path_factory.mktemp("large"), **_SHAPE)


@pytest.fixture
def run(tmp_path) -> LimitedRun:
    """Of a base whose weights weigh nothing."""
    return LimitedRun(
        base=make_base(tmp_path / "base"),
        dtype="auto",
        prompt=[3, 4, 5],
        new_tokens=5,
        threads=1,
        streamed=True,
        keep=0.5,
        period=4,
        threshold=0.0,
        limit=None,
    )


@linux
@pytest.mark.slow
def test_a_base_that_does_not_fit_answers_streamed(base, tmp_path, capsys):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("def function(argument):\n")
    words = [
        "offload", base, "--keep", ".25", "--period", "4", "--threshold", "0", "--new_tokens", "13",
        "--prompt_file", str(prompt), "--threads", "1", "--json", str(tmp_path / "figures.json"),
    ]  # fmt: skip
    assert main(words) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "limit" in printed
    assert "resident does not fit: " in printed
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["settings"]["keep"] == 0.25
    records = {record["system"]: record for record in written["results"]}
    fits = {system: record["fits"] for system, record in records.items()}
    assert fits == {
        "resident": True, "resident_limited": False, "streamed": True, "sirius_streamed": True
    }  # fmt: skip
    limit = records["streamed"]["limit_bytes"]
    assert records["resident"]["reserved_bytes"] > limit
    assert records["resident"]["bytes_per_token"] == 0
    dense, sirius = records["streamed"], records["sirius_streamed"]
    for record in (dense, sirius):
        assert record["used_bytes"] < record["reserved_bytes"] < limit
        assert record["feed_forward_bytes"] == _FEED_FORWARDS
        assert record["prompt_bytes"] == _FEED_FORWARDS
    saved = records["resident"]["used_bytes"] - dense["used_bytes"]
    assert saved > 0.5 * _FEED_FORWARDS
    # The first token opens a period; 12 more are three full ones, as nothing is rejected.
    assert dense["bytes_per_token"] == dense["predicted_bytes_per_token"] == _FEED_FORWARDS
    assert (sirius["aal"], sirius["checks"]) == (4, 3)
    assert sirius["bytes_per_token"] == sirius["predicted_bytes_per_token"] == _FEED_FORWARDS / 4
    assert (dense["gathered_bytes"], sirius["gathered_bytes"]) == (0, _FEED_FORWARDS)
    assert records["resident"]["answer"] == dense["answer"] == sirius["strict_answer"]
    assert records["resident"]["same_text"]
    assert sirius["strict_same_text"]


def test_a_run_in_this_process_counts_bytes(run):
    # Without the process around it, whose imports take seconds.
    result = limited_run._run(run)
    whole = result["feed_forward_bytes"]
    assert result["fits"]
    assert whole == 4 * 3 * 32 * 64 * 4
    assert (result["prompt_bytes"], result["gathered_bytes"]) == (whole, whole)
    assert result["decode_bytes"] == whole
    assert len(result["answer"]) == len(result["strict_answer"]) == 5
    dense = limited_run._run(replace(run, keep=None))
    assert (dense["decode_bytes"], dense["gathered_bytes"]) == (4 * whole, 0)
    assert dense["answer"] == result["strict_answer"]
    resident = limited_run._run(replace(run, keep=None, streamed=False))
    assert resident["answer"] == dense["answer"]
    assert resident["decode_bytes"] == resident["feed_forward_bytes"] == 0


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("can't start new thread"),
    ],
)
def test_want_of_memory_is_an_answer(run, monkeypatch, error):
    def failing(*_, **__):
        try:
            raise error
        except (MemoryError, RuntimeError) as cause:
            raise KVPredictionError("the weights cannot be read") from cause

    monkeypatch.setattr(limited_run, "load_streamed_base", failing)
    result = limited_run._run(run)
    assert result["fits"] is False
    assert result["error"]


def test_other_failures_are_told(run, monkeypatch):
    (Path(run.base) / "model.safetensors").write_bytes(b"damaged")
    assert "truncated" in limited_run._run(run)["failure"]

    def wrong(*_, **__):
        raise RuntimeError("something else")

    monkeypatch.setattr(limited_run, "load_streamed_base", wrong)
    with pytest.raises(RuntimeError, match="something else"):
        limited_run._run(run)


@linux
def test_a_limit_below_the_runtimes_own_need_is_refused():
    with pytest.raises(ConfigurationError, match="reserve by themselves; raise it"):
        limited_run._limit_memory(1_000_000)


@linux
def test_private_memory_has_a_peak():
    with PeakPrivateMemory() as memory:
        block = torch.ones(64 << 18)
        del block
    assert memory.used is not None
    assert memory.reserved is not None
    now = reserved_bytes()
    assert now is not None
    assert memory.reserved >= now


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--new_tokens", "1"], "--new_tokens must be at least 2"),
        (["--memory_limit_mb", "0"], "--memory_limit_mb must be at least 1"),
        (["--keep", "0"], "keep must be a number above 0"),
        (["--period", "0"], "period must be a whole number of at least 1"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
        (["--prompt_tokens", "250"], "more than the base's 256 positions"),
        (["--json", "no/such/folder.json"], "is no folder; make it first"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(tmp_path, capsys, words, message):
    folder = make_base(tmp_path / "base")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("word " * 100)
    capsys.readouterr()
    assert main(["offload", folder, "--prompt_file", str(prompt), *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_an_empty_prompt_is_refused(tmp_path, capsys):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("")
    assert main(["offload", make_base(tmp_path / "base"), "--prompt_file", str(prompt)]) == 1
    assert "holds no text" in capsys.readouterr().err
