"""Additive 4-D attention masks, for what a padding mask can't say."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_kvpred.model.family import FamilyAdapter


def explicit_mask(
    adapter: FamilyAdapter, visible: Tensor, query_positions: Tensor, key_positions: Tensor
) -> Tensor | dict[str, Tensor]:
    """What to pass as ``attention_mask`` so that queries see exactly what they may.

    Sliding windows are applied here.

    Args:
        adapter: The model's adapter.
        visible: ``(B, queries, slots)`` bool.
        query_positions: ``(B or 1, queries)`` long; only differences to those of keys count.
        key_positions: ``(B or 1, slots)`` long.

    Returns:
        ``(B, 1, queries, slots)`` in the compute dtype; by layer type where the family has several.

    Raises:
        UnsupportedFamilyError: If the family computes position biases from a padding mask.
    """
    adapter.require_explicit_masks()
    distances = query_positions[:, None, :, None] - key_positions[:, None, None]
    visible = visible[:, None]
    dtype = adapter.compute_dtype
    window = getattr(adapter.config, "sliding_window", None)
    if getattr(adapter.config, "layer_types", None) is None:
        return _additive(_windowed(visible, distances, window), dtype)
    return {
        kind: _additive(
            _windowed(visible, distances, window if kind == "sliding_attention" else None), dtype
        )
        for kind in dict.fromkeys(adapter.layer_types)
    }


def _windowed(visible: Tensor, distances: Tensor, window: int | None) -> Tensor:
    return visible if window is None else visible & (distances < window)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )
