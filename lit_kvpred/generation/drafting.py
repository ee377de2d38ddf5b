"""Choosing tokens that are going to be judged."""

from __future__ import annotations

from torch import Tensor

from lit_kvpred.generation.sampling import TokenChooser
from lit_kvpred.sirius.correction import Acceptance


class DraftChooser:
    """Chooses drafted tokens and remembers what the judge has to know.

    Args:
        choose: Draws tokens.
        acceptance: Lossless acceptance needs what each token was drawn from.

    Attributes:
        drawn_from: ``(B, V)`` for each step.
    """

    def __init__(self, choose: TokenChooser, acceptance: Acceptance) -> None:
        self._choose, self._remembers = choose, acceptance == "lossless"
        self.drawn_from: list[Tensor] = []

    def __call__(self, logits: Tensor) -> Tensor:
        """``(B, V)`` logits to ``(B,)`` token ids."""
        if not self._remembers:
            return self._choose(logits)
        probabilities = self._choose.probabilities(logits)
        self.drawn_from.append(probabilities)
        return self._choose.draw(probabilities)
