"""Quantities against training progress: aligning, thinning out, reading between points."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from lit_kvpred.report.records import Curve, Run
from lit_kvpred.report.schema import Evaluation

Item = TypeVar("Item")
Points = list[tuple[float, float]]
"""Pairs of tokens seen (or steps) and value."""


@dataclass(frozen=True)
class Progress:
    """Converts optimiser steps to tokens seen, where a run recorded any.

    Attributes:
        unit: "tokens seen", or "optimiser steps" where no tokens were recorded.
        known: Pairs of step and tokens, in the order of the steps.
    """

    unit: str
    known: Curve

    def at(self, step: int) -> float:
        """Progress at a step, linear between the recorded ones and beyond the last one."""
        if self.unit == "optimiser steps":
            return step
        index = bisect.bisect_left(self.known, (step, -math.inf))
        if index < len(self.known) and self.known[index][0] == step:
            return self.known[index][1]
        left = self.known[index - 1] if index else (0, 0.0)
        if index == len(self.known):
            return left[1] * step / left[0] if left[0] else left[1]
        right = self.known[index]
        share = (step - left[0]) / (right[0] - left[0])
        return left[1] + share * (right[1] - left[1])

    def of(self, curve: Curve) -> Points:
        """A logged curve against progress."""
        return [(self.at(step), value) for step, value in curve]


def progress_of(run: Run) -> Progress:
    """How far a run had come at each of its steps."""
    known = dict(run.curves.get("tokens_seen", ()))
    known |= {
        line.global_step: line.tokens_seen for line in run.fit if math.isfinite(line.tokens_seen)
    }
    # Tokens at step 0 alone would tell nothing about the steps after it.
    if not any(known.values()):
        return Progress("optimiser steps", ())
    return Progress("tokens seen", tuple(sorted(known.items())))


def measured(
    evaluations: Sequence[Evaluation], progress: Progress, value: Callable[[Evaluation], float]
) -> Points:
    """A quantity of each evaluation against progress, where it has a finite value."""
    pairs = ((progress.at(line.global_step), value(line)) for line in evaluations)
    return [(seen, number) for seen, number in pairs if math.isfinite(number)]


def thinned(points: Points, most: int) -> Points:
    """At most so many points: the means of equally long pieces of the curve."""
    if len(points) <= most:
        return points
    edges = [round(piece * len(points) / most) for piece in range(most + 1)]
    pieces = [points[start:end] for start, end in pairwise(edges)]
    return [
        (sum(x for x, _ in piece) / len(piece), sum(y for _, y in piece) / len(piece))
        for piece in pieces
    ]


def spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def value_at(points: Points, seen: float) -> float:
    """A curve's value at some progress, linear between its points, NaN outside them."""
    index = bisect.bisect_left(points, (seen, -math.inf))
    if index < len(points) and points[index][0] == seen:
        return points[index][1]
    if index in (0, len(points)):
        return math.nan
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (seen - x0) / (x1 - x0)
