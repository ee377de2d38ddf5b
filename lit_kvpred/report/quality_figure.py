"""The figure of `lit-kvpred quality`: what the first tokens are worth for what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from lit_kvpred.report.plots import RUNS

_STYLE = {
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "lit-kvpred",
    "text.parse_math": False,
}
_MARKS = "os^Dv"


def draw_quality(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw agreement against arithmetic, one line an artefact and text, one point a tail.

    Args:
        records: Of `lit_kvpred.evaluation.held_out.measure_text`, with ``artefact`` and ``text``.
        file: Its suffix decides the format.
    """
    lines = list(dict.fromkeys((r["artefact"], r["text"]) for r in records))
    artefacts = list(dict.fromkeys(artefact for artefact, _ in lines))
    texts = list(dict.fromkeys(text for _, text in lines))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name, title in zip(
            panels,
            ("agreement_first8", "agreement"),
            ("first 8 tokens", "all measured tokens"),
            strict=True,
        ):
            for artefact, text in lines:
                points = [r for r in records if (r["artefact"], r["text"]) == (artefact, text)]
                points.sort(key=lambda record: record["flops"])
                axes.plot(
                    [record["flops"] for record in points],
                    [record[name] for record in points],
                    color=RUNS[artefacts.index(artefact) % len(RUNS)].light,
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
                    )
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("FLOPs to the first token, of the base's prefill")
        panels[0].set_ylabel("agreement with the base")
        panels[1].legend(loc="lower right", fontsize=8)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _label(artefact: str, text: str, artefacts: int, texts: int) -> str:
    path = Path(artefact)
    name = path.parent.name if path.name == "artefact" else path.name
    if texts == 1:
        return name
    return f"{name}, {Path(text).stem}" if artefacts > 1 else Path(text).stem
