"""Accuracy and agreement against effective density: what correction buys and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lit_kvpred.report.document import Figure
from lit_kvpred.report.figure_file import Panel, write_figure
from lit_kvpred.report.plots import (
    BASE,
    CORRECTED,
    PREDICTED,
    RUNS,
    Shade,
    draw,
    on_page,
    share_axis,
    shorten,
)
from lit_kvpred.report.sweep_records import (
    SweepRow,
    by_task,
    setting_name,
    varied_settings,
)
from lit_kvpred.report.sweep_table import SWEEP_LABELS

_LINES = (PREDICTED, RUNS[1], RUNS[2], RUNS[4])
_FORMS = ("o-", "^--", "v-.", "D:")
_TICKS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
_REFERENCES = {"base": ("s", BASE), "sparse": ("X", RUNS[3]), "speculative": ("P", CORRECTED)}
_MEASURES = {"accuracy": "Score", "same_tokens": "Same tokens"}


def sweep_charts(name: str, rows: Sequence[SweepRow]) -> list[Figure]:
    """The plots of one task for a page: score, where it was measured, and agreement.

    Args:
        name: Identifier of the drawings.
        rows: Of one task.
    """
    figures = []
    for place, (shown, paint) in enumerate(sweep_panels(rows)):
        title = f"{shown} against effective density"
        figures.append(Figure(title, draw(f"{name}-{place}", title, partial(paint, shade=on_page))))
    return figures


def draw_sweep(rows: Sequence[SweepRow], file: Path) -> None:
    """Draw the same plots of all tasks into a file.

    Args:
        rows: With an effective density each, those without are left out.
        file: Its suffix decides the format.
    """
    write_figure(file, [sweep_panels(own) for own in by_task(rows).values()])


def sweep_panels(rows: Sequence[SweepRow]) -> list[Panel]:
    """The plots of one task, on rows with an effective density: score, if any, and agreement."""
    placed = [row for row in rows if math.isfinite(row.effective_density)]
    return [
        (
            f"{shorten(placed[0].task)}: {_described(measure, placed[0])}",
            partial(_paint, placed, measure),
        )
        for measure in _MEASURES
        if _tells([getattr(row, measure) for row in placed if row.system != "base"])
    ]


def _tells(values: Sequence[float]) -> bool:
    """Whether a measure was taken at all, and not nought for everyone, which would show nothing."""
    return any(math.isfinite(value) and value > 0 for value in values)


def _described(measure: str, row: SweepRow) -> str:
    if measure == "accuracy":
        return f"score ({row.metric.replace('_', ' ')})"
    return "same tokens as the base"


def _paint(rows: Sequence[SweepRow], measure: str, axes: Axes, shade: Shade) -> None:
    points = [row for row in rows if math.isfinite(getattr(row, measure))]
    lines = _lines([row for row in points if row.system not in _REFERENCES])
    for place, (label, line) in enumerate(lines.items()):
        colour = shade(_LINES[place % len(_LINES)])
        form = _FORMS[place // len(_LINES) % len(_FORMS)]
        x = [row.effective_density for row in line]
        y = [getattr(row, measure) for row in line]
        axes.plot(x, y, form, color=colour, label=label)
        # Thresholds come in the same order on every line; on several they would cover each other.
        if len(line) > 1 and place == 0:
            for row in line:
                _note(axes, row, measure, _short(row.settings.get("threshold", "")), colour)
    for system, (mark, own_colour) in _REFERENCES.items():
        own = [row for row in points if row.system == system]
        if not own:
            continue
        axes.plot(
            [row.effective_density for row in own],
            [getattr(row, measure) for row in own],
            mark,
            color=shade(own_colour),
            markersize=8,
            label=SWEEP_LABELS[system],
        )
        for row, text in zip(own, _names(own), strict=True):
            _note(axes, row, measure, text, shade(own_colour))
    for row in points:
        if row.system == "base":
            axes.axhline(getattr(row, measure), color=shade(BASE), linewidth=0.8, linestyle=":")
    share_axis(axes, [getattr(row, measure) for row in points], _MEASURES[measure])
    # All drafts rejected cost several times the base; what is of interest lies below it.
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=_TICKS, numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.1)
    axes.set_xlabel("Effective density (weights read per token, of the base's)")


def _note(axes: Axes, row: SweepRow, measure: str, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (row.effective_density, getattr(row, measure)),
        textcoords="offset points",
        xytext=(5, -10),
        fontsize=7,
        color=colour,
    )


def _lines(rows: Sequence[SweepRow]) -> dict[str, list[SweepRow]]:
    """Rows that differ in nothing but the threshold, by their label."""
    varied = [name for name in varied_settings(rows) if name != "threshold"]
    groups: dict[tuple[Any, ...], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row.settings.get(name) for name in varied), []).append(row)
    return {
        _label(line[0], varied): sorted(line, key=lambda row: row.settings.get("threshold", 0))
        for line in groups.values()
    }


def _names(rows: Sequence[SweepRow]) -> list[str]:
    """What tells reference points of one system apart, short where it is one setting."""
    varied = varied_settings(rows)
    if len(varied) == 1:
        return [_short(row.settings.get(varied[0])) for row in rows]
    return [_label(row, varied) if varied else "" for row in rows]


def _label(row: SweepRow, varied: Sequence[str]) -> str:
    values = {name: row.settings.get(name) for name in varied}
    parts = [
        f"no {setting_name(name)}" if value is False else f"{setting_name(name)} {_short(value)}"
        for name, value in values.items()
        if value is not None and value is not True
    ]
    return ", ".join(parts) or SWEEP_LABELS.get(row.system, row.system)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
