"""Several runs side by side: the same curves in one plot, the same measures at equal tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lit_kvpred.report.charts import POINTS, progress_chart
from lit_kvpred.report.document import Block, Figure, Gallery, Paragraph, Section, Table
from lit_kvpred.report.formats import ABSENT, count, duration, factor, fixed, percent
from lit_kvpred.report.headline import key_figures
from lit_kvpred.report.plots import RUNS, Colour, Scale, share_axis, shorten, value_axis
from lit_kvpred.report.records import Run
from lit_kvpred.report.series import Points, measured, progress_of, thinned, value_at

_FORMS = ("o-", "s--", "^-.", "D:", "v-")


@dataclass(frozen=True)
class Measure:
    """A quantity that runs are compared by.

    Attributes:
        name: In words.
        axis: Quantity and unit.
        scale: Kind of its axis.
        show: Writes a value into a table.
        of: The curve of a run against tokens seen.
    """

    name: str
    axis: str
    scale: Scale
    show: Callable[[float], str]
    of: Callable[[Run], Points]


@dataclass(frozen=True)
class EqualTokens:
    """Every run's measures after the same number of tokens.

    Attributes:
        tokens: The most that every run has all its measures at or beyond.
        values: For each run, in order, a value for each measure; NaN where it was not measured.
    """

    tokens: float
    values: tuple[tuple[float, ...], ...]


def _text_measure(attribute: str) -> Callable[[Run], Points]:
    def curve(run: Run) -> Points:
        return measured(
            run.fit, progress_of(run), lambda line: getattr(line.text, attribute, math.nan)
        )

    return curve


def _validation_loss(run: Run) -> Points:
    return thinned(progress_of(run).of(run.curves.get("val/loss", ())), POINTS)


MEASURES = (
    Measure("Validation KL", "KL (nats/token)", value_axis, fixed, _text_measure("kl")),
    Measure("Agreement", "Agreement", share_axis, percent, _text_measure("agreement")),
    Measure(
        "Cross-entropy on predicted rows",
        "Cross-entropy (nats/token)",
        value_axis,
        fixed,
        _text_measure("cross_entropy"),
    ),
    Measure("Validation loss", "Loss (nats/token, weighted)", value_axis, fixed, _validation_loss),
)


def comparison_section(runs: Sequence[Run]) -> Section:
    """The section on several runs, the reported one first."""
    blocks: list[Block] = [Paragraph(note) for note in _notes(runs)]
    counted = [run for run in runs if progress_of(run).unit == "tokens seen"]
    figures = _figures(counted)
    if figures:
        blocks.append(Gallery(figures))
    equal = at_equal_tokens(counted)
    if equal is not None:
        blocks.append(_equal_table(counted, equal))
    blocks += _final_tables(runs)
    return Section("Comparison with other runs", blocks)


def at_equal_tokens(runs: Sequence[Run]) -> EqualTokens | None:
    """The measures after as many tokens as all runs have come to, linear between evaluations.

    Args:
        runs: Runs that record the tokens they saw.

    Returns:
        The values, or None where there are not two runs with an evaluation.
    """
    ends = [_end(run) for run in runs]
    if len(runs) < 2 or not all(ends):
        return None
    tokens = min(ends)
    return EqualTokens(
        tokens,
        tuple(tuple(value_at(measure.of(run), tokens) for measure in MEASURES) for run in runs),
    )


def _end(run: Run) -> float:
    ends = [points[-1][0] for measure in MEASURES if (points := measure.of(run))]
    # A measure that was taken at the start only has no curve to end.
    return min((end for end in ends if end > 0), default=0.0)


def _notes(runs: Sequence[Run]) -> list[str]:
    notes = []
    bases = {str(run.fact("base", "fingerprint")) for run in runs if run.facts}
    if len(bases) > 1:
        notes.append(
            "The runs have different bases: their KL, agreement and losses are not comparable."
        )
    objectives = {str(run.facts.get("objective")) for run in runs if run.facts}
    if len(objectives) > 1:
        notes.append(
            "The runs have different objectives: their validation losses are not comparable,"
            " KL, agreement and cross-entropy are."
        )
    uncounted = [run.name for run in runs if progress_of(run).unit != "tokens seen"]
    if uncounted:
        notes.append(f"No tokens seen are recorded for {', '.join(uncounted)}: not in the curves.")
    return notes


def _figures(runs: Sequence[Run]) -> list[Figure]:
    figures = []
    for index, measure in enumerate(MEASURES):
        lines: dict[str, tuple[Points, Colour, str]] = {}
        for place, run in enumerate(runs):
            points = measure.of(run)
            if points:
                label = shorten(run.name)
                lines[label] = (points, RUNS[place % len(RUNS)], _FORMS[place % len(_FORMS)])
        if lines:
            title = f"{measure.name} by tokens seen"
            figures.append(
                progress_chart(
                    f"runs-{index}", title, lines, measure.axis, "tokens seen", measure.scale
                )
            )
    return figures


def _equal_table(runs: Sequence[Run], equal: EqualTokens) -> Table:
    rows = [
        (
            run.name,
            *(measure.show(value) for measure, value in zip(MEASURES, values, strict=True)),
        )
        for run, values in zip(runs, equal.values, strict=True)
    ]
    title = (
        f"After {count(equal.tokens)} tokens, linear between evaluations"
        " (KL, cross-entropy and loss in nats per token)"
    )
    return Table(title, ("Run", *(measure.name for measure in MEASURES)), rows)


def _final_tables(runs: Sequence[Run]) -> list[Table]:
    closeness, speed = [], []
    for run in runs:
        figures = key_figures(run)
        line = run.latest("fit")
        text, timing = figures.text, figures.timing
        closeness.append(
            (
                run.name,
                str(run.fact("auxiliary", "kind") or ABSENT),
                count(line.tokens_seen) if line else ABSENT,
                duration(line.wall_s) if line else ABSENT,
                fixed(text.kl) if text else ABSENT,
                percent(text.agreement) if text else ABSENT,
                fixed(text.cross_entropy) if text else ABSENT,
            )
        )
        speed.append(
            (
                run.name,
                factor(timing.speedup) if timing else ABSENT,
                count(timing.prompt_tokens) if timing else ABSENT,
                *(percent(figures.mean_score(s)) for s in ("base", "predicted", "corrected")),
                ", ".join(row.task for row in figures.accuracy) or ABSENT,
            )
        )
    closeness_header = (
        "Run",
        "Auxiliary",
        "Tokens seen",
        "Wall time",
        "KL (nats/token)",
        "Agreement",
        "Cross-entropy (nats/token)",
    )
    speed_header = (
        "Run",
        "Speed-up",
        "At prompt tokens",
        "Score, base",
        "Predicted",
        "Corrected",
        "Mean over",
    )
    return [
        Table("Closeness to the base at each run's end", closeness_header, closeness, 2),
        Table("Speed and accuracy at each run's end", speed_header, speed),
    ]
