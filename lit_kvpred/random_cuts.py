"""Where the matched split cuts training rows: predicted rows before, the base's own behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lit_kvpred.model.exact_tail import ExactTail, tail_rows


@dataclass(frozen=True)
class RandomCuts:
    """Cuts that depend on seed and batch number only, so that a resumed run repeats them.

    Attributes:
        exact_tail: Rows behind a predicted one that the base runs itself; what is compared lies
            behind their first.
        seed: Of the drawing, a whole number of up to 64 bits.
    """

    exact_tail: ExactTail
    seed: int = 0

    def draw(self, length: int, batch: int) -> int | None:
        """The cut of a batch, uniform between a quarter and three quarters of the rows.

        Args:
            length: Tokens of its rows.
            batch: Its number.

        Returns:
            Rows before the cut, at least 1; None where nothing would be left to compare behind the
            exact tail.
        """
        rows = length - 1  # the last has no next token
        last = min(length * 3 // 4, rows - tail_rows(self.exact_tail, rows))
        if last < 1:
            return None
        first = min(max(1, length // 4), last)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + batch) % 2**63)
        return int(torch.randint(first, last + 1, (1,), generator=generator))
