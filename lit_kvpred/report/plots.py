"""Drawing a plot as an SVG element that follows the colours and fonts of the page around it."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lit_kvpred.report.formats import compact
from lit_kvpred.report.visible import visible


@dataclass(frozen=True)
class Colour:
    """A colour that the page decides on.

    Matplotlib draws with `mark`, a value that nothing else uses; the SVG then holds the custom
    property `name` instead, so that one drawing serves light and dark pages.
    """

    name: str
    mark: str
    light: str
    dark: str


# After Okabe and Ito, who chose them to stay apart in every common kind of colour blindness.
INK = Colour("--plot-ink", "#010203", "#3c4650", "#c3ccd6")
GRID = Colour("--plot-grid", "#010204", "#e1e5ea", "#313a45")
BASE = Colour("--plot-base", "#010205", "#4f5b67", "#c9d1da")
PREDICTED = Colour("--plot-predicted", "#010206", "#0072b2", "#56b4e9")
CORRECTED = Colour("--plot-corrected", "#010207", "#009e73", "#2fc79b")
AUXILIARY = Colour("--plot-auxiliary", "#010208", "#d98600", "#f0b03c")
FAINT = Colour("--plot-faint", "#010209", "#9aa5b1", "#6d7884")
RUNS = (
    PREDICTED,
    Colour("--plot-run-2", "#01020a", "#c4500a", "#f28544"),
    Colour("--plot-run-3", "#01020b", "#b0558a", "#df8fbb"),
    Colour("--plot-run-4", "#01020c", "#7a6a00", "#e3d44a"),
    Colour("--plot-run-5", "#01020d", "#5b4bb5", "#a99cf2"),
)
COLOURS = (INK, GRID, BASE, PREDICTED, CORRECTED, AUXILIARY, FAINT, *RUNS[1:])

WIDTH, HEIGHT = 5.2, 3.0  # inches, of 72 units in the SVG

_LEGEND_SIGNS = 62  # that fit beside each other above the axes, six of them for a sample

Shade = Callable[[Colour], str]
"""What matplotlib draws a colour with: `on_page` or `on_paper`."""


def on_page(colour: Colour) -> str:
    """The mark that the page replaces by a colour of its own."""
    return colour.mark


def on_paper(colour: Colour) -> str:
    """The colour itself, on white."""
    return colour.light


def style(shade: Shade) -> dict[str, Any]:
    """Settings of matplotlib that all plots share."""
    ink, grid = shade(INK), shade(GRID)
    return {
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "axes.labelsize": 10,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "legend.fontsize": 10,
        "legend.labelcolor": ink,
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
        "text.color": ink,
        # Names of tasks and runs are no formulas, dollar signs or not.
        "text.parse_math": False,
        "xtick.color": ink,
        "ytick.color": ink,
        # Text stays text: small, selectable and in the page's own font.
        "svg.fonttype": "none",
    }


Scale = Callable[[Axes, Iterable[float], str], None]
"""Sets up a y axis for some values, with a label: `share_axis` or `value_axis`."""


def draw(name: str, description: str, paint: Callable[[Axes], None], height: float = HEIGHT) -> str:
    """Draw one plot; a legend goes above the axes, where it can cover nothing.

    Args:
        name: Distinguishes the identifiers of this drawing from those of others in the page.
        description: What a screen reader says in place of the drawing.
        paint: Draws into the axes.
        height: In inches, the legend not counted.

    Returns:
        The `<svg>` element.
    """
    with mpl.rc_context({**style(on_page), "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        paint(axes)
        figure.set_figheight(height + add_legend(figure, [axes]))
        buffer = io.StringIO()
        with warnings.catch_warnings():
            # The browser's fonts hold the signs of other scripts that the measuring one lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _element(buffer.getvalue(), name, description)


def count_axis(axes: Axes, label: str) -> None:
    """Label the x axis, whose values are large counts from zero on."""
    # Not from zero itself, which would cut the marks there in half.
    axes.set_xlim(left=-0.02 * axes.get_xlim()[1])
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.locator_params(axis="x", nbins=6)


def share_axis(axes: Axes, values: Iterable[float], label: str) -> None:
    """Make the y axis one of percentages that holds the values, within 0 and 100 where they are."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    margin = 0.15 * max(high - low, 0.04)
    bottom = low - margin if low < 0 else max(0.0, low - margin)
    top = high + margin if high > 1 else min(1.0, high + margin)
    axes.set_ylim(bottom - 0.3 * margin, top + 0.3 * margin)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    axes.set_ylabel(label)


def value_axis(axes: Axes, values: Iterable[float], label: str) -> None:
    """Make the y axis logarithmic where the values span more than a decade, else close to them."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if 0 < 10 * low < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylim(low / 1.3, high * 1.3)
    else:
        margin = 0.15 * (high - low or abs(high) or 1.0)
        # From zero where it is near: a curve that has come down should look as if it had.
        near_zero = 0 <= low < 4 * margin
        axes.set_ylim(-0.15 * margin if near_zero else low - margin, high + margin)
    axes.set_ylabel(label)


def shorten(name: str, length: int = 44) -> str:
    """`name` as a label, cut in the middle where it is too long for a legend."""
    name = visible(name, str, str)
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def tick_seconds(values: Iterable[float]) -> tuple[float, str]:
    """Scale and unit in which the largest of some durations in seconds reads well."""
    largest = max((value for value in values if math.isfinite(value)), default=1.0)
    return (1.0, "s") if largest >= 1 else (1e3, "ms")


def add_legend(figure: FigureBase, panels: Sequence[Axes], width: float = WIDTH) -> float:
    """Put one legend of all that the panels show above them.

    Args:
        figure: Holds the panels.
        panels: What is shown in several of them is named once.
        width: Of the figure, in inches.

    Returns:
        The height that it takes, in inches.
    """
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if not entries:
        return 0.0
    signs = _LEGEND_SIGNS * width / WIDTH
    widths = [len(label) + 6 for label in entries]
    columns = len(entries) if sum(widths) <= signs else int(signs // max(widths))
    columns = max(1, columns)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside upper left",
        ncols=columns,
        borderaxespad=0.2,
        columnspacing=1.4,
        handlelength=1.8,
    )
    return 0.2 * math.ceil(len(entries) / columns)


def _element(svg: str, name: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    # Identifiers are document-wide in a page with several drawings.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", svg)
    for colour in COLOURS:
        svg = svg.replace(colour.mark, f"var({colour.name})")
    view = re.search(r'viewBox="[^"]+"', svg)
    opening = (
        f'<svg {view.group() if view else ""} role="img" aria-label="{_attribute(description)}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)


def _attribute(text: str) -> str:
    return visible(text, str, str).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
