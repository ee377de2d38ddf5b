from __future__ import annotations

import gzip
import os
import sysconfig
from pathlib import Path

import datasets
import pytest

from lit_kvpred.data_splits import split_of
from lit_kvpred.datamodules.sources import HubSource, concatenated_stream, resolve_source
from lit_kvpred.errors import DataError


def names(source):
    return [document.name for document in source.documents("text")]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("json/decoder.py", "train"),
        ("json/encoder.py", "validation"),
        ("calendar.py", "validation"),
        ("copyreg.py", "test"),
        ("train.jsonl:1", "train"),
        ("train.jsonl:10", "test"),
    ],
)
def test_splits_are_the_same_on_every_machine(name, split):
    assert split_of(name, 0.05, 0.05) == split


def test_standard_library_is_named_from_its_root():
    source = resolve_source("stdlib")
    files = {file.name: file.path for file in source.files}
    assert Path(files["json/decoder.py"]) == Path(sysconfig.get_path("stdlib"), "json/decoder.py")
    assert not any("/test/" in f"/{name}" or "site-packages" in name for name in files)


def test_a_file_is_named_by_itself(tmp_path):
    (tmp_path / "a.py").write_text("a")
    assert names(resolve_source(str(tmp_path / "a.py"))) == ["a.py"]


def test_a_folder_gives_its_text_files_in_order(tmp_path):
    for name in ("b.py", "sub/a.txt", ".hidden/c.py", "d.bin", "settings.json", "e.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "x"}')
    for name in ("f.jsonl.gz", "g.bin.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b'{"text": "x"}'))
    expected = ["b.py", "e.jsonl:1", "f.jsonl.gz:1", "sub/a.txt"]
    assert names(resolve_source(str(tmp_path))) == expected


def test_a_glob_is_named_from_its_fixed_part(tmp_path):
    for name in ("one/x/a.py", "two/a.py", "two/b.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert names(resolve_source(f"{tmp_path}/**/*.py")) == ["one/x/a.py", "two/a.py"]


def test_hub_sources_have_a_prefix():
    assert resolve_source("hub:owner/name") == HubSource("owner/name", None)
    assert resolve_source("hub:owner/name:config") == HubSource("owner/name", "config")


def test_identity_changes_with_the_files(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("a")
    os.utime(path, ns=(1, 1))
    before = resolve_source(str(tmp_path)).identity()
    assert resolve_source(str(tmp_path)).identity() == before
    os.utime(path, ns=(2, 2))
    touched = resolve_source(str(tmp_path)).identity()
    (tmp_path / "b.py").write_text("b")
    assert before != touched != resolve_source(str(tmp_path)).identity()


def test_hub_rows_are_named_by_id_or_content(monkeypatch):
    rows = datasets.Dataset.from_list(
        [{"text": "a", "id": "7"}, {"text": " ", "id": "8"}, {"text": "b", "id": "9"}]
    )
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or rows)
    assert names(HubSource("o/n", "c")) == ["o/n:7", "o/n:9"]
    assert asked == [(("o/n", "c"), {"split": "train", "streaming": False})]
    rows = rows.remove_columns("id")
    first, second = names(HubSource("o/n"))
    assert first == "o/n:ca978112ca1bbdca"  # the beginning of SHA-256 of "a"
    assert second != first


def test_hub_and_file_streams_join(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("file")
    rows = datasets.Dataset.from_list([{"text": "hub", "id": 1, "more": 2}]).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: rows)
    stream = concatenated_stream([resolve_source(str(tmp_path)), HubSource("o/n")], "text")
    assert list(stream) == [{"name": "a.py", "text": "file"}, {"name": "o/n:1", "text": "hub"}]


def refusal(source: str) -> str:
    with pytest.raises(DataError) as caught:
        list(resolve_source(source).documents("text"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_of_the_name(tmp_path):
    message = refusal("owner/name")
    assert "'owner/name'" in message
    assert "hub:" in message


def test_an_empty_folder(tmp_path):
    assert refusal(str(tmp_path)).startswith(f"folder {tmp_path} holds no ")


def test_a_glob_without_a_match(tmp_path):
    assert refusal(f"{tmp_path}/*.py") == f"glob '{tmp_path}/*.py' matches no file"


def test_the_hub_out_of_reach():
    message = refusal("hub:nobody/nothing-of-this-name")
    assert message.startswith("hub data set 'nobody/nothing-of-this-name' (split train) cannot be")


def test_hub_rows_without_the_text_field(monkeypatch):
    rows = datasets.Dataset.from_list([{"body": "a"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: rows)
    assert "no text field 'text'" in refusal("hub:o/n")
