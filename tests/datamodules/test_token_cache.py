from __future__ import annotations

import os
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from lit_kvpred.datamodules import token_cache
from lit_kvpred.datamodules.sources import resolve_source
from lit_kvpred.datamodules.token_cache import (
    load_document_tokens,
    separator_id,
    tokenizer_fingerprint,
)
from lit_kvpred.errors import ConfigurationError, DataError


@pytest.fixture
def load(tmp_path, byte_tokenizer):
    def call(folder, tokenizer=byte_tokenizer, **options):
        settings = {"text_field": "text", "limit_documents": None, "cache_dir": tmp_path / "cache"}
        return load_document_tokens(
            [resolve_source(str(folder))], tokenizer, **(settings | options)
        )

    return call


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(10):
        (folder / f"{i}.py").write_text(f"text number {i}" * (i + 1))
    return folder


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """Sizes of the chunks of documents that are tokenised."""
    sizes: list[int] = []
    encode = token_cache.encode

    def counting(texts, tokenizer):
        sizes.append(len(texts))
        return encode(texts, tokenizer)

    monkeypatch.setattr(token_cache, "encode", counting)
    monkeypatch.setattr(token_cache, "_DOCUMENTS_PER_CHUNK", 4)
    return sizes


def test_documents_are_tokenised_one_by_one_and_end_with_the_separator(
    load, folder, byte_tokenizer, encoded
):
    tokens = load(folder)
    assert encoded == [4, 4, 2]
    assert tokens.names == [f"{i}.py" for i in range(10)]
    for i in range(10):
        text = (folder / f"{i}.py").read_text()
        expected = [*byte_tokenizer.encode(text), byte_tokenizer.eos_token_id]
        assert tokens.lengths[i] == len(expected)
        assert tokens.piece(i, 0, len(expected)).tolist() == expected
        assert tokens.piece(i, 3, 7).tolist() == expected[3:7]


def test_the_same_settings_are_not_tokenised_again(load, folder, encoded):
    first = load(folder)
    again = load(folder)
    assert sum(encoded) == 10
    assert again.piece(9, 0, 50).tolist() == first.piece(9, 0, 50).tolist()


def test_what_changes_tokens_is_tokenised_again(load, folder, byte_tokenizer, encoded):
    load(folder)
    os.utime(folder / "3.py", ns=(5, 5))
    load(folder)
    assert sum(encoded) == 20
    load(folder, limit_documents=6)
    assert sum(encoded) == 26
    other = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer.backend_tokenizer, eos_token="<other>"
    )
    load(folder, other)
    assert sum(encoded) == 36


def test_a_crash_leaves_nothing_that_is_trusted(load, folder, monkeypatch, tmp_path):
    encode = token_cache.encode
    monkeypatch.setattr(token_cache, "_DOCUMENTS_PER_CHUNK", 4)

    def failing(texts, tokenizer):
        if "text number 5" in texts[1]:
            raise KeyboardInterrupt
        return encode(texts, tokenizer)

    monkeypatch.setattr(token_cache, "encode", failing)
    with pytest.raises(KeyboardInterrupt):
        load(folder)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []
    monkeypatch.setattr(token_cache, "encode", encode)
    assert len(load(folder).names) == 10


def test_a_damaged_cache_is_replaced(load, folder, encoded, tmp_path):
    load(folder)
    (file,) = (tmp_path / "cache" / "tokens").iterdir()
    file.write_bytes(b"nothing of the kind")
    assert len(load(folder).names) == 10
    assert sum(encoded) == 20


def test_an_unwritable_cache_is_named(load, folder, tmp_path):
    (tmp_path / "occupied").write_text("a file")
    with pytest.raises(DataError, match=r"token cache in .*occupied cannot be written"):
        load(folder, cache_dir=tmp_path / "occupied")


def test_empty_data(load, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.py").write_text(" ")
    with pytest.raises(DataError, match="no document with text"):
        load(tmp_path / "empty")


def test_fingerprint_ignores_where_and_how_a_tokenizer_was_used(byte_tokenizer, tokenizer_folder):
    before = tokenizer_fingerprint(byte_tokenizer)
    loaded = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    loaded(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert tokenizer_fingerprint(loaded) == before
    loaded.eos_token = "a"
    assert tokenizer_fingerprint(loaded) != before


def test_separator_falls_back_to_bos(byte_tokenizer):
    backend = byte_tokenizer.backend_tokenizer
    with_bos = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="a")
    assert separator_id(with_bos) == with_bos.convert_tokens_to_ids("a")
    with pytest.raises(ConfigurationError, match="no EOS or BOS"):
        separator_id(PreTrainedTokenizerFast(tokenizer_object=backend))
