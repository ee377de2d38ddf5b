"""The sections on how training went: closeness to the base, consistency by layer, losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lit_kvpred.report.charts import POINTS, layer_chart, progress_chart
from lit_kvpred.report.document import Block, Figure, Gallery, Paragraph, Section, Table
from lit_kvpred.report.formats import ABSENT, count, fixed
from lit_kvpred.report.plots import (
    AUXILIARY,
    BASE,
    FAINT,
    PREDICTED,
    RUNS,
    Colour,
    share_axis,
    value_axis,
)
from lit_kvpred.report.records import Run
from lit_kvpred.report.schema import Evaluation, TextMeasures
from lit_kvpred.report.series import Points, Progress, measured, progress_of, thinned
from lit_kvpred.report.tables import layer_table, text_table

_LOSS_ROWS = 12
_LOSS_PARTS: Mapping[str, tuple[str, Colour]] = {
    "train/base_loss": ("Base cross-entropy", BASE),
    "train/auxiliary_loss": ("Auxiliary cross-entropy", AUXILIARY),
    "train/consistency_loss": ("Consistency", RUNS[3]),
    "train/distillation_loss": ("Distillation", RUNS[2]),
    "train/hidden_loss": ("Hidden states", RUNS[4]),
}


def text_section(run: Run) -> Section:
    """Agreement, KL and cross-entropy on held-out text as training went on."""
    title = "Closeness to the base"
    lines = [line for line in run.fit if line.text is not None]
    if not lines:
        return Section(title, [Paragraph("It was not measured during training.")])
    progress = progress_of(run)
    blocks: list[Block] = []
    if len(lines) == 1:
        blocks.append(Paragraph("One evaluation so far, so there is no curve to draw."))
    else:
        blocks.append(Gallery(_text_figures(lines, progress)))
    return Section(title, [*blocks, text_table(lines, progress)])


def layers_section(run: Run) -> Section:
    """How far predicted rows are from exact ones in each layer, first and last evaluation."""
    title = "Consistency error by layer"
    texts = [
        (line, line.text) for line in run.fit if line.text is not None and _has_layers(line.text)
    ]
    if not texts:
        return Section(title, [Paragraph("It was not measured during training.")])
    (first_line, first), (last_line, last) = texts[0], texts[-1]
    labels = (f"Step {count(first_line.global_step)}", f"Step {count(last_line.global_step)}")
    blocks: list[Block] = []
    if len(texts) == 1:
        blocks.append(Paragraph("One evaluation so far, so there is no earlier one beside it."))
    figures: list[Figure] = []
    columns: dict[str, Sequence[float]] = {}
    for kind in ("keys", "values"):
        earlier = getattr(first, f"consistency_{kind}") if len(texts) > 1 else ()
        later = getattr(last, f"consistency_{kind}")
        if not later:
            continue
        name = f"{kind.capitalize()}: mean absolute error by base layer"
        figures.append(layer_chart(f"layers-{kind}", name, earlier, later, labels))
        columns |= {f"{kind.capitalize()}, {labels[0]}": earlier} if earlier else {}
        columns |= {f"{kind.capitalize()}, {labels[1]}": later}
    table = layer_table("Mean absolute error of predicted rows (in the rows' own unit)", columns)
    return Section(title, [*blocks, Gallery(figures, [table])])


def loss_section(run: Run) -> Section:
    """Training and validation losses."""
    title = "Loss"
    progress = progress_of(run)
    losses = {
        name: thinned(progress.of(curve), POINTS)
        for name, curve in run.curves.items()
        if name == "train/loss" or name == "val/loss" or name in _LOSS_PARTS
    }
    if not losses:
        return Section(title, [Paragraph("The run folder's metrics.csv holds no loss.")])
    total = {
        "Training": (losses.get("train/loss", []), FAINT, "-"),
        "Validation": (losses.get("val/loss", []), PREDICTED, "o-"),
    }
    parts = {
        label: (losses.get(name, []), colour, "-") for name, (label, colour) in _LOSS_PARTS.items()
    }
    figures = [
        progress_chart(name, f"{what} by {progress.unit}", drawn, axis, progress.unit)
        for name, what, axis, lines in (
            ("loss", "Training and validation loss", "Loss (nats/token, weighted)", total),
            ("loss-parts", "Parts of the training loss", "Loss (unweighted)", parts),
        )
        if (drawn := {label: line for label, line in lines.items() if line[0]})
    ]
    return Section(title, [Gallery(figures, [_loss_table(losses, progress)])])


def _text_figures(lines: Sequence[Evaluation], progress: Progress) -> list[Figure]:
    def points(attribute: str) -> Points:
        return measured(lines, progress, lambda line: getattr(line.text, attribute, math.nan))

    agreement = {
        "All positions": (points("agreement"), PREDICTED, "o-"),
        "First 8": (points("agreement_first8"), FAINT, "^--"),
    }
    kl = {"KL": (points("kl"), PREDICTED, "o-")}
    cross_entropy = {
        "Base": (points("cross_entropy_base"), BASE, "s-"),
        "Predicted": (points("cross_entropy"), PREDICTED, "o-"),
        "Auxiliary alone": (points("cross_entropy_auxiliary"), AUXILIARY, "^-"),
    }
    charts = (
        ("Agreement with the base", "Agreement", agreement, share_axis),
        ("KL to the base", "KL (nats/token)", kl, value_axis),
        ("Cross-entropy", "Cross-entropy (nats/token)", cross_entropy, value_axis),
    )
    return [
        progress_chart(
            f"text-{place}", f"{what} by {progress.unit}", shown, axis, progress.unit, scale
        )
        for place, (what, axis, lines_, scale) in enumerate(charts)
        if (shown := {label: line for label, line in lines_.items() if line[0]})
    ]


def _has_layers(text: TextMeasures) -> bool:
    return any(map(math.isfinite, text.consistency_keys + text.consistency_values))


def _loss_table(losses: Mapping[str, Points], progress: Progress) -> Table:
    end = max(points[-1][0] for points in losses.values())
    rows = []
    for part in range(1, _LOSS_ROWS + 1):
        # The first piece has its lower end too: an evaluation at step 0.
        low = end * (part - 1) / _LOSS_ROWS if part > 1 else -1.0
        high = end * part / _LOSS_ROWS
        cells = []
        for points in losses.values():
            values = [value for seen, value in points if low < seen <= high]
            cells.append(fixed(sum(values) / len(values)) if values else ABSENT)
        if any(cell != ABSENT for cell in cells):
            rows.append((count(high), *cells))
    header = (f"Up to {progress.unit}", *losses)
    return Table("Loss, mean over each twelfth of the training", header, rows, text_columns=0)
