"""The table of a sweep: a row a variant, its settings, and what they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lit_kvpred.report.charts import SYSTEM_LABELS
from lit_kvpred.report.document import Table
from lit_kvpred.report.formats import ABSENT, fixed, percent, plural
from lit_kvpred.report.sweep_records import (
    SweepRow,
    common_settings,
    measured,
    setting_name,
    varied_settings,
)
from lit_kvpred.report.tables import plain

SWEEP_LABELS = SYSTEM_LABELS | {
    "sparse": "Sparse alone",
    "catch_up": SYSTEM_LABELS["corrected"],
    "speculative": "Speculative decoding",
}
_MEASURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("Score", percent),
    "same_text": ("Same text", percent),
    "same_tokens": ("Same tokens", percent),
    "same_first_token": ("Same first", percent),
    "accepted_rate": ("Accepted", percent),
    "retraction_rate": ("Taken back", percent),
    "unrecoverable_rate": ("Kept wrong", percent),
    "aal": ("Advance", lambda value: fixed(value, 2)),
    "effective_density": ("Density", fixed),
    "alpha": ("Acceptance", percent),
    "expected_aal": ("Expected advance", lambda value: fixed(value, 2)),
    "expected_density": ("Expected density", fixed),
}


def sweep_table(rows: Sequence[SweepRow]) -> Table:
    """The variants of one task; settings that all share are in the title.

    Args:
        rows: At least one.

    Returns:
        The table, without the measures that no row has.
    """
    varied = varied_settings(rows)
    shown = [name for name in _MEASURES if measured([getattr(row, name) for row in rows])]
    cells = [
        (
            SWEEP_LABELS.get(row.system, row.system),
            *(_setting(row.settings.get(name)) for name in varied),
            *(_MEASURES[name][1](getattr(row, name)) for name in shown),
        )
        for row in rows
    ]
    header = (
        "System",
        *(setting_name(name).capitalize() for name in varied),
        *(_MEASURES[name][0] for name in shown),
    )
    parts = [
        f"{setting_name(name)} {_setting(value)}" for name, value in common_settings(rows).items()
    ]
    metric = rows[0].metric.replace("_", " ")
    title = f"{rows[0].task}, {plural(rows[0].answers, 'prompt')} ({metric})"
    return Table("; ".join([title, *([", ".join(parts)] if parts else [])]), header, cells)


def _setting(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ABSENT if value is None else plain(value)
