"""Which variants a sweep compares: a grid of correction settings, and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from lit_kvpred.evaluation.systems import Variant, sparse_alone
from lit_kvpred.sirius.correction import Correction, StreamingPolicy
from lit_kvpred.sirius.sparsity import Sparsity


def correction_grid(
    *,
    policies: Sequence[StreamingPolicy],
    periods: Sequence[int],
    thresholds: Sequence[float],
    drafts: Sequence[Sparsity | None] = (None,),
    tree_widths: Sequence[int] = (1,),
    ablation: bool = False,
) -> list[Correction]:
    """Every combination of settings; thresholds change fastest.

    Args:
        policies: Streaming policies.
        periods: Tokens from one check to the next.
        thresholds: Least probabilities of an accepted token.
        drafts: Sparse drafts; None for none.
        tree_widths: Sequences drafted together.
        ablation: Every combination of cache rewriting, rollback and interleaving on and off, eight
            for each of the others (Sirius 6).

    Raises:
        ConfigurationError: If settings contradict each other.
    """
    whole = [
        Correction(period, threshold, policy=policy, draft=draft, tree_width=width)
        for draft, policy, period, width, threshold in product(
            drafts, policies, periods, tree_widths, thresholds
        )
    ]
    if not ablation:
        return whole
    return [
        replace(correction, kv_rewriting=rewriting, rollback=rollback, interleave=interleave)
        for correction in whole
        for rewriting, rollback, interleave in product((True, False), repeat=3)
    ]


def sweep_variants(
    corrections: Sequence[Correction], *, exact_prompt: bool, new_tokens: int
) -> list[Variant]:
    """The corrections and what they are measured against.

    Args:
        corrections: From `correction_grid`.
        exact_prompt: The base reads the prompts itself, and only sparse drafts are corrected.
        new_tokens: Longest answer.

    Returns:
        The predicted prompt without correction and each correction. With exact prompts instead,
        for each draft: sparse decoding that nothing corrects, speculative decoding with each
        period, and then Sirius with each correction.
    """
    if not exact_prompt:
        corrected = [Variant("sirius_catch_up" if c.draft else "catch_up", c) for c in corrections]
        return [Variant("predicted"), *corrected]
    drafts = dict.fromkeys(c.draft for c in corrections if c.draft is not None)
    periods = dict.fromkeys(c.period for c in corrections)
    references: list[Variant] = []
    for draft in drafts:
        references.append(sparse_alone(draft, new_tokens))
        references += [
            Variant(
                "speculative",
                Correction(period, policy="retract", draft=draft, acceptance="lossless"),
            )
            for period in periods
        ]
    return [*references, *(Variant("sirius", c) for c in corrections)]
