"""What the reader has been shown of a batch of answers."""

from __future__ import annotations

from collections.abc import Generator

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.events import Event, RetractionEvent, TokenEvent
from lit_kvpred.generation.reconciliation import Verdict


class Shown:
    """Counts of shown tokens, and the events that change them.

    Args:
        batch_size: Number of answers.

    Attributes:
        counts: Tokens shown of each answer.
    """

    def __init__(self, batch_size: int) -> None:
        self.counts = [0] * batch_size

    def show(
        self, answer: AnswerState, *, exact: bool, limit: int | None = None
    ) -> Generator[Event, None, None]:
        """Show what was not shown yet, of each answer at most its first ``limit`` tokens."""
        for row, tokens in enumerate(answer.tokens):
            for token in tokens[self.counts[row] : limit]:
                yield TokenEvent(row, token, exact)
                self.counts[row] += 1

    def retract(self, verdict: Verdict) -> Generator[Event, None, None]:
        """Take back what a verify pass did not keep."""
        for row, (settled, kept) in enumerate(zip(verdict.settled, verdict.kept, strict=True)):
            surplus = self.counts[row] - settled - kept
            if surplus > 0:
                yield RetractionEvent(row, surplus)
                self.counts[row] -= surplus
