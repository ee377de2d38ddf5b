"""The plots of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lit_kvpred.report.document import Figure
from lit_kvpred.report.plots import (
    AUXILIARY,
    BASE,
    CORRECTED,
    FAINT,
    INK,
    PREDICTED,
    RUNS,
    Colour,
    Scale,
    count_axis,
    draw,
    shorten,
    tick_seconds,
    value_axis,
)
from lit_kvpred.report.schema import Accuracy, Quartiles, Timing
from lit_kvpred.report.series import Points

SYSTEM_LABELS = {
    "base": "Base",
    "predicted": "Predicted",
    "corrected": "Corrected",
    "sparse": "Sparse alone",
    "sirius": "Sirius",
    "sirius_catch_up": "Sirius after catch-up",
    "auxiliary": "Auxiliary alone",
}
SYSTEM_COLOURS = {
    "base": BASE,
    "predicted": PREDICTED,
    "corrected": CORRECTED,
    "sparse": RUNS[3],
    "sirius": RUNS[4],
    "sirius_catch_up": RUNS[2],
    "auxiliary": AUXILIARY,
}
POINTS = 200  # of a curve; more would not be seen, only loaded


def progress_chart(
    name: str,
    title: str,
    lines: Mapping[str, tuple[Points, Colour, str]],
    axis_label: str,
    unit: str,
    scale: Scale = value_axis,
) -> Figure:
    """Quantities against training progress.

    Args:
        name: Identifier of the drawing.
        title: What is plotted against what.
        lines: Label, points, colour and matplotlib line format of each.
        axis_label: Quantity and unit.
        unit: What progress is counted in.
        scale: Kind of the y axis.

    Returns:
        The figure.
    """
    values = [value for points, _, _ in lines.values() for _, value in points]

    def paint(axes: Axes) -> None:
        for label, (points, colour, form) in lines.items():
            seen, measured = zip(*points, strict=True)
            axes.plot(seen, measured, form, color=colour.mark, label=label)
        scale(axes, values, axis_label)
        count_axis(axes, unit[:1].upper() + unit[1:])

    return Figure(title, draw(name, title, paint))


def layer_chart(
    name: str, title: str, first: Sequence[float], last: Sequence[float], labels: tuple[str, str]
) -> Figure:
    """Consistency error of each base layer, at the first and at the last evaluation.

    Args:
        name: Identifier of the drawing.
        title: What is plotted against what.
        first: Mean absolute error per base layer; empty where there was one evaluation only.
        last: The same, later.
        labels: Names of the two.

    Returns:
        The figure.
    """

    def paint(axes: Axes) -> None:
        if first:
            axes.plot(range(len(first)), first, "o--", color=FAINT.mark, label=labels[0])
        axes.plot(range(len(last)), last, "o-", color=PREDICTED.mark, label=labels[1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("Base layer")
        axes.set_ylabel("Mean absolute error")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))

    return Figure(title, draw(name, title, paint))


def ttft_chart(name: str, title: str, timing: Sequence[Timing]) -> Figure:
    """Median time to first token by prompt length, with the quartiles as whiskers."""
    systems: dict[str, tuple[Colour, list[Quartiles | None]]] = {
        "Base": (BASE, [row.base for row in timing]),
        "KV Prediction": (PREDICTED, [row.kv_prediction for row in timing]),
        "Auxiliary alone": (AUXILIARY, [row.auxiliary for row in timing]),
    }
    systems = {label: rows for label, rows in systems.items() if any(rows[1])}
    scale, unit = tick_seconds(
        cell.median for _, cells in systems.values() for cell in cells if cell is not None
    )
    width = 0.8 / len(systems)

    def paint(axes: Axes) -> None:
        for index, (label, (colour, cells)) in enumerate(systems.items()):
            offset = (index - (len(systems) - 1) / 2) * width
            bars = [(place + offset, cell) for place, cell in enumerate(cells) if cell is not None]
            axes.bar(
                [place for place, _ in bars],
                [scale * cell.median for _, cell in bars],
                width * 0.92,
                yerr=[
                    [scale * _distance(cell.q25, cell.median) for _, cell in bars],
                    [scale * _distance(cell.median, cell.q75) for _, cell in bars],
                ],
                color=colour.mark,
                error_kw={"ecolor": INK.mark, "elinewidth": 1.1, "capsize": 2.5},
                label=label,
            )
        _prompt_axis(axes, timing)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel(f"Time to first token ({unit})")

    return Figure(title, draw(name, title, paint))


def speedup_chart(name: str, title: str, timing: Sequence[Timing]) -> Figure:
    """Measured speed-up against what the FLOPs allow, by prompt length."""
    lines = (
        ("Measured", [row.speedup for row in timing], PREDICTED, "o-"),
        ("Reachable", [row.reachable_speedup for row in timing], INK, "D-."),
        ("FLOPs ratio", [row.flops_ratio for row in timing], BASE, "s--"),
        ("Published ratio", [row.published_ratio for row in timing], FAINT, "^:"),
    )

    def paint(axes: Axes) -> None:
        for label, ratios, colour, form in lines:
            if any(map(math.isfinite, ratios)):
                axes.plot(range(len(ratios)), ratios, form, color=colour.mark, label=label)
        axes.axhline(1.0, color=INK.mark, linewidth=0.8)
        drawn = [ratio for _, ratios, _, _ in lines for ratio in ratios if math.isfinite(ratio)]
        axes.set_ylim(0, 1.12 * max([1.0, *drawn]))
        axes.margins(x=0.08)
        _prompt_axis(axes, timing)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))  # noqa: RUF001
        axes.set_ylabel("Speed-up over the base")

    return Figure(title, draw(name, title, paint))


def accuracy_chart(name: str, title: str, accuracy: Sequence[Accuracy]) -> Figure:
    """Score of every system on every task, in the finest measure each task has."""
    finest = [row.finest for row in accuracy]
    systems = [s for s in SYSTEM_LABELS if any(s in scores for _, scores in finest)]
    width = 0.8 / max(1, len(systems))

    def paint(axes: Axes) -> None:
        for index, system in enumerate(systems):
            offset = (index - (len(systems) - 1) / 2) * width
            axes.barh(
                [place + offset for place in range(len(accuracy))],
                [100 * scores.get(system, 0.0) for _, scores in finest],
                width * 0.9,
                color=SYSTEM_COLOURS[system].mark,
                label=SYSTEM_LABELS[system],
            )
        labels = [
            f"{shorten(row.task, 24)}\n{measure}"
            for row, (measure, _) in zip(accuracy, finest, strict=True)
        ]
        axes.set_yticks(range(len(accuracy)), labels)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Score (%)")

    return Figure(title, draw(name, title, paint, height=0.7 + 0.5 * max(2, len(accuracy))))


def rejection_chart(name: str, title: str, rejections: Mapping[str, Sequence[float]]) -> Figure:
    """How often the first rejected token of a period was its i-th, for each system.

    Args:
        name: Identifier of the drawing.
        title: What is plotted against what.
        rejections: For each system, a count for each drafted token of a period.
    """
    longest = max(map(len, rejections.values()))
    width = 0.8 / len(rejections)

    def paint(axes: Axes) -> None:
        for index, (system, counts) in enumerate(rejections.items()):
            offset = (index - (len(rejections) - 1) / 2) * width
            axes.bar(
                [1 + place + offset for place in range(len(counts))],
                counts,
                width * 0.92,
                color=SYSTEM_COLOURS[system].mark,
                label=SYSTEM_LABELS[system],
            )
        axes.set_xlim(0.4, longest + 0.6)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("Drafted token of the period")
        axes.set_ylabel("First rejections")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=10, integer=True))

    return Figure(title, draw(name, title, paint))


def _distance(low: float, high: float) -> float:
    distance = high - low
    return distance if math.isfinite(distance) and distance > 0 else 0.0


def _prompt_axis(axes: Axes, timing: Sequence[Timing]) -> None:
    axes.set_xticks(range(len(timing)), [f"{row.prompt_tokens:,}" for row in timing])
    axes.set_xlabel("Prompt length (tokens)")
