"""What came out of a run, in two sentences and a few figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lit_kvpred.report.charts import SYSTEM_LABELS
from lit_kvpred.report.document import Tile
from lit_kvpred.report.formats import count, duration, factor, fixed, percent, plural
from lit_kvpred.report.records import Run
from lit_kvpred.report.schema import SYSTEMS, Accuracy, Evaluation, TextMeasures, Timing
from lit_kvpred.report.tables import conditions, main_timing

Part = TypeVar("Part")


@dataclass(frozen=True)
class KeyFigures:
    """The measures that the headline speaks of, each the latest there is.

    Attributes:
        timing: At the longest prompt, for the smallest batch measured.
        text: Closeness to the base.
        accuracy: Per task.
    """

    timing: Timing | None
    text: TextMeasures | None
    accuracy: tuple[Accuracy, ...]

    @property
    def prompts(self) -> float:
        """Prompts of all tasks together."""
        return sum(row.n for row in self.accuracy)

    @property
    def measure(self) -> str:
        """What the mean over the tasks is of: their finest measure where they share one."""
        finer = self.accuracy and all(row.edit_similarity for row in self.accuracy)
        return "Edit similarity" if finer else "Accuracy"

    def mean_score(self, system: str) -> float:
        """Mean of `measure` over the tasks, NaN unless the system has a score on every one."""
        finer = self.measure == "Edit similarity"
        tasks = [row.edit_similarity if finer else row.scores for row in self.accuracy]
        scores = [systems.get(system, math.nan) for systems in tasks]
        return sum(scores) / len(scores) if scores else math.nan


def key_figures(run: Run) -> KeyFigures:
    """The figures of training's latest evaluations, else of the test, else of validate."""
    others = [run.latest("test"), run.latest("validate")]
    lines = [*reversed(run.fit), *(line for line in others if line is not None)]
    timing = _first(lines, lambda line: line.timing) or ()
    return KeyFigures(
        timing=main_timing(timing)[-1] if timing else None,
        text=_first(lines, lambda line: line.text),
        accuracy=_first(lines, lambda line: line.accuracy) or (),
    )


def headline(figures: KeyFigures) -> str:
    """Time, agreement and accuracy in words; what is missing is said to be."""
    return f"{_time_sentence(figures)} {_accuracy_sentence(figures)}"


def tiles(figures: KeyFigures) -> list[Tile]:
    """The same as figures to glance at; only those that were measured."""
    shown: list[Tile] = []
    timing, text = figures.timing, figures.text
    if timing is not None:
        where = f"{plural(timing.prompt_tokens, 'prompt token')}, {conditions(timing)}"
        shown.append(Tile("Speed-up to the first token", factor(timing.speedup), where))
        if timing.base is not None and timing.kv_prediction is not None:
            shown.append(
                Tile(
                    "Time to first token",
                    duration(timing.kv_prediction.median),
                    f"base {duration(timing.base.median)}",
                )
            )
    if text is not None:
        shown.append(
            Tile(
                "Agreement with the base",
                percent(text.agreement),
                f"KL {fixed(text.kl)} nats/token, {plural(text.tokens, 'position')}",
            )
        )
    if figures.accuracy:
        scores = [
            f"{_in_text(system)} {percent(figures.mean_score(system))}"
            for system in ("base", "predicted")
            if math.isfinite(figures.mean_score(system))
        ]
        best = "corrected" if math.isfinite(figures.mean_score("corrected")) else "predicted"
        label = f"{figures.measure}, {best}, {plural(len(figures.accuracy), 'task')}"
        shown.append(Tile(label, percent(figures.mean_score(best)), ", ".join(scores)))
    return shown


def _time_sentence(figures: KeyFigures) -> str:
    text = figures.text
    agreement = (
        "agreement with the base has not been measured"
        if text is None or not math.isfinite(text.agreement)
        else "the base picks the same next token on predicted rows as on exact ones at"
        f" {percent(text.agreement)} of the positions"
    )
    timing = figures.timing
    if timing is None or timing.base is None or timing.kv_prediction is None:
        return f"The time to first token has not been measured; {agreement}."
    return (
        f"With a prompt of {plural(timing.prompt_tokens, 'token')} the first token comes after"
        f" {duration(timing.kv_prediction.median)} instead of {duration(timing.base.median)}"
        f" ({_as_fast(timing)}), and {agreement}."
    )


def _as_fast(timing: Timing) -> str:
    if not math.isfinite(timing.speedup):
        return "speed-up unknown"
    if timing.speedup < 1:
        return f"slower than the base: {factor(timing.speedup)} its speed"
    return f"{factor(timing.speedup)} as fast"


def _accuracy_sentence(figures: KeyFigures) -> str:
    scores = [
        f"{percent(figures.mean_score(system))} {_in_text(system)}"
        for system in SYSTEMS
        if math.isfinite(figures.mean_score(system))
    ]
    if not scores:
        return "Accuracy has not been measured."
    tasks = figures.accuracy
    over = tasks[0].task if len(tasks) == 1 else f"{count(len(tasks))} tasks (their mean)"
    prompts = f", {plural(figures.prompts, 'prompt')}" if math.isfinite(figures.prompts) else ""
    return f"{figures.measure} on {over}{prompts}: {', '.join(scores)}."


def _in_text(system: str) -> str:
    label = SYSTEM_LABELS[system]
    return label if label.startswith("Sirius") else label.lower()


def _first(lines: Sequence[Evaluation], part: Callable[[Evaluation], Part]) -> Part | None:
    return next((found for found in map(part, lines) if found), None)
