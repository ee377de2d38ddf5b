"""Settings of the correction: when to check, what to accept, what the reader sees meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_kvpred.errors import ConfigurationError

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
            soon as the prompt is exact. None: all rows at once, after ``period`` tokens.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    period: int = 16
    threshold: float = 0.1
    temperature: float = 0.6
    policy: StreamingPolicy = "hold"
    slice_rows: int | None = None

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ConfigurationError(f"correction period must be at least 1, got {self.period}")
        if self.slice_rows is not None and self.slice_rows < 1:
            raise ConfigurationError(
                f"correction slice_rows must be at least 1, got {self.slice_rows}"
            )
        if not self.threshold >= 0:
            raise ConfigurationError(f"correction threshold must be >= 0, got {self.threshold}")
        if not self.temperature > 0:
            raise ConfigurationError(
                f"correction temperature must be positive, got {self.temperature}"
            )
        if self.policy not in ("hold", "commit", "retract"):
            raise ConfigurationError(
                f"correction policy '{self.policy}' is not one of hold, commit, retract"
            )
