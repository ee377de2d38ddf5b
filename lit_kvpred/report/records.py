"""The files of a run folder: reading them for a report, adding to them while a run goes on."""

from __future__ import annotations

import csv
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_kvpred.errors import CheckpointError, ConfigurationError
from lit_kvpred.json_text import parse_json
from lit_kvpred.report.atomic import write_atomically
from lit_kvpred.report.schema import STAGES, Evaluation, Stage, evaluation_from_json
from lit_kvpred.report.sweep_records import SweepRow, read_sweep

FACTS_FILE = "run.json"
EVALUATION_FILE = "evaluation.jsonl"
METRICS_FILE = "metrics.csv"
SWEEP_FILE = "sweep.json"
CONFIG_FILE = "config.yaml"

Curve = tuple[tuple[int, float], ...]
"""Pairs of optimiser step and value, in the order of the steps."""


@dataclass(frozen=True)
class Run:
    """Everything that a run folder records.

    Attributes:
        name: Name of the folder.
        facts: Content of `run.json`; empty where there is none.
        evaluations: Lines of `evaluation.jsonl`, in their order.
        curves: Each logged quantity of `metrics.csv` that has a finite value.
        config: Text of `config.yaml`; empty where there is none.
        sweep: What `lit-kvpred sweep --json RUN/sweep.json` measured.
    """

    name: str
    facts: Mapping[str, Any]
    evaluations: tuple[Evaluation, ...]
    curves: Mapping[str, Curve]
    config: str
    sweep: tuple[SweepRow, ...] = ()

    @property
    def fit(self) -> tuple[Evaluation, ...]:
        """The evaluations during training, in the order of their steps, one a step."""
        by_step = {line.global_step: line for line in self.evaluations if line.stage == "fit"}
        return tuple(by_step[step] for step in sorted(by_step))

    def fact(self, part: str, key: str) -> Any:
        """A setting of a part in `run.json`, None where it is not recorded."""
        settings = self.facts.get(part)
        return settings.get(key) if isinstance(settings, Mapping) else None

    def latest(self, stage: Stage) -> Evaluation | None:
        """The last evaluation of a stage, None where it never ran."""
        lines = self.fit if stage == "fit" else self.evaluations
        return next((line for line in reversed(lines) if line.stage == stage), None)


def read_run(folder: Path) -> Run:
    """Read a run folder; any of its files may be missing, though not all of them.

    Args:
        folder: The folder that `fit` wrote.

    Returns:
        What the folder records.

    Raises:
        ConfigurationError: If the folder is not one of a run.
        CheckpointError: If a file is damaged.
    """
    if not any((folder / name).is_file() for name in (FACTS_FILE, EVALUATION_FILE, METRICS_FILE)):
        lacks = ", ".join((FACTS_FILE, EVALUATION_FILE, METRICS_FILE))
        why = f"it holds none of {lacks}" if folder.is_dir() else "there is no such folder"
        raise ConfigurationError(
            f"{folder} is not a run folder: {why}; name a folder that `lit-kvpred fit` wrote"
        )
    return Run(
        name=folder.resolve().name,
        facts=_read_facts(folder / FACTS_FILE),
        evaluations=_read_evaluations(folder / EVALUATION_FILE),
        curves=_read_curves(folder / METRICS_FILE),
        config=_read_text(folder / CONFIG_FILE),
        sweep=_sweep(folder / SWEEP_FILE),
    )


def write_run_facts(run: Path, facts: Mapping[str, Any]) -> None:
    """Write `run.json`: what is trained on what, with which versions.

    Args:
        run: The run folder; created where it is missing.
        facts: Plain values; numbers that are not finite become null.

    Raises:
        ConfigurationError: If the file cannot be written.
    """
    _make_folder(run)
    write_atomically({run / FACTS_FILE: json.dumps(finite(facts), indent=2) + "\n"})


def append_evaluation(run: Path, record: Mapping[str, Any]) -> None:
    """Add a line to `evaluation.jsonl`, atomically.

    A record of stage "fit" first removes the "fit" lines at its own or a later step: a run resumed
    from an earlier checkpoint measures those steps again.

    Args:
        run: The run folder; created where it is missing.
        record: Plain values; numbers that are not finite become null.

    Raises:
        ConfigurationError: If the file cannot be written.
    """
    _make_folder(run)
    path = run / EVALUATION_FILE
    lines = [line for line in _read_text(path).split("\n") if line.strip()]
    if record["stage"] == "fit":
        lines = [line for line in lines if not _is_fit_from(line, record["global_step"])]
    lines.append(json.dumps(finite(record)))
    write_atomically({path: "\n".join(lines) + "\n"})


def finite(value: Any) -> Any:
    """Plain JSON data with null in place of numbers that JSON does not have, NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return value


def _make_folder(run: Path) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot create the run folder {run}: {error.strerror}; choose a writable place"
        ) from error


def _is_fit_from(line: str, step: int) -> bool:
    try:
        earlier = parse_json(line)
    except json.JSONDecodeError:
        # A damaged line must not end a training run; the report names it.
        return False
    return (
        isinstance(earlier, dict)
        and earlier.get("stage") == "fit"
        and isinstance(earlier.get("global_step"), int)
        and earlier["global_step"] >= step
    )


def _sweep(path: Path) -> tuple[SweepRow, ...]:
    return tuple(read_sweep(path, _read_text(path))) if path.is_file() else ()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} is damaged: byte {error.start} is not UTF-8; restore or delete the file"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}; make it a readable file"
        ) from error


def _read_facts(path: Path) -> Mapping[str, Any]:
    text = _read_text(path)
    if not text.strip():
        return {}
    try:
        facts = parse_json(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path}, line {error.lineno}: {error.msg}; restore the file, or delete it for a"
            " report without these facts"
        ) from error
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; restore the file or delete it")
    return facts


def _read_evaluations(path: Path) -> tuple[Evaluation, ...]:
    # Only "\n" ends a line here: a JSON string may hold the other line separators of Unicode.
    lines = enumerate(_read_text(path).split("\n"), start=1)
    return tuple(_read_line(path, count, line) for count, line in lines if line.strip())


def _read_line(path: Path, count: int, line: str) -> Evaluation:
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path}, line {count}: {error.msg} at column {error.colno}; delete this line and"
            " evaluate again with `lit-kvpred validate`"
        ) from error
    step = record.get("global_step") if isinstance(record, dict) else None
    if not isinstance(step, int) or record.get("stage") not in STAGES:
        raise CheckpointError(
            f"{path}, line {count}: not an evaluation, which has a global_step and a stage"
            f" ({', '.join(STAGES)}); delete this line"
        )
    return evaluation_from_json(record)


def _read_curves(path: Path) -> dict[str, Curve]:
    rows = csv.DictReader(_read_text(path).splitlines())
    curves: dict[str, list[tuple[int, float]]] = {}
    try:
        for row in rows:
            step = _csv_number(row.get("step"))
            if math.isfinite(step):
                _add_row(curves, int(step), row)
    except csv.Error as error:
        raise CheckpointError(
            f"{path}, line {rows.line_num}: {error}; delete this line or the file"
        ) from error
    return {name: tuple(curve) for name, curve in curves.items()}


def _add_row(
    curves: dict[str, list[tuple[int, float]]], step: int, row: Mapping[str | None, Any]
) -> None:
    for name, cell in row.items():
        value = _csv_number(cell)
        if name in (None, "step", "epoch") or not math.isfinite(value):
            continue
        curve = curves.setdefault(str(name), [])
        # A resumed run goes back: what it logs again replaces what was logged before.
        while curve and curve[-1][0] >= step:
            curve.pop()
        curve.append((step, value))


def _csv_number(cell: object) -> float:
    try:
        return float(cell) if isinstance(cell, str) else math.nan
    except ValueError:
        return math.nan
