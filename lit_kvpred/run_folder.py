"""The folder of a run: where its files are, how a run is resumed, and what must not be lost.

Layout::

    config.yaml  config.1.yaml ...  hparams.yaml
    metrics.csv  run.json  evaluation.jsonl  tensorboard/
    checkpoints/last.ckpt  checkpoints/best*.ckpt
    artefact/  report.md  report.html  report.json
    predictions.jsonl  sweep.json
"""

from __future__ import annotations

import csv
import itertools
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from lit_kvpred.errors import CheckpointError, ConfigurationError

_METRICS = "metrics.csv"


class RunFolder:
    """Paths and checks of one run.

    Args:
        path: The folder; it need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.checkpoints = self.path / "checkpoints"

    def prepare(self) -> None:
        """Create the folder and prove that it can be written.

        Raises:
            ConfigurationError: If it can't.
        """
        probe = self.path / f".write-test-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"the run folder {self.path} can't be written ({error.strerror}); "
                "choose another one with --run"
            ) from error

    def refuse_overwriting(self) -> None:
        """Raise `ConfigurationError` if the folder already holds checkpoints of a run."""
        if any(self.checkpoints.glob("*.ckpt")):
            raise ConfigurationError(
                f"{self.path} already holds a run; continue it with --ckpt_path last or "
                "choose another folder with --run"
            )

    def find_checkpoint(self, name: str) -> Path:
        """Resolve ``last``, ``best`` or a path.

        Raises:
            CheckpointError: If there is no such checkpoint.
        """
        if name == "last":
            found = [self.checkpoints / "last.ckpt"]
        elif name == "best":
            found = sorted(self.checkpoints.glob("best*.ckpt"), key=lambda p: p.stat().st_mtime)
        else:
            found = [Path(name)]
        if not found or not found[-1].is_file():
            where = self.checkpoints if name in ("last", "best") else name
            raise CheckpointError(
                f"there is no checkpoint '{name}' ({where}); start without --ckpt_path or name "
                "an existing file"
            )
        return found[-1]

    def keep_earlier_config(self) -> None:
        """Move ``config.yaml`` aside, to ``config.1.yaml`` and so on."""
        if self.config.exists():
            names = (self.path / f"config.{i}.yaml" for i in itertools.count(1))
            self.config.rename(next(name for name in names if not name.exists()))

    def forget_metrics_from(self, step: int) -> None:
        """Drop the rows of ``metrics.csv`` that a run resumed at ``step`` will write again."""
        file = self.path / _METRICS
        if not file.exists():
            return
        with file.open(newline="") as stream:
            reader = csv.DictReader(stream)
            fields = list(reader.fieldnames or [])
            rows = [row for row in reader if not row.get("step") or int(row["step"]) < step]
        _write_rows(file, fields, rows)


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint without unpickling anything but tensors and plain values.

    Raises:
        CheckpointError: If the file is truncated or not a checkpoint.
    """
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        complete = isinstance(checkpoint, dict) and "state_dict" in checkpoint
    except Exception as error:  # torch raises many types for damaged files
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file} is truncated or not a checkpoint ({first}); resume from another one"
        ) from error
    if not complete:
        raise CheckpointError(f"{file} is not a Lightning checkpoint; resume from another one")
    return checkpoint


class RunCSVLogger(CSVLogger):
    """Writes ``metrics.csv`` right into the run folder and goes on with the rows already there."""

    def __init__(self, run: str | Path) -> None:
        super().__init__(save_dir=str(run), name="", version="", flush_logs_every_n_steps=1)

    @property
    def experiment(self) -> ExperimentWriter:
        """The writer, holding the earlier rows' columns."""
        if self._experiment is None:
            file = Path(self.log_dir) / _METRICS
            fields: list[str] = []
            rows: list[dict[str, Any]] = []
            if file.exists():
                with file.open(newline="") as stream:
                    reader = csv.DictReader(stream)
                    fields, rows = list(reader.fieldnames or []), list(reader)
            with warnings.catch_warnings():
                # The writer warns of deleting what is put back right below.
                warnings.simplefilter("ignore")
                writer = super().experiment
            if rows:
                writer.metrics_keys = sorted(fields)
                _write_rows(file, writer.metrics_keys, rows)
        return super().experiment


def _write_rows(file: Path, fields: list[str], rows: list[dict[str, Any]]) -> None:
    partial = file.with_suffix(".partial")
    with partial.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=fields)
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(file)
