"""A run's files: found, refused, and never lost."""

from __future__ import annotations

import csv
import os

import pytest
import torch

from lit_kvpred.errors import CheckpointError, ConfigurationError
from lit_kvpred.run_folder import RunCSVLogger, RunFolder, read_checkpoint


def test_checkpoints_by_name(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint 'best'"):
        folder.find_checkpoint("best")
    folder.checkpoints.mkdir()
    for age, name in enumerate(("last.ckpt", "best-step9.ckpt", "best-step10.ckpt")):
        (folder.checkpoints / name).touch()
        os.utime(folder.checkpoints / name, (age, age))
    assert folder.find_checkpoint("last").name == "last.ckpt"
    assert folder.find_checkpoint("best").name == "best-step10.ckpt"
    file = folder.checkpoints / "best-step9.ckpt"
    assert folder.find_checkpoint(str(file)) == file
    with pytest.raises(CheckpointError, match="no checkpoint"):
        folder.find_checkpoint(str(tmp_path / "other.ckpt"))
    with pytest.raises(ConfigurationError, match="already holds a run"):
        folder.refuse_overwriting()


def test_earlier_configs_are_kept(tmp_path):
    folder = RunFolder(tmp_path)
    for text in ("first", "second", "third"):
        folder.keep_earlier_config()
        folder.config.write_text(text)
    kept = [(tmp_path / f"config.{i}.yaml").read_text() for i in (1, 2)]
    assert kept == ["first", "second"]
    assert folder.config.read_text() == "third"


def rows(folder) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_metrics_go_on_where_they_stopped(tmp_path):
    first = RunCSVLogger(tmp_path)
    for step in range(4):
        first.log_metrics({"loss": float(step)}, step)
    RunFolder(tmp_path).forget_metrics_from(2)
    second = RunCSVLogger(tmp_path)
    second.log_metrics({"loss": 20.0, "extra": 1.0}, 2)
    second.save()
    assert [(r["step"], r["loss"], r["extra"]) for r in rows(tmp_path)] == [
        ("0", "0.0", ""), ("1", "1.0", ""), ("2", "20.0", "1.0"),
    ]  # fmt: skip


def test_only_whole_checkpoints_are_read(tmp_path):
    good = tmp_path / "good.ckpt"
    torch.save({"state_dict": {"x": torch.ones(1000)}, "global_step": 3}, good)
    assert read_checkpoint(good)["global_step"] == 3
    damaged, other = tmp_path / "damaged.ckpt", tmp_path / "other.ckpt"
    damaged.write_bytes(good.read_bytes()[:-200])
    torch.save([1, 2], other)
    for file in (damaged, other):
        with pytest.raises(CheckpointError, match=file.name):
            read_checkpoint(file)


def test_pickled_code_is_not_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"state_dict": {}, "x": Payload()}, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / "evil.ckpt")
    assert not (tmp_path / "owned").exists()
