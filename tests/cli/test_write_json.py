"""Files with what a command measured."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest

from lit_kvpred.cli.arguments import write_json
from lit_kvpred.errors import ConfigurationError


def test_the_new_content_takes_the_old_ones_place(tmp_path):
    file = tmp_path / "rows.json"
    write_json(str(file), {"results": [1]})
    write_json(str(file), {"results": [1, 2]})
    assert json.loads(file.read_text()) == {"results": [1, 2]}
    assert [f.name for f in tmp_path.iterdir()] == ["rows.json"]


def test_what_was_measured_before_survives_a_full_disk(tmp_path, monkeypatch):
    file = tmp_path / "rows.json"
    write_json(str(file), {"results": [1]})

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match=r"rows\.json: No space left .* free some space"):
        write_json(str(file), {"results": [1, 2]})
    assert json.loads(file.read_text()) == {"results": [1]}
    assert [f.name for f in tmp_path.iterdir()] == ["rows.json"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_json(str(pipe), {"results": []})
    reader.join(timeout=10)
    assert json.loads(read[0]) == {"results": []}
    assert pipe.is_fifo()


def test_a_link_is_written_through_and_stays_one(tmp_path):
    target, link = tmp_path / "rows.json", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    inode = target.stat().st_ino
    write_json(str(link), {"results": []})
    assert link.is_symlink()
    assert target.stat().st_ino == inode
    assert json.loads(target.read_text()) == {"results": []}
