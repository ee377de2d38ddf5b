"""Writing that leaves old files alone until new ones are complete."""

import errno
import os

import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.report.atomic import write_atomically


def test_writes_and_leaves_nothing_else_behind(tmp_path):
    write_atomically({tmp_path / "a": "ä\n", tmp_path / "b": "new"})
    assert (tmp_path / "a").read_bytes() == "ä\n".encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_full_disk_keeps_every_earlier_file(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_text("old")
    synced = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match=r"cannot write .*b: No space left.*; free some"):
        write_atomically({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old"}


def test_a_missing_folder_is_a_one_line_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot write .*gone"):
        write_atomically({tmp_path / "gone" / "a": "new"})
