"""Plots beside each other in a file of their own, in the style of the report's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from lit_kvpred.report.plots import HEIGHT, WIDTH, Shade, add_legend, on_paper, style


class Painter(Protocol):
    """Paints one plot with given colours."""

    def __call__(self, axes: Axes, shade: Shade) -> None:
        """Draw into ``axes``."""


Panel = tuple[str, Painter]
"""Title of a plot and what paints it."""


def write_figure(file: Path, rows: Sequence[Sequence[Panel]], *, share_y: bool = False) -> None:
    """Write rows of plots, each with one legend above it.

    Args:
        file: Its suffix decides the format.
        rows: At least one, each of at least one plot.
        share_y: The plots of a row have the same y axis.
    """
    width = WIDTH * max(map(len, rows))
    settings = style(on_paper) | {"figure.facecolor": "white", "svg.hashsalt": file.stem}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(width, HEIGHT), layout="constrained")
        grid = GridSpec(len(rows), 1, figure=figure)
        heights = []
        for place, panels in enumerate(rows):
            part = figure.add_subfigure(grid[place])
            places = part.subplots(1, len(panels), squeeze=False, sharey=share_y)[0].tolist()
            for axes, (title, paint) in zip(places, panels, strict=True):
                paint(axes, on_paper)
                axes.set_title(title, fontsize=10)
                if share_y and axes is not places[0]:
                    axes.set_ylabel("")
            heights.append(HEIGHT + 0.2 + add_legend(part, places, width))
        grid.set_height_ratios(heights)
        figure.set_figheight(sum(heights))
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
