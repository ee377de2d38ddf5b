"""Measures of one generation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from lit_kvpred.generation.reconciliation import Verdict
from lit_kvpred.sirius.metrics import average_advance_length, effective_density

# The draft of a predicted prompt is the dense base itself (Sirius 13.1, W1).
_DENSE = 1.0


@dataclass
class GenerationStats:
    """Measures of one call over its batch.

    Attributes:
        prompt_tokens: Real prompt tokens.
        new_tokens: Tokens of the final answers.
        ttft_s: Seconds from the call to the first token id on the host.
        time_to_exact_s: Seconds until cache and text were exact; None if they never were.
        total_s: Seconds until the last token.
        draft_step_s: Seconds of each decode step on a prompt that was not exact yet.
        exact_step_s: Seconds of each decode step after that.
        riding_rows: Exact prompt rows that rode on decode steps.
        sparse_step_s: Seconds of each step of a sparse draft.
        check_s: Seconds of each verify pass of a sparse draft.
        drafted: Tokens written on the predicted prompt, or by a sparse draft, and judged.
        accepted: Of these, accepted by the exact base.
        retracted: Of these, taken back.
        unrecoverable: Of these, rejected but kept because the policy forbids taking them back.
        aal: Mean advance of the verify passes (Sirius 5), accepted tokens + the base's own one, if
            the answer went on; None without any. With a sparse draft it is that of its periods,
            without those in which an answer ended.
        effective_density: Weight reads per token relative to exact decoding (Sirius 5) of the
            drafted part; 1 is the best that a dense draft can reach. None without a verify pass.
        advances: Tokens gained by each of these periods, the base's own included.
        rejected_at: With a sparse draft, how often the first rejected token was the i-th drafted
            one of its period.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    ttft_s: float = 0.0
    time_to_exact_s: float | None = None
    total_s: float = 0.0
    draft_step_s: list[float] = field(default_factory=list)
    exact_step_s: list[float] = field(default_factory=list)
    riding_rows: int = 0
    sparse_step_s: list[float] = field(default_factory=list)
    check_s: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    retracted: int = 0
    unrecoverable: int = 0
    aal: float | None = None
    effective_density: float | None = None
    advances: list[int] = field(default_factory=list)
    rejected_at: list[int] = field(default_factory=list)

    def add_reconciliation(self, verdict: Verdict) -> None:
        """Count the verify pass of what was drafted on a predicted prompt."""
        self._add(verdict)
        self.aal = average_advance_length(
            # An answer may end with rejected tokens that the reader has already seen.
            [max(1, a + added) for a, added in zip(verdict.accepted, verdict.added, strict=True)]
        )
        period = 1 + max(verdict.drafted)
        self.effective_density = effective_density(period, _DENSE, self.aal)

    def add_check(
        self, verdict: Verdict, ended: Sequence[bool], period: int, density: float
    ) -> None:
        """Count the verify pass of a period.

        Args:
            verdict: What it decided.
            ended: Per batch entry, whether the answer was complete before or after it.
            period: Tokens from one check to the next.
            density: Of a sparse step.
        """
        self._add(verdict)
        self.rejected_at += [0] * (period - 1 - len(self.rejected_at))
        for drafted, accepted in zip(verdict.drafted, verdict.accepted, strict=True):
            if accepted < drafted:
                self.rejected_at[accepted] += 1
        for kept, added, end in zip(verdict.kept, verdict.added, ended, strict=True):
            if not end:
                self.advances.append(kept + added)
        if self.advances:
            self.aal = average_advance_length(self.advances)
            self.effective_density = effective_density(period, density, self.aal)

    def _add(self, verdict: Verdict) -> None:
        self.drafted += sum(verdict.drafted)
        self.accepted += sum(verdict.accepted)
        self.retracted += sum(d - k for d, k in zip(verdict.drafted, verdict.kept, strict=True))
        self.unrecoverable += sum(
            k - a for k, a in zip(verdict.kept, verdict.accepted, strict=True)
        )


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append the time that passes inside."""
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)
