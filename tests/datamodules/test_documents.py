from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lit_kvpred.datamodules.documents import TextFile, read_documents, read_records
from lit_kvpred.errors import DataError


def documents(path, field="text"):
    return [tuple(d) for d in read_documents(TextFile(path.name, str(path)), field)]


def refusal(path, field="text") -> str:
    with pytest.raises(DataError) as caught:
        documents(path, field)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_source_file_is_one_document(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("x = 'ä'\n", encoding="utf-8")
    assert documents(path) == [("code.py", "x = 'ä'\n")]


def test_blank_files_and_records_are_left_out(tmp_path):
    (tmp_path / "blank.py").write_text(" \n\n")
    (tmp_path / "r.jsonl").write_text('{"text": ""}\n\n{"text": "b"}\n')
    assert documents(tmp_path / "blank.py") == []
    assert documents(tmp_path / "r.jsonl") == [("r.jsonl:3", "b")]


@pytest.mark.parametrize("name", ["data.bin", "text.txt", "code.py", "list.json"])
@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x00\x00text", "text".encode("utf-16")])
def test_binary_files_are_refused(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    message = f"{name} holds binary data, no UTF-8 text; convert it or leave it out"
    with pytest.raises(DataError, match=message):
        list(read_documents(TextFile(name, str(tmp_path / name)), "text"))


def test_undecodable_bytes_are_replaced(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"# caf\xe9\n")
    assert documents(path) == [("latin.py", "# caf�\n")]


def test_json_lines_are_named_by_id_or_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "one"}\n{"body": "two\u2028 lines", "id": "q7"}\n', encoding="utf-8")
    assert documents(path, "body") == [("a.jsonl:1", "one"), ("a.jsonl:q7", "two\u2028 lines")]


def test_json_lists_and_parquet_hold_records(tmp_path):
    records = [{"text": "one"}, {"text": "two"}]
    (tmp_path / "a.json").write_text(json.dumps(records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    assert documents(tmp_path / "a.json") == [("a.json:1", "one"), ("a.json:2", "two")]
    assert documents(tmp_path / "a.parquet") == [("a.parquet:1", "one"), ("a.parquet:2", "two")]


def test_a_long_text_becomes_blocks_cut_at_blank_lines(tmp_path):
    path = tmp_path / "book.txt"
    paragraphs = [f"{i} " + "word " * 300 for i in range(20)]
    path.write_text("\n\n".join(paragraphs))
    blocks = documents(path)
    assert "".join(text for _, text in blocks) == path.read_text()
    assert [name for name, _ in blocks] == [f"book.txt:{i}" for i in range(1, len(blocks) + 1)]
    assert len(blocks) == 4
    assert all(text.endswith("\n\n") for _, text in blocks[:-1])


def test_a_short_text_stays_whole(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("a\n\nb\n")
    assert documents(path) == [("note.txt", "a\n\nb\n")]


def test_missing_field_names_file_line_and_fields(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n{"body": "y", "n": 1}\n')
    message = refusal(path)
    assert f"{path}, line 2" in message
    assert "'text'" in message
    assert "['body', 'n']" in message


def test_text_of_another_type_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": 3}\n')
    assert refusal(path) == f"{path}, line 1: field 'text' is a int, not text"


def test_malformed_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n{"text": \n')
    assert refusal(path).startswith(f"{path}, line 2 is not JSON: ")


def test_a_line_that_is_no_object_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("[1, 2]\n")
    assert refusal(path) == f"{path}, line 1 is a list, not a JSON object"


def test_json_that_is_no_list_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"text": "x"}')
    assert refusal(path).startswith(f"{path} is not a list of JSON objects")


def test_broken_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing of the kind")
    assert refusal(path).startswith(f"{path} cannot be read as Parquet: ")


@pytest.mark.parametrize("name", ["gone.jsonl", "gone.py", "gone.parquet", "gone.jsonl.gz"])
def test_a_missing_file_is_named(tmp_path, name):
    assert str(tmp_path / name) in refusal(tmp_path / name)


def test_records_know_their_place(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"a": 1}\n')
    ((place, record),) = read_records(TextFile("a.jsonl", str(path)))
    assert (str(place), record) == (f"{path}, line 2", {"a": 1})


LINES = b'{"text": "one"}\n{"text": "two\xe2\x80\xa8 lines"}\n'


@pytest.mark.parametrize("name", ["a.jsonl.gz", "A.JSONL.GZ"])
def test_gzip_ed_records(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES))
    assert documents(path) == [(f"{name}:1", "one"), (f"{name}:2", "two\u2028 lines")]


def test_gzip_ed_lists_and_texts(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'[{"text": "one"}]'))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a\r\nb\n"))
    assert documents(tmp_path / "a.json.gz") == [("a.json.gz:1", "one")]
    assert documents(tmp_path / "a.txt.gz") == [("a.txt.gz", "a\nb\n")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored[:-9],
        lambda stored: stored[:-8] + bytes(8),
        lambda stored: stored[:10] + b"\xff" + stored[11:],
        lambda stored: LINES,
    ],
    ids=["truncated", "checksum", "garbled", "plain"],
)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.gz"])
def test_damaged_gzip_is_named(tmp_path, name, damage):
    path = tmp_path / name
    path.write_bytes(damage(gzip.compress(LINES)))
    assert refusal(path).startswith(f"{path} is damaged or no gzip file, fetch it again: ")
