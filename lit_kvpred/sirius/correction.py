"""Settings of the correction: when to check, what to accept, what the reader sees meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.sirius.sparsity import CSparse, FSparse, Sparsity

StreamingPolicy = Literal["hold", "commit", "retract"]


@dataclass(frozen=True)
class Correction:
    """How a predicted prompt becomes exact while its answer is already being written.

    Attributes:
        period: Tokens drafted on the predicted prompt before the exact prompt is computed and the
            draft is judged (Sirius 3.2 uses 16). 1: at once after the first token.
        threshold: Least tempered probability of an accepted token. Above 1 every draft is rejected
            and the text is the exact base's greedy text; 0 rejects nothing.
        temperature: Divides the judging logits (Sirius 3.2 uses .6).
        policy: What is shown before the draft is judged. ``hold``: the first token only.
            ``retract``: everything, and rejected tokens are taken back. ``commit``: everything,
            and what was shown stays even if rejected (its cache rows are rewritten); an answer that
            ends before the prompt is exact is left as it is.
        slice_rows: Exact prompt rows that ride on each decode step; the draft is then judged as
            soon as the prompt is exact. ``auto``: the cheapest number within ``tpot_budget``, from
            step times measured once on this machine. None: all rows at once, after ``period``
            tokens.
        tpot_budget: For ``auto``: longest step with a slice, relative to one without.
        draft: Once the prompt is exact, go on in Sirius periods: ``period - 1`` tokens by a sparse
            draft, which the base then judges in one pass (Sirius 3.1). None: the base goes on
            alone.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    period: int = 16
    threshold: float = 0.1
    temperature: float = 0.6
    policy: StreamingPolicy = "hold"
    slice_rows: int | Literal["auto"] | None = None
    tpot_budget: float = 3.0
    draft: Sparsity | None = None

    def __post_init__(self) -> None:
        _check_count("period", self.period)
        if self.slice_rows not in (None, "auto"):
            _check_count("slice_rows", self.slice_rows)
        if not self.tpot_budget > 1:
            raise ConfigurationError(
                f"correction tpot_budget must be above 1, got {self.tpot_budget}"
            )
        if not self.threshold >= 0:
            raise ConfigurationError(f"correction threshold must be >= 0, got {self.threshold}")
        if not self.temperature > 0:
            raise ConfigurationError(
                f"correction temperature must be positive, got {self.temperature}"
            )
        if not isinstance(self.draft, CSparse | FSparse | None):
            raise ConfigurationError(
                f"correction draft must be CSparse(...), FSparse(...) or None, got {self.draft!r}"
            )
        if self.policy not in ("hold", "commit", "retract"):
            raise ConfigurationError(
                f"correction policy '{self.policy}' is not one of hold, commit, retract"
            )


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            f"correction {name} must be a whole number of at least 1, got {value}"
        )
