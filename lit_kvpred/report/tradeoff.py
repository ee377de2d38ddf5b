"""Accuracy against time to first token: what training buys at which speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from lit_kvpred.report.charts import SYSTEM_COLOURS, SYSTEM_LABELS
from lit_kvpred.report.document import Block, Figure, Gallery, Paragraph, Table
from lit_kvpred.report.formats import count, duration, percent
from lit_kvpred.report.plots import draw, share_axis, tick_seconds
from lit_kvpred.report.schema import Evaluation, Timing
from lit_kvpred.report.tables import main_timing

_ABSENT = "No evaluation measured accuracy and time to first token together."
_MARKERS = {
    "base": "s", "predicted": "o", "corrected": "D", "sparse": "X", "sirius": "P",
    "sirius_catch_up": "v", "auxiliary": "^",
}  # fmt: skip
_MOVING = ("predicted", "corrected", "sirius_catch_up")  # with training
_TASK_PLOTS = 4  # more would bury the rest of the page; the table holds every task


def tradeoff_blocks(lines: Sequence[Evaluation]) -> list[Block]:
    """A plot for each task whose score was measured together with the time to first token.

    Args:
        lines: The evaluations during training, in the order of their steps.

    Returns:
        The plots, at the longest prompt that all these evaluations timed, or a sentence.
    """
    timed = _at_longest_prompt(lines)
    if not timed:
        return [Paragraph(_ABSENT)]
    last = [line for line in lines if line.global_step in timed][-1]
    longest = timed[last.global_step].prompt_tokens
    axis = f"Time to first token at {count(longest)} prompt tokens"
    figures, rows = [], []
    for index, accuracy in enumerate(last.accuracy):
        points = accuracy_over_time(lines, accuracy.task, timed)
        if points and index < _TASK_PLOTS:
            title = f"{accuracy.task}: {accuracy.finest[0]} against time to first token"
            figures.append(tradeoff_chart(f"tradeoff-{index}", title, points, axis))
        for system, pairs in points.items():
            seconds, share = pairs[-1]
            rows.append(
                (
                    accuracy.task,
                    accuracy.finest[0],
                    SYSTEM_LABELS[system],
                    duration(seconds),
                    percent(share),
                )
            )
    if not rows:
        return [Paragraph(_ABSENT)]
    header = ("Task", "Measure", "System", "Time to first token, median", "Score")
    title = f"Score against time to first token at {count(longest)} prompt tokens, last evaluation"
    note = (
        "One mark for each evaluation, the last one larger; up and to the left is better. The first"
        " token comes from predicted rows, corrected or not."
    )
    return [Gallery(figures, [Table(title, header, rows, text_columns=3)], note)]


def _at_longest_prompt(lines: Sequence[Evaluation]) -> dict[int, Timing]:
    rows = {
        line.global_step: {row.prompt_tokens: row for row in main_timing(line.timing)}
        for line in lines
        if line.timing and line.accuracy
    }
    shared = set.intersection(*map(set, rows.values())) if rows else set()
    return {step: by_length[max(shared)] for step, by_length in rows.items()} if shared else {}


def tradeoff_chart(
    name: str, title: str, points: Mapping[str, Sequence[tuple[float, float]]], ttft_label: str
) -> Figure:
    """Accuracy against time to first token.

    Args:
        name: Identifier of the drawing.
        title: What is plotted against what.
        points: For each system, pairs of seconds and share; those that start from predicted rows
            have one an evaluation, the others one.
        ttft_label: Axis label, without the unit.

    Returns:
        The figure.
    """
    scale, unit = tick_seconds(seconds for pairs in points.values() for seconds, _ in pairs)
    largest = max(scale * seconds for pairs in points.values() for seconds, _ in pairs)

    def paint(axes: Axes) -> None:
        for system, pairs in points.items():
            moving = system in _MOVING
            seconds = [scale * second for second, _ in pairs]
            shares = [share for _, share in pairs]
            axes.plot(
                seconds,
                shares,
                _MARKERS[system] + ("-" if moving else ""),
                color=SYSTEM_COLOURS[system].mark,
                markersize=5 if moving else 9,
                linewidth=1.0,
                label=SYSTEM_LABELS[system],
            )
            if len(pairs) > 1:
                # The last evaluation, larger: which way the training went.
                axes.plot(
                    seconds[-1],
                    shares[-1],
                    _MARKERS[system],
                    color=SYSTEM_COLOURS[system].mark,
                    markersize=9,
                )
        axes.set_xlim(-0.02 * largest, 1.08 * largest)
        share_axis(axes, [share for pairs in points.values() for _, share in pairs], "Score")
        axes.set_xlabel(f"{ttft_label} ({unit})")

    return Figure(title, draw(name, title, paint))


def accuracy_over_time(
    evaluations: Sequence[Evaluation], task: str, timed: Mapping[int, Timing]
) -> dict[str, list[tuple[float, float]]]:
    """Pairs of time to first token and score, for `tradeoff_chart`.

    Args:
        evaluations: In the order of their steps.
        task: Whose score.
        timed: For each step with a timing, the row of the prompt length to plot.

    Returns:
        For each system that has any: those that start from predicted rows at every evaluation with
        both measures, the others at the last one.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for line in evaluations:
        row = next((row for row in line.accuracy if row.task == task), None)
        timing = timed.get(line.global_step)
        if row is None or timing is None:
            continue
        # The first token comes from predicted rows, corrected or not.
        seconds = {
            "base": timing.base,
            "predicted": timing.kv_prediction,
            "corrected": timing.kv_prediction,
            "sparse": timing.base,
            "sirius": timing.base,
            "sirius_catch_up": timing.kv_prediction,
            "auxiliary": timing.auxiliary,
        }
        for system, share in row.finest[1].items():
            taken = seconds[system]
            if taken is not None:
                earlier = points.get(system, []) if system in _MOVING else []
                points[system] = [*earlier, (taken.median, share)]
    return {system: points[system] for system in SYSTEM_LABELS if system in points}
