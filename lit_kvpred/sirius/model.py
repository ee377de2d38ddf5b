"""Sirius by itself: an exact prompt, sparse drafts, and a base that corrects them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_kvpred.generation.generate import generate_exact, stream_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.loading import load_base
from lit_kvpred.model.streamed import StreamedFeedForwards, streamed_of
from lit_kvpred.model.streamed_loading import load_streamed_base
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

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        dtype: str | torch.dtype = "auto",
        revision: str | None = None,
        offload: bool = False,
    ) -> SiriusModel:
        """Load a base.

        Args:
            source: As for `lit_kvpred.model.loading.load_base`.
            dtype: Type to compute in.
            revision: Branch, tag or commit of a hub id.
            offload: Leave the feed-forward weights in their safetensors files and read them layer
                by layer whenever the dense base runs; drafts of CSparse have theirs in memory
                (Sirius 5.2). Results are the same.

        Raises:
            BaseModelError: If the source can't be loaded, or not in that way.
        """
        load = load_streamed_base if offload else load_base
        return cls(load(source, dtype=dtype, revision=revision))

    @property
    def streamed(self) -> StreamedFeedForwards | None:
        """What streams the feed-forward weights of the base; None where they are in memory."""
        return streamed_of(self.base)

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
