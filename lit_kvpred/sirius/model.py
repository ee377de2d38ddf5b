"""Sirius by itself: an exact prompt, sparse drafts, and a base that corrects them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel

from lit_kvpred.generation.generate import generate_exact, stream_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse

if TYPE_CHECKING:
    from lit_kvpred.generation.events import Event
    from lit_kvpred.generation.generate import GenerationOutput

_DEFAULT = Correction(draft=CSparse())


class SiriusModel:
    """A base that decodes with sparse drafts and corrects them each period (arXiv 2409.03856).

    Args:
        base: A causal language model in eval mode; it is never changed.

    Raises:
        UnsupportedFamilyError: If the base's family can't be served.
    """

    def __init__(self, base: PreTrainedModel) -> None:
        self.base = base
        self.adapter = FamilyAdapter(base)

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        correction: Correction = _DEFAULT,
        **settings: Any,
    ) -> GenerationOutput:
        """Answer prompts.

        Args:
            input_ids: ``(B, N)`` long, left-padded.
            attention_mask: ``(B, N)``, 0 at left padding.
            correction: Period, threshold, policy and ``draft``; without a draft the base writes
                alone.
            **settings: Fields of `lit_kvpred.generation.settings.GenerationSettings`.

        Raises:
            PromptError: If a prompt is empty, too long or padded on the right.
            UnsupportedFamilyError: If the feed-forward parts are of no ordinary kind.
        """
        return generate_exact(
            self.adapter,
            input_ids,
            attention_mask,
            settings=GenerationSettings(**settings),
            correction=correction,
        )

    def stream(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        correction: Correction = _DEFAULT,
        **settings: Any,
    ) -> Generator[Event, None, GenerationOutput]:
        """Like `generate`, but yields token and retraction events as they happen."""
        return stream_exact(
            self.adapter,
            input_ids,
            attention_mask,
            settings=GenerationSettings(**settings),
            correction=correction,
        )
