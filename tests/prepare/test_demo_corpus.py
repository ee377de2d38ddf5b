from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from lit_kvpred.data_splits import split_of
from lit_kvpred.errors import DataError
from lit_kvpred.prepare import demo_corpus
from lit_kvpred.prepare.demo_corpus import demo_documents, token_row, train_tokenizer

_TEXTS = [f"def f_{i}(self, value):\n    return self.items[{i}] + value\n" for i in range(40)]


def test_splits_share_no_document_and_follow_the_rule():
    root = Path(sysconfig.get_path("stdlib"))
    train, held_out = demo_documents("train"), demo_documents("validation")
    shared = set(train) & set(held_out)
    # Some packages hold nothing but the same line of comment.
    assert not [text for text in shared if len(text) > 80]
    for name in ("argparse.py", "typing.py", "json/decoder.py", "heapq.py", "cgi.py", "os.py"):
        if (root / name).is_file():
            text = (root / name).read_text(encoding="utf-8")
            assert (text in train) == (split_of(name, 0.05, 0.05) == "train")


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path, monkeypatch):
    file = tmp_path / "latin.py"
    file.write_bytes(b"# caf\xe9\n")
    monkeypatch.setattr(demo_corpus, "standard_library_files", lambda: iter([("os.py", file)]))
    assert demo_documents("train") == ["# caf\N{REPLACEMENT CHARACTER}\n"]


def test_interpreter_without_sources_is_refused(monkeypatch):
    monkeypatch.setattr(demo_corpus, "standard_library_files", lambda: iter([]))
    with pytest.raises(DataError, match="comes without standard-library sources"):
        demo_documents("train")


def test_tokenizer_has_the_asked_size_and_reads_every_byte():
    tokenizer = train_tokenizer(_TEXTS, 300)
    assert len(tokenizer) == 300
    text = "def f_1(self):\n\treturn 'é 日本 👍' # \x00\x7f"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(_TEXTS[0])["input_ids"]) < len(_TEXTS[0]) / 2


def test_tokenizer_adds_nothing_and_has_one_special_token():
    tokenizer = train_tokenizer(_TEXTS, 300)
    assert tokenizer("")["input_ids"] == []
    assert tokenizer.all_special_tokens == ["<|endoftext|>"]
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id == 0


def test_row_puts_the_separator_before_each_document():
    tokenizer = train_tokenizer(_TEXTS, 300)
    texts = ["def", "", "return self"]
    expected = [token for text in texts for token in [0, *tokenizer(text)["input_ids"]]]
    row = token_row(tokenizer, texts)
    assert row.tolist() == expected
    assert tokenizer.decode(row) == "".join(f"<|endoftext|>{text}" for text in texts)
