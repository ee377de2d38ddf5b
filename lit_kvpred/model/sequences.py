"""Positions and attention masks of a batch, for any family.

A batch is described either by a padding mask (left padding at inference, right padding in
training) or by document ids (packed training rows, whose documents never see each other).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.masks import explicit_mask


@dataclass(frozen=True)
class Sequences:
    """Where each token stands and what it may see.

    Attributes:
        position_ids: ``(B, T)`` long; restarts at every document, does not count left padding.
        real: ``(B, T)`` bool, False at padding.
        document_ids: ``(B, T)`` long, or None where each row is one document.
    """

    position_ids: Tensor
    real: Tensor
    document_ids: Tensor | None = None

    @classmethod
    def unpadded(cls, batch_size: int, length: int, device: torch.device) -> Sequences:
        """``batch_size`` rows of ``length`` real tokens."""
        positions = torch.arange(length, device=device).expand(batch_size, -1)
        return cls(positions, torch.ones_like(positions, dtype=torch.bool))

    @classmethod
    def padded(cls, attention_mask: Tensor) -> Sequences:
        """Rows with padding on one side; ``attention_mask`` is ``(B, T)``, 0 at padding."""
        real = attention_mask.bool()
        return cls((real.long().cumsum(1) - 1).clamp(min=0), real)

    @classmethod
    def packed(cls, document_ids: Tensor) -> Sequences:
        """Packed rows; ``document_ids`` is ``(B, T)``, -1 at right padding."""
        real = document_ids >= 0
        slots = torch.arange(document_ids.shape[1], device=document_ids.device)
        starts = torch.zeros_like(document_ids, dtype=torch.bool)
        starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        first = torch.where(starts, slots, 0).cummax(1).values
        alone = bool((document_ids.clamp(min=0) == document_ids[:, :1]).all() & real.all())
        return cls(slots - first, real, None if alone else document_ids)

    @property
    def all_real(self) -> bool:
        """Whether there is no padding."""
        return bool(self.real.all())

    def __getitem__(self, rows: slice) -> Sequences:
        """The same sequences restricted to a slice of the token axis."""
        documents = None if self.document_ids is None else self.document_ids[:, rows]
        return Sequences(self.position_ids[:, rows], self.real[:, rows], documents)

    def previous_rows(self) -> Tensor:
        """For each row the one before it in its document, ``(B, T)`` long; -1 where there is none.

        Padding between two tokens is skipped.
        """
        slots = torch.arange(self.real.shape[1], device=self.real.device)
        last_real = torch.where(self.real, slots, -1).cummax(1).values
        before = torch.nn.functional.pad(last_real, (1, 0), value=-1)[:, :-1]
        return before.masked_fill(self.position_ids == 0, -1)

    def attention_mask(
        self, adapter: FamilyAdapter, first_query: int = 0
    ) -> Tensor | dict[str, Tensor] | None:
        """What to pass as ``attention_mask`` when rows from ``first_query`` on are the queries.

        None where plain causal attention is meant (the fast path), a 2-D padding mask where the
        family can build its own mask, else an additive 4-D mask, by layer type where the family
        has several.
        """
        if self.document_ids is None:
            return None if self.all_real else self.real.long()
        slots = torch.arange(self.document_ids.shape[1], device=self.real.device)[None]
        visible = self._visible()[:, first_query:]
        return explicit_mask(adapter, visible, slots[:, first_query:], slots)

    def _visible(self) -> Tensor:
        assert self.document_ids is not None
        length = self.document_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.real.device).tril()
        same = self.document_ids[:, :, None] == self.document_ids[:, None, :]
        # Padding sees itself (its id is -1 everywhere), so that no row is masked whole.
        return causal & same


def sequences_of(batch: Mapping[str, Tensor]) -> Sequences:
    """The `Sequences` of ``input_ids`` with or without ``attention_mask`` and ``document_ids``."""
    return describe_batch(
        batch["input_ids"], batch.get("attention_mask"), batch.get("document_ids")
    )


def describe_batch(
    input_ids: Tensor, attention_mask: Tensor | None, document_ids: Tensor | None = None
) -> Sequences:
    """The `Sequences` of a batch given any of its descriptions, or both."""
    if document_ids is not None:
        if attention_mask is not None:
            document_ids = document_ids.masked_fill(attention_mask == 0, -1)
        return Sequences.packed(document_ids)
    if attention_mask is not None and not bool(attention_mask.bool().all()):
        return Sequences.padded(attention_mask)
    return Sequences.unpadded(input_ids.shape[0], input_ids.shape[1], input_ids.device)
