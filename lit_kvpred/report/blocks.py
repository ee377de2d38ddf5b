"""The parts that every evaluation's section is made of, during training and by a command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lit_kvpred.report.charts import accuracy_chart, rejection_chart, speedup_chart, ttft_chart
from lit_kvpred.report.document import Block, Gallery, Paragraph
from lit_kvpred.report.formats import count, duration, plural, significant
from lit_kvpred.report.schema import Accuracy, Evaluation, Timing
from lit_kvpred.report.series import Progress
from lit_kvpred.report.sweep_records import DRAFT_SETTINGS, setting_name
from lit_kvpred.report.tables import (
    accuracy_table,
    correction_table,
    edit_similarity_table,
    flops_table,
    plain,
    rejection_table,
    sample_table,
    timing_groups,
    ttft_table,
)

_SAMPLES = 20


def measured_at(line: Evaluation) -> str:
    """When an evaluation was made, as a sentence."""
    parts = [f"at step {count(line.global_step)}"]
    if math.isfinite(line.epoch):
        parts.append(f"epoch {count(line.epoch)}")
    if math.isfinite(line.tokens_seen):
        parts.append(f"after {plural(line.tokens_seen, 'training token')}")
    if line.stage == "fit" and math.isfinite(line.wall_s):
        parts.append(f"{duration(line.wall_s)} into the run")
    return f"Measured {', '.join(parts)}."


def timing_blocks(prefix: str, timing: Sequence[Timing]) -> list[Block]:
    """Plots and tables of the time to first token, for each set of conditions.

    Args:
        prefix: Tells the drawings from those of other evaluations in the page.
        timing: At least one row.

    Returns:
        The blocks.
    """
    blocks: list[Block] = []
    for index, (conditions, rows) in enumerate(timing_groups(timing)):
        name = f"{prefix}-{index}"
        figures = []
        if any(row.base or row.kv_prediction or row.auxiliary for row in rows):
            title = f"Time to first token by prompt length; {conditions}"
            figures.append(ttft_chart(f"ttft-{name}", title, rows))
        if any(math.isfinite(row.speedup) for row in rows):
            title = f"Speed-up by prompt length; {conditions}"
            figures.append(speedup_chart(f"speedup-{name}", title, rows))
        blocks += [Gallery(figures), ttft_table(conditions, rows), flops_table(conditions, rows)]
    return blocks


def accuracy_blocks(prefix: str, accuracy: Sequence[Accuracy]) -> list[Block]:
    """Plot and tables of the scores, and what a single answer weighs in them.

    Args:
        prefix: Tells the drawings from those of other evaluations in the page.
        accuracy: At least one row.

    Returns:
        The blocks.
    """
    prompts = min(row.n for row in accuracy)
    blocks: list[Block] = []
    if math.isfinite(prompts) and prompts > 0:
        worth = significant(100 / prompts)
        blocks.append(
            Paragraph(
                f"On the task with the fewest prompts, {plural(prompts, 'prompt')}, a single"
                f" answer moves the score by {worth} points."
            )
        )
    blocks.append(Gallery([accuracy_chart(f"accuracy-{prefix}", "Score by task", accuracy)]))
    blocks.append(accuracy_table(accuracy))
    similarity = edit_similarity_table(accuracy)
    return [*blocks, similarity] if similarity is not None else blocks


def correction_blocks(prefix: str, lines: Sequence[Evaluation], progress: Progress) -> list[Block]:
    """Settings and statistics of the correction; every line has some.

    Args:
        prefix: Tells the drawings from those of other evaluations in the page.
        lines: At least one.
        progress: Of the run.

    Returns:
        The blocks, with a plot of the last line's rejections where any were counted.
    """
    last = lines[-1].correction
    assert last is not None
    settings = ", ".join(f"{setting_name(k)} {plain(v)}" for k, v in _settings(last.settings))
    blocks: list[Block] = [Paragraph(f"Settings: {settings}.")] if settings else []
    blocks.append(correction_table(lines, progress))
    rejections = {name: checks.rejected_at for name, checks in last.systems.items()}
    rejections = {name: counts for name, counts in rejections.items() if any(counts)}
    if rejections:
        title = "First rejections by place in the draft"
        figure = rejection_chart(f"rejections-{prefix}", title, rejections)
        blocks.append(Gallery([figure], [rejection_table(title, rejections)]))
    return blocks


def _settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those that act: what is about sparse drafts only with one."""
    for name, value in settings.items():
        if value is None or (name == "tpot_budget" and settings.get("slice_rows") != "auto"):
            continue
        if name not in DRAFT_SETTINGS or settings.get("draft") is not None:
            yield name, value


def sample_blocks(line: Evaluation) -> list[Block]:
    """Sample completions of an evaluation, one table a prompt."""
    tables: list[Block] = [
        sample_table(position, sample)
        for position, sample in enumerate(line.samples[:_SAMPLES], start=1)
    ]
    note = "Spaces at the ends of a line, tabs and line ends are drawn: · → ↵."
    if len(line.samples) > _SAMPLES:
        note += f" {_SAMPLES} of {len(line.samples)} samples are shown, report.json has them all."
    return [Paragraph(note), *tables]
