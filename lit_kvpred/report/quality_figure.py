"""The figure of `lit-kvpred quality`: what the first tokens are worth for what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lit_kvpred.report.figure_file import write_figure
from lit_kvpred.report.plots import RUNS, Shade, share_axis

_MARKS = "os^Dv"
_PANELS = {"agreement_first8": "first 8 tokens", "agreement": "all measured tokens"}


def draw_quality(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw agreement against arithmetic, one line an artefact and text, one point a tail.

    Args:
        records: Of `lit_kvpred.evaluation.held_out.measure_text`, with ``artefact`` and ``text``.
        file: Its suffix decides the format.
    """
    panels = [(title, partial(_paint, records, name)) for name, title in _PANELS.items()]
    write_figure(file, [panels], share_y=True)


def _paint(records: Sequence[dict[str, Any]], name: str, axes: Axes, shade: Shade) -> None:
    lines = list(dict.fromkeys((r["artefact"], r["text"]) for r in records))
    artefacts = list(dict.fromkeys(artefact for artefact, _ in lines))
    texts = list(dict.fromkeys(text for _, text in lines))
    for artefact, text in lines:
        points = [r for r in records if (r["artefact"], r["text"]) == (artefact, text)]
        points.sort(key=lambda record: record["flops"])
        colour = shade(RUNS[artefacts.index(artefact) % len(RUNS)])
        axes.plot(
            [record["flops"] for record in points],
            [record[name] for record in points],
            color=colour,
            marker=_MARKS[texts.index(text) % len(_MARKS)],
            linestyle="-" if texts.index(text) == 0 else "--",
            label=_label(artefact, text, len(artefacts), len(texts)),
        )
        for record in points:
            axes.annotate(
                str(record["exact_tail"]),
                (record["flops"], record[name]),
                textcoords="offset points",
                xytext=(4, -10),
                fontsize=7,
                color=colour,
            )
    axes.set_xlabel("FLOPs to the first token, of the base's prefill")
    share_axis(axes, [r[key] for r in records for key in _PANELS], "Agreement with the base")


def _label(artefact: str, text: str, artefacts: int, texts: int) -> str:
    path = Path(artefact)
    name = path.parent.name if path.name == "artefact" else path.name
    if texts == 1:
        return name
    return f"{name}, {Path(text).stem}" if artefacts > 1 else Path(text).stem
