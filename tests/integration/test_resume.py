"""A killed and resumed run ends exactly where an uninterrupted one does."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path

import pytest
import torch
import yaml

from tests.integration.conftest import error_line


def weights(run: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint["state_dict"]


def optimizer_state(run: Path):
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"][0]


def assert_same_end(first: Path, second: Path) -> None:
    expected, found = weights(first), weights(second)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    for index, state in optimizer_state(first)["state"].items():
        for name, value in state.items():
            assert torch.equal(value, optimizer_state(second)["state"][index][name]), (index, name)


@pytest.fixture(scope="module")
def uninterrupted(lit_kvpred_process, fit_words, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    result = lit_kvpred_process(*fit_words(run))
    assert result.returncode == 0, result.stderr
    return run


@pytest.mark.parametrize(
    ("killer", "step"),
    [("KillAtStep", 4), ("KillAtStep", 6), ("KillAtStep", 8), ("KillInValidation", 12)],
)
def test_sigkill_and_resume_is_uninterrupted(
    lit_kvpred_process, fit_words, uninterrupted, tmp_path, killer, step
):
    """Mid-epoch (4, 8), just after an epoch's validation (6), and in one (12); six batches each."""
    run = tmp_path / "run"
    callback = json.dumps(
        {"class_path": f"tests.integration.kill.{killer}", "init_args": {"step": step}}
    )
    killed = lit_kvpred_process(*fit_words(run, f"--trainer.callbacks=[{callback}]"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = lit_kvpred_process(*fit_words(run, "--ckpt_path=last"))
    assert resumed.returncode == 0, resumed.stderr
    assert_same_end(uninterrupted, run)
    assert_same_metrics(uninterrupted, run)


def assert_same_metrics(first: Path, second: Path) -> None:
    def rows(run: Path) -> list[tuple[str, str, str]]:
        with (run / "metrics.csv").open() as file:
            return [
                (r["step"], r["train/loss"], r["val/kl"])
                for r in csv.DictReader(file)
                if r["train/loss"] or r["val/kl"]
            ]

    assert rows(first) == rows(second)
    evaluations = [
        [json.loads(line)["global_step"] for line in (run / "evaluation.jsonl").open()]
        for run in (first, second)
    ]
    assert evaluations[0] == evaluations[1] == [6, 12, 18]


def test_resume_after_the_end_extends_the_run(lit_kvpred, fit_words, uninterrupted, tmp_path):
    """An optimisation setting of the command line wins over the checkpoint's (anchors: lr)."""
    run = tmp_path / "run"
    short = lit_kvpred(*fit_words(run, "--trainer.max_epochs=1"))
    assert short.returncode == 0, short.stderr
    longer = lit_kvpred(
        *fit_words(run, "--ckpt_path=last", "--trainer.max_epochs=2", "--model.learning_rate=0.5",
                   "--model.warmup_steps=0")
    )  # fmt: skip
    assert longer.returncode == 0, longer.stderr
    with (run / "metrics.csv").open() as file:
        rates = {int(r["step"]): float(r["lr"]) for r in csv.DictReader(file) if r["lr"]}
    assert max(rate for step, rate in rates.items() if step < 6) <= 1.001e-3
    assert max(rate for step, rate in rates.items() if step >= 6) > 0.1
    groups = optimizer_state(run)["param_groups"]
    assert [group["initial_lr"] for group in groups] == [0.5, 0.5]
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["learning_rate"] == 0.5
    assert yaml.safe_load((run / "config.1.yaml").read_text())["model"]["learning_rate"] == 1e-3
    # Where a fit went on is no setting: measuring again takes the best checkpoint.
    assert yaml.safe_load((run / "config.yaml").read_text())["ckpt_path"] is None


def test_last_without_a_checkpoint_is_an_error(lit_kvpred, fit_words, tmp_path):
    result = lit_kvpred(*fit_words(tmp_path / "run", "--ckpt_path=last"))
    assert result.returncode == 1
    assert "there is no checkpoint 'last'" in error_line(result)


def test_a_refused_resume_leaves_the_run_as_it_was(lit_kvpred, fit_words, uninterrupted):
    before = {p: p.read_bytes() for p in uninterrupted.rglob("*") if p.is_file()}
    result = lit_kvpred(*fit_words(uninterrupted, "--ckpt_path=last", "--model.keep=0.75"))
    assert result.returncode == 1
    after = {p: p.read_bytes() for p in uninterrupted.rglob("*") if p.is_file()}
    changed = {p.name for p in after if after[p] != before.get(p)}
    assert not {n for n in changed if not n.startswith("events.out.tfevents")}
    assert set(before) <= set(after)


def test_structure_that_the_checkpoint_contradicts_is_refused(lit_kvpred, fit_words, uninterrupted):
    before = (uninterrupted / "checkpoints" / "last.ckpt").read_bytes()
    result = lit_kvpred(*fit_words(uninterrupted, "--ckpt_path=last", "--model.keep=0.25"))
    assert result.returncode == 1
    assert "model.keep is 0.25 but the checkpoint was trained with 0.5" in error_line(result)
    assert (uninterrupted / "checkpoints" / "last.ckpt").read_bytes() == before


def test_a_run_is_not_overwritten(lit_kvpred, fit_words, uninterrupted):
    result = lit_kvpred(*fit_words(uninterrupted))
    assert result.returncode == 1
    assert "already holds a run; continue it with --ckpt_path last" in error_line(result)


def test_every_checkpoint_loads_without_pickle(uninterrupted):
    files = list((uninterrupted / "checkpoints").glob("*.ckpt"))
    assert {f.name.split("-")[0] for f in files} == {"last.ckpt", "best"}
    for file in files:
        checkpoint = torch.load(file, weights_only=True)
        assert not any(name.startswith("model.base.") for name in checkpoint["state_dict"])
        assert len(checkpoint["lit_kvpred"]["base"]["fingerprint"]) == 64
