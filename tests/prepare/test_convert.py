from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from lit_kvpred.errors import BaseModelError, ConfigurationError
from lit_kvpred.model.loading import load_base, load_tokenizer
from lit_kvpred.prepare import convert
from lit_kvpred.prepare.convert import announce, prepare, staged_folder
from tests.base_folders import make_base
from tests.prepare.gguf_files import tiny_llama, write_gguf

_IDS = torch.arange(40).view(2, 20)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama())


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return Path(make_base(tmp_path_factory.mktemp("saved") / "base"))


def _silent(_: str) -> None:
    pass


def _logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(_IDS).logits


def _everything_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_gguf_becomes_a_folder_with_equal_logits_and_ids(gguf_file, tmp_path):
    out = prepare(gguf_file, tmp_path / "models" / "tiny", report=_silent)
    assert out == tmp_path / "models" / "tiny"
    assert torch.equal(_logits(load_base(out)), _logits(load_base(gguf_file)))
    assert torch.equal(_logits(load_base(out)), _logits(tiny_llama()))
    text = "the théâtre\n\tthat"
    reloaded, original = load_tokenizer(out), load_tokenizer(gguf_file)
    assert reloaded(text)["input_ids"] == original(text)["input_ids"]
    assert reloaded.decode(reloaded(text)["input_ids"]) == text
    assert reloaded.eos_token_id == original.eos_token_id == 256


def test_prepared_folder_is_plain(gguf_file, tmp_path):
    out = prepare(gguf_file, tmp_path / "tiny", report=_silent)
    names = {file.name for file in out.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert GenerationConfig.from_pretrained(out).eos_token_id == 256


def test_generation_config_of_a_folder_is_kept(saved, tmp_path):
    source = Path(shutil.copytree(saved, tmp_path / "source"))
    GenerationConfig(max_new_tokens=7, do_sample=True).save_pretrained(source)
    out = prepare(source, tmp_path / "out", report=_silent)
    assert GenerationConfig.from_pretrained(out).max_new_tokens == 7


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bfloat16", torch.bfloat16), ("auto", torch.float32), ("float32", torch.float32)],
)
def test_weights_are_written_in_the_asked_dtype(saved, tmp_path, dtype, expected):
    out = prepare(saved, tmp_path / "out", dtype=dtype, report=_silent)
    assert load_base(out).dtype == expected


def test_unknown_dtype_leaves_nothing(saved, tmp_path):
    with pytest.raises(ConfigurationError, match="unknown dtype"):
        prepare(saved, tmp_path / "out", dtype="int4", report=_silent)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_told_before_anything_is_loaded(gguf_file, tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(convert, "load_base", lambda *_, **__: pytest.fail(f"loaded after {lines}"))
    parameters = sum(p.numel() for p in tiny_llama().parameters())
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(convert.psutil, "virtual_memory", lambda: memory(4 * parameters - 1))
    with pytest.raises(
        BaseModelError, match="needs about .* GB of memory and .* is available"
    ) as e:
        prepare(gguf_file, tmp_path / "out", report=lines.append)
    assert "\n" not in str(e.value)
    assert lines == [f"0.1 M parameters, about {4 * parameters / 1e9:.2f} GB of memory in float32"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source_kind", ["gguf", "folder"])
def test_memory_that_just_suffices_is_enough(source_kind, gguf_file, saved, tmp_path, monkeypatch):
    source = gguf_file if source_kind == "gguf" else saved
    parameters = sum(p.numel() for p in load_base(source).parameters())
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(convert.psutil, "virtual_memory", lambda: memory(4 * parameters))
    assert prepare(source, tmp_path / "out", report=_silent).is_dir()


def test_truncated_folder_is_refused_before_loading(saved, tmp_path):
    source = Path(shutil.copytree(saved, tmp_path / "source"))
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(BaseModelError, match=r"model\.safetensors is truncated or damaged") as e:
        prepare(source, tmp_path / "out", report=_silent)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "out").exists()


def test_second_call_says_that_the_model_is_there_and_changes_nothing(gguf_file, tmp_path):
    out = prepare(gguf_file, tmp_path / "out", report=_silent)
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    lines = []
    assert prepare(gguf_file, out, report=lines.append) == out
    assert lines == [f"{out} already holds this model"]
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before


@pytest.mark.parametrize("difference", ["source", "dtype", "damage", "lost file", "no record"])
def test_folder_that_holds_anything_else_is_refused_and_kept(
    difference, gguf_file, saved, tmp_path
):
    out = prepare(gguf_file, tmp_path / "out", report=_silent)
    source, dtype = gguf_file, "float32"
    if difference == "source":
        source = saved
    elif difference == "dtype":
        dtype = "bfloat16"
    elif difference == "damage":
        weights = bytearray((out / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (out / "model.safetensors").write_bytes(weights)
    elif difference == "lost file":
        (out / "tokenizer.json").unlink()
    else:
        (out / "preparation.json").unlink()
    before = _everything_in(out)
    with pytest.raises(BaseModelError, match="does not hold exactly this model") as e:
        prepare(source, out, dtype=dtype, report=_silent)
    assert "\n" not in str(e.value)
    assert _everything_in(out) == before


def test_a_users_own_folder_and_file_are_refused_and_kept(gguf_file, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    for out in (own, own / "thesis.txt"):
        with pytest.raises(BaseModelError, match="choose another folder or remove it"):
            prepare(gguf_file, out, report=_silent)
    assert (own / "thesis.txt").read_text() == "years of work"


def test_empty_folder_is_filled(gguf_file, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    prepare(gguf_file, out, report=_silent)
    assert (out / "model.safetensors").is_file()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("step", ["load_base", "load_tokenizer", "write_record"])
def test_interrupted_run_leaves_nothing(step, error, gguf_file, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise error

    monkeypatch.setattr(convert, step, interrupt)
    with pytest.raises(error):
        prepare(gguf_file, tmp_path / "out", report=_silent)
    assert list(tmp_path.iterdir()) == []


def test_folder_appears_only_when_complete(tmp_path):
    out = tmp_path / "out"
    with staged_folder(out) as stage:
        (stage / "part").write_text("x")
        assert not out.exists()
        assert stage.parent == out.parent
    assert _everything_in(out) == {"part": b"x"}
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_killed_run_left_goes_but_not_what_a_running_one_has(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f".out.v1.{dead.pid}.partial"
    running = tmp_path / ".out.v1.1.partial"
    other = tmp_path / f".another.{dead.pid}.partial"
    for folder in (left, running, other):
        folder.mkdir()
        (folder / "model.safetensors").write_text("half")
    with staged_folder(tmp_path / "out.v1"):
        assert not left.exists()
        assert running.is_dir()
        assert other.is_dir()


def test_progress_goes_to_stderr_as_it_is(capsys):
    announce("[bold]reading[/bold] /a/very/long/path" + "/x" * 100)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[bold]reading[/bold] /a/very/long/path" + "/x" * 100 + "\n"
