"""Exact rows that outlive a call: a conversation so far, or a system prompt that many calls share.

A later prompt that begins with the same tokens takes their rows from here, in every layer, and only
the tokens after them are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache

from lit_kvpred.errors import PromptError
from lit_kvpred.model.family import FamilyAdapter


class ExactContext:
    """Tokens and their exact rows; never changed by what goes on from it.

    Args:
        adapter: Of the model that computed the rows.
        token_ids: ``(C,)`` long.
        rows: Keys and values of each layer as the cache holds them, ``(1, heads, C, dim)``.
    """

    def __init__(
        self, adapter: FamilyAdapter, token_ids: Tensor, rows: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        self.adapter, self.token_ids, self.rows = adapter, token_ids, list(rows)

    @classmethod
    def of_cache(
        cls, adapter: FamilyAdapter, token_ids: Tensor, cache: Cache, real: Tensor
    ) -> ExactContext:
        """Rows of the cache of a single text.

        Args:
            adapter: Of the model that filled the cache.
            token_ids: ``(C,)`` long.
            cache: Holds their rows, all of them exact.
            real: ``(slots,)`` bool with C times True: the slots where they are.
        """
        slots = len(real)
        rows = [(layer.keys[:, :, :slots], layer.values[:, :, :slots]) for layer in cache.layers]
        if not bool(real.all()):
            rows = [(k[:, :, real], v[:, :, real]) for k, v in rows]
        return cls(adapter, token_ids, rows)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)

    def shared_with(self, prompts: Sequence[Tensor]) -> int:
        """How many leading tokens all ``prompts`` share with this context.

        At least the last token of each prompt is left over: its logits are yet to be had.
        """
        most = min(len(self), *(len(prompt) - 1 for prompt in prompts))
        for prompt in prompts:
            same = prompt[:most] == self.token_ids[:most].to(prompt.device)
            most = int(same.long().cumprod(0).sum())
        return most

    def fill(self, cache: Cache, slots: slice, real: Tensor, first_layer: int = 0) -> None:
        """Append the rows of ``slots`` of left-padded prompts that begin with this context.

        Args:
            cache: Holds the rows before these.
            slots: Within the shared part of the longest prompt.
            real: ``(B, N)`` bool of the prompts, False at left padding, whose rows are arbitrary.
            first_layer: Layers below it get nothing.
        """
        source = _source(slots, real)
        for layer, held in enumerate(self.rows[first_layer:], first_layer):
            cache.update(*(_taken(rows, source) for rows in held), layer)

    def restore(
        self, cache: Cache, slots: slice, real: Tensor, known: int, first_layer: int = 0
    ) -> None:
        """Put exact rows into ``slots`` wherever a token of the shared part stands there.

        In shorter prompts of a batch such tokens come after the slots that `fill` has filled.

        Args:
            cache: Holds rows for all ``slots``.
            slots: Behind the first ``known`` ones.
            real: As for `fill`.
            known: Tokens that all prompts share with this context.
            first_layer: Layers below it stay as they are.
        """
        source = _source(slots, real)
        shared = source < known
        if not bool(shared.any()):
            return
        for held, layer in zip(self.rows[first_layer:], cache.layers[first_layer:], strict=True):
            for rows, written in zip(held, (layer.keys, layer.values), strict=True):
                exact = _taken(rows, source.clamp(max=known - 1))
                written[:, :, slots] = torch.where(shared, exact, written[:, :, slots])

    def check_model(self, adapter: FamilyAdapter) -> None:
        """Raise `PromptError` if the rows are those of another model, or of another dtype."""
        if self.adapter.model is not adapter.model:
            raise PromptError(
                "the context holds rows of another model; make it with the model that goes on"
            )
        held = self.rows[0][0].dtype
        if held != adapter.compute_dtype:
            raise PromptError(
                f"the context holds {held} rows but the model computes in {adapter.compute_dtype}; "
                "make it again"
            )


def _source(slots: slice, real: Tensor) -> Tensor:
    """Token that stands in each slot, counted in its prompt, ``(B, 1, n, 1)``; 0 at padding."""
    padding = (~real).long().sum(1, keepdim=True)
    tokens = torch.arange(slots.start or 0, slots.stop, device=real.device) - padding
    return tokens.clamp(min=0)[:, None, :, None]


def _taken(rows: Tensor, source: Tensor) -> Tensor:
    """Rows ``(1, heads, C, dim)`` at ``source`` ``(B, 1, n, 1)``."""
    batch_size, _, n, _ = source.shape
    shape = (batch_size, rows.shape[1], n, rows.shape[3])
    return rows.expand(batch_size, -1, -1, -1).gather(2, source.to(rows.device).expand(shape))
