"""Additive 4-D attention masks, for what a padding mask can't say."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_kvpred.model.family import FamilyAdapter


def explicit_mask(
    adapter: FamilyAdapter, visible: Tensor, query_slots: Tensor
) -> Tensor | dict[str, Tensor]:
    """What to pass as ``attention_mask`` so that queries see exactly what they may.

    Sliding windows are applied here, by distance in slots.

    Args:
        adapter: The model's adapter.
        visible: ``(B, queries, slots)`` bool.
        query_slots: ``(queries,)`` long, the slot of each query.

    Returns:
        ``(B, 1, queries, slots)`` in the compute dtype; by layer type where the family has several.

    Raises:
        UnsupportedFamilyError: If the family computes position biases from a padding mask.
    """
    adapter.require_explicit_masks()
    visible = visible[:, None]
    dtype = adapter.compute_dtype
    window = getattr(adapter.config, "sliding_window", None)
    if getattr(adapter.config, "layer_types", None) is None:
        return _additive(_windowed(visible, query_slots, window), dtype)
    return {
        kind: _additive(
            _windowed(visible, query_slots, window if kind == "sliding_attention" else None), dtype
        )
        for kind in dict.fromkeys(adapter.layer_types)
    }


def _windowed(visible: Tensor, query_slots: Tensor, window: int | None) -> Tensor:
    if window is None:
        return visible
    slots = torch.arange(visible.shape[-1], device=visible.device)
    return visible & (query_slots[:, None] - slots[None] < window)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )
