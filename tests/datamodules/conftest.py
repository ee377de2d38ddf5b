from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from tests import base_folders


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, EOS 256, PAD 257: the tokens of a text can be written down by hand."""
    return base_folders.byte_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_folder(byte_tokenizer, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def cache_folder(tmp_path, monkeypatch) -> str:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """A folder of 40 short documents of different lengths, each recognisable by its letters."""
    folder = tmp_path_factory.mktemp("documents")
    for i in range(40):
        letters = f"{chr(97 + i % 26)}{chr(65 + i % 26)}"
        (folder / f"doc{i:02d}.txt").write_text(letters * (3 + i % 7))
    return folder
