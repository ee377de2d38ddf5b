"""The systems that are compared: who reads the prompt, who writes, and what is corrected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from lit_kvpred.generation.generate import GenerationOutput, generate, generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import DRAFTS, Sparsity

BASE = "base"
_EXACT = (BASE, "sparse", "sirius", "speculative")


@dataclass(frozen=True)
class Variant:
    """One way to answer.

    Attributes:
        system: ``base``; ``predicted``; ``catch_up`` (the exact prompt comes after the first
            token); ``sparse`` (exact prompt, sparse drafts that nothing checks); ``sirius`` (exact
            prompt, sparse drafts corrected each period); ``sirius_catch_up`` (both);
            ``speculative`` (exact prompt, sparse drafts accepted by speculative decoding's rule).
        correction: None stays on the prompt that there is.
    """

    system: str
    correction: Correction | None = None

    @property
    def exact_prompt(self) -> bool:
        """Whether the base reads the prompt, so that no projection has a say."""
        return self.system in _EXACT

    @property
    def draft(self) -> Sparsity | None:
        """The sparse draft, if any."""
        return None if self.correction is None else self.correction.draft

    @property
    def slice_rows(self) -> int | None:
        """Exact prompt rows that ride on a decode step; None for all at once, or none at all."""
        rows = None if self.correction is None else self.correction.slice_rows
        return rows if isinstance(rows, int) else None

    def answer(
        self,
        model: KVPredictionModel,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        settings: GenerationSettings,
    ) -> GenerationOutput:
        """Answer prompts ``(B, N)``, left-padded."""
        if self.exact_prompt:
            return generate_exact(
                model.adapter,
                input_ids,
                attention_mask,
                settings=settings,
                correction=self.correction,
            )
        return generate(
            model, input_ids, attention_mask, settings=settings, correction=self.correction
        )

    def density(self, model: KVPredictionModel) -> float | None:
        """Share of the base's parameters that a step of the draft uses; None without a draft."""
        return None if self.draft is None else model.sparse_base.density(self.draft)


def sparse_alone(draft: Sparsity, new_tokens: int) -> Variant:
    """Sparse decoding that nothing corrects, for answers of up to ``new_tokens``.

    The only check falls behind the last token and rejects nothing; the first token is the
    prefill's, which is dense (Sirius 2.1).
    """
    return Variant("sparse", Correction(new_tokens + 1, threshold=0.0, draft=draft))


def settings_of(correction: Correction | None) -> dict[str, Any]:
    """Every setting as plain values; ``draft`` becomes its name, with ``draft_keep`` beside it.

    Returns:
        All names, each None without a correction.
    """
    settings: dict[str, Any] = {
        f.name: getattr(correction, f.name, None) for f in fields(Correction)
    }
    draft = settings["draft"]
    settings["draft"] = None if draft is None else _DRAFT_NAMES[type(draft)]
    settings["draft_keep"] = None if draft is None else draft.keep
    return settings


_DRAFT_NAMES: Mapping[type[Sparsity], str] = {kind: name for name, kind in DRAFTS.items()}
