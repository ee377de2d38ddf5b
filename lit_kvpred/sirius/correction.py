"""Settings of the correction: when to check, what to accept, what the reader sees meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from lit_kvpred.checks import require_count, require_flag, require_number
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.sirius.sparsity import CSparse, FSparse, Sparsity

StreamingPolicy = Literal["hold", "commit", "retract"]
Acceptance = Literal["threshold", "lossless"]


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
        acceptance: ``threshold``: as above. ``lossless``: the rule of speculative decoding, by
            which the text is distributed as the base's own, and is its own where it is greedy;
            threshold and temperature are not used.
        tree_width: Sequences drafted together in a Sirius period, as a tree that is judged in one
            pass (Sirius 4); the one of which most is accepted stays. Tokens are then shown once
            they are judged, whatever the policy.
        kv_rewriting: For ablations of Sirius periods (Sirius 3.5): without it the cache keeps the
            rows of the sparse draft.
        rollback: Without it nothing that was drafted is taken back.
        interleave: Without it the base adds no token of its own where nothing was rolled back.

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
    acceptance: Acceptance = "threshold"
    tree_width: int = 1
    kv_rewriting: bool = True
    rollback: bool = True
    interleave: bool = True

    def __post_init__(self) -> None:
        require_count("correction period", self.period)
        if not isinstance(self.slice_rows, str | None) or self.slice_rows not in (None, "auto"):
            require_count("correction slice_rows", self.slice_rows)
        require_number("correction tpot_budget", self.tpot_budget, above=1)
        require_number("correction threshold", self.threshold, least=0)
        require_number("correction temperature", self.temperature, above=0)
        if not isinstance(self.draft, CSparse | FSparse | None):
            raise ConfigurationError(
                f"correction draft must be CSparse(...), FSparse(...) or None, got {self.draft!r}"
            )
        if self.policy not in ("hold", "commit", "retract"):
            raise ConfigurationError(
                f"correction policy '{self.policy}' is not one of hold, commit, retract"
            )
        self._check_periods()

    def without_draft(self) -> Correction:
        """The same correction of a predicted prompt, after which the base goes on alone."""
        return replace(
            self, draft=None, tree_width=1, kv_rewriting=True, rollback=True, interleave=True
        )

    def _check_periods(self) -> None:
        if self.acceptance not in ("threshold", "lossless"):
            raise ConfigurationError(
                f"correction acceptance '{self.acceptance}' is not one of threshold, lossless"
            )
        if self.acceptance == "lossless" and (self.policy == "commit" or not self.rollback):
            raise ConfigurationError(
                "lossless acceptance takes back what it rejects; use policy hold or retract, and "
                "leave rollback on"
            )
        require_count("correction tree_width", self.tree_width)
        for name in ("kv_rewriting", "rollback", "interleave"):
            require_flag(f"correction {name}", getattr(self, name))
        whole = self.kv_rewriting and self.rollback and self.interleave
        if self.draft is None and not (whole and self.tree_width == 1):
            raise ConfigurationError(
                "tree_width, kv_rewriting, rollback and interleave are about sparse drafts; give a "
                "draft such as CSparse()"
            )
        if self.tree_width > 1 and not whole:
            raise ConfigurationError(
                "a tree of drafts needs kv_rewriting, rollback and interleave; use tree_width 1 "
                "for ablations"
            )
