"""What `lit-kvpred sweep` measured, as typed values; what it did not measure is NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lit_kvpred.errors import CheckpointError
from lit_kvpred.json_text import parse_json
from lit_kvpred.report.schema import number


@dataclass(frozen=True)
class SweepRow:
    """One variant on one task.

    Attributes:
        metric: How answers are scored.
        system: Who reads the prompt, who writes and what is corrected.
        settings: Of its correction, those that it has.
        new_tokens: Longest answer.
        answers: Number of prompts.
        accuracy: Share of right answers.
        same_text: Share of answers that are the base's own.
        same_tokens: Mean share of an answer up to its first difference from the base's.
        same_first_token: Share of answers whose first token is the base's.
        accepted_rate: Share of drafted tokens that were accepted.
        retraction_rate: ... that were taken back.
        unrecoverable_rate: ... that were rejected but stay.
        aal: Mean advance of a verify pass, in tokens.
        effective_density: Weights read per token, of the base's.
        alpha: Share of judged tokens that speculative decoding accepted.
        expected_aal: Advance that its closed form expects from ``alpha``.
        expected_density: Effective density likewise.
    """

    task: str
    metric: str
    system: str
    settings: Mapping[str, Any]
    new_tokens: float
    answers: float
    accuracy: float
    same_text: float
    same_tokens: float
    same_first_token: float
    accepted_rate: float
    retraction_rate: float
    unrecoverable_rate: float
    aal: float
    effective_density: float
    alpha: float
    expected_aal: float
    expected_density: float


_TEXTS = ("task", "metric", "system")
_NUMBERS = tuple(f.name for f in fields(SweepRow) if f.name not in (*_TEXTS, "settings"))
SETTINGS = (
    "policy", "period", "threshold", "temperature", "acceptance", "draft", "draft_keep",
    "tree_width", "kv_rewriting", "rollback", "interleave", "slice_rows",
)  # fmt: skip
"""Settings that are shown, in this order."""
DRAFT_SETTINGS = ("tree_width", "kv_rewriting", "rollback", "interleave")
"""Those that are about sparse drafts."""

_KINDS: dict[str, Any] = (
    dict.fromkeys(_TEXTS, str | None)
    | dict.fromkeys(_NUMBERS, int | float | None)
    | dict.fromkeys(SETTINGS, str | int | float | None)
)
"""What may stand in a file under each name; a truth value counts as a whole number."""

_NAMES = {
    "acceptance": "acceptance rule",
    "draft_keep": "neurons kept",
    "kv_rewriting": "cache rewriting",
}


def sweep_rows(records: Sequence[Mapping[str, Any]]) -> list[SweepRow]:
    """Rows from the records of a sweep, an absent measure as NaN."""
    return [_row(record) for record in records]


def read_sweep(path: Path, text: str) -> list[SweepRow]:
    """Rows of the JSON that a sweep wrote.

    Args:
        path: Named in errors.
        text: Content of the file.

    Raises:
        CheckpointError: If it is damaged or no sweep.
    """
    remedy = f"delete the file or write it again with `lit-kvpred sweep --json {path}`"
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}, line {error.lineno}: {error.msg}; {remedy}") from error
    records = content.get("results") if isinstance(content, dict) else None
    if not isinstance(records, list) or not all(
        isinstance(record, dict) and isinstance(record.get("system"), str) for record in records
    ):
        raise CheckpointError(
            f"{path} holds no sweep, which has results with a system each; {remedy}"
        )
    for count, record in enumerate(records, start=1):
        for name, kinds in _KINDS.items():
            if not isinstance(record.get(name), kinds):
                raise CheckpointError(
                    f"{path}, result {count}: {name} can't be {record[name]!r:.60}; {remedy}"
                )
    return sweep_rows(records)


def by_task(rows: Sequence[SweepRow]) -> dict[str, list[SweepRow]]:
    """The rows of each task, in their order."""
    return {
        task: [r for r in rows if r.task == task] for task in dict.fromkeys(r.task for r in rows)
    }


def varied_settings(rows: Sequence[SweepRow]) -> list[str]:
    """Names of the settings in which rows that have them differ."""
    return [name for name in SETTINGS if len(_values(rows, name)) > 1]


def common_settings(rows: Sequence[SweepRow]) -> dict[str, Any]:
    """The settings in which all rows that have them agree."""
    values = {name: _values(rows, name) for name in SETTINGS}
    return {name: found[0] for name, found in values.items() if len(found) == 1}


def setting_name(name: str) -> str:
    """A setting in words."""
    return _NAMES.get(name, name.replace("_", " "))


def _values(rows: Sequence[SweepRow], name: str) -> list[Any]:
    return list(dict.fromkeys(row.settings[name] for row in rows if name in row.settings))


def _row(record: Mapping[str, Any]) -> SweepRow:
    settings = {name: record[name] for name in SETTINGS if record.get(name) is not None}
    if record.get("draft") is None:
        settings = {k: v for k, v in settings.items() if k not in DRAFT_SETTINGS}
    if record.get("acceptance") == "lossless":
        # This rule uses neither of them, and speculative decoding says it by its name.
        unused = ("threshold", "temperature", "acceptance")
        settings = {k: v for k, v in settings.items() if k not in unused}
    numbers = {name: number(record.get(name)) for name in _NUMBERS}
    task, metric, system = (str(record.get(name) or "") for name in _TEXTS)
    return SweepRow(task, metric, system, settings, **numbers)


def measured(values: Sequence[float]) -> bool:
    """Whether any of the values was measured."""
    return any(map(math.isfinite, values))
