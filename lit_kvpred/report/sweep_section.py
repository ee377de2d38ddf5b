"""The section on a sweep over correction settings."""

from __future__ import annotations

from collections.abc import Sequence

from lit_kvpred.report.document import Block, Gallery, Paragraph, Section
from lit_kvpred.report.sweep_plot import sweep_charts
from lit_kvpred.report.sweep_records import SweepRow, by_task
from lit_kvpred.report.sweep_table import sweep_table

_NOTE = (
    "Each line is one setting, its points are thresholds in the order named on the first line; up"
    " and to the left is better. The dotted line is the base."
)
_TERMS = (
    "Same text, same first: share of answers that are the base's own to the last token, or in their"
    " first token; same tokens: share of an answer up to its first difference. Accepted, taken"
    " back, kept wrong: shares of drafted tokens; the last are rejected tokens that stay."
)


def sweep_section(rows: Sequence[SweepRow]) -> Section:
    """Plots and a table for each task of a sweep.

    Args:
        rows: At least one.
    """
    blocks: list[Block] = [Paragraph(_TERMS)]
    for place, own in enumerate(by_task(rows).values()):
        figures = sweep_charts(f"sweep-{place}", own)
        if figures:
            blocks.append(Gallery(figures, note=_NOTE if place == 0 else ""))
        blocks.append(sweep_table(own))
    return Section("Correction settings", blocks)
