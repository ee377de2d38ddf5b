"""Cache layers through which everything of ours reaches a decoder's attention.

A decoder calls ``cache.update(keys, values, layer_idx)`` once a layer, after rotary embedding and
key norm. Subclassing the cache layers is therefore enough to read, replace or pre-fill keys and
values without touching attention code.

Shapes: keys and values are ``(B, heads, rows, head_dim)``, rotated as the decoder stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, StaticCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, StaticLayer

_LEAST_ROOM = 64


class ForwardStopped(Exception):  # noqa: N818 - control flow, not an error
    """Raised by `RecordingCache` to leave a decoder as soon as its last needed row is stored."""


class _Stopping(Cache):
    """A cache whose update of layer ``stop_after`` ends the forward; None never does."""

    stop_after: int | None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the rows; raise `ForwardStopped` after layer ``stop_after``."""
        rows = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == self.stop_after:
            raise ForwardStopped
        return rows


class RecordingCache(_Stopping, DynamicCache):
    """A full-length cache for every layer that can end the forward early.

    All layers keep every row, also where the family would use a sliding window (the attention mask
    still applies the window). With ``stop_after`` the update of that layer raises `ForwardStopped`:
    the attention output and feed-forward part of that layer and everything above are never
    computed (what a prefill needs from the auxiliary ends at its last feeding keys and values).
    """

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after


class _GrowingLayer(DynamicLayer):
    """Rows at the head of a buffer with room for more.

    Concatenation, the dynamic layer's way, copies the whole context for each new token. Whatever
    else replaces the rows (selecting batch entries, moving rows) only costs a new buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[str, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            # A later write into the buffer would invalidate what backward needs.
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = self._append("keys", key_states)
        values = self._append("values", value_states)
        self.keys, self.values = keys, values
        return keys, values

    def reset(self) -> None:
        super().reset()
        self._buffers.clear()

    def _append(self, name: str, rows: Tensor) -> Tensor:
        held: Tensor = getattr(self, name)
        n_held = held.shape[2] if held.ndim == 4 else 0
        n_all = n_held + rows.shape[2]
        buffer = self._buffers.get(name)
        if buffer is None or n_all > buffer.shape[2] or not _heads(held, buffer):
            room = max(_LEAST_ROOM, n_all // 8)
            buffer = rows.new_empty(*rows.shape[:2], n_all + room, rows.shape[3])
            if n_held:
                buffer[:, :, :n_held] = held
            self._buffers[name] = buffer
        buffer[:, :, n_held:n_all] = rows
        return buffer[:, :, :n_all]


def _heads(held: Tensor, buffer: Tensor) -> bool:
    """Whether ``held`` is the head of ``buffer`` and rows may be written behind it."""
    if held.ndim != 4 or held.shape[:2] != buffer.shape[:2]:
        return False
    if buffer.is_inference() and not torch.is_inference_mode_enabled():
        return False
    return held.shape[2] == 0 or held.data_ptr() == buffer.data_ptr()


class GrowingCache(DynamicCache):
    """A full-length dynamic cache for decoding, whose rows are appended in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = _GrowingLayer


class _ReplayLayer(DynamicLayer):
    """Answers every update with given rows; the decoder's own keys and values are discarded."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if key_states.shape != self.keys.shape or value_states.shape != self.values.shape:
            raise ValueError(
                f"replayed keys/values are {tuple(self.keys.shape)}/{tuple(self.values.shape)}, "
                f"the decoder computed {tuple(key_states.shape)}/{tuple(value_states.shape)}"
            )
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class ReplayCache(Cache):
    """The training path (KVP 3.1): every position attends to the given rows, its own included."""

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        super().__init__(layers=[_ReplayLayer(k, v) for k, v in zip(keys, values, strict=True)])


def filled_cache(keys: Sequence[Tensor], values: Sequence[Tensor]) -> GrowingCache:
    """A dynamic cache that holds the given rows; gradients flow into them."""
    cache = GrowingCache()
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        cache.update(k, v, layer)
    return cache


def empty_static_cache(n_layers: int, max_length: int) -> StaticCache:
    """A static cache whose layers all keep the full length (sliding windows act in the mask)."""
    cache = StaticCache(PreTrainedConfig(num_hidden_layers=n_layers), max_cache_len=max_length)
    cache.layers = [StaticLayer(max_cache_len=max_length) for _ in range(n_layers)]
    return cache


def empty_cache(n_layers: int, static_length: int | None) -> Cache:
    """A cache to decode on: of ``static_length`` slots, or growing where that is None."""
    return GrowingCache() if static_length is None else empty_static_cache(n_layers, static_length)


class StoppingView(_Stopping):
    """Layers of another cache; the forward ends as soon as layer ``stop_after`` has its rows.

    Args:
        layers: Shared with the other cache.
        stop_after: The layer whose update raises `ForwardStopped`; None never does.
    """

    def __init__(self, layers: list[CacheLayerMixin], stop_after: int | None) -> None:
        super().__init__(layers=layers)
        self.stop_after = stop_after


class SliceView(Cache):
    """Layers of another cache; the first of the new rows are written at given slots.

    The rows behind them are appended as ever. Attention sees all rows, so that an explicit mask
    must hide from each query what it may not see.

    Args:
        layers: Shared with the other cache; they hold at least ``start + rows`` rows.
        start: Slot of the first row of the slice.
        rows: Length of the slice.
    """

    def __init__(self, layers: list[CacheLayerMixin], start: int, rows: int) -> None:
        super().__init__(layers=layers)
        self.start, self.rows = start, rows

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the rows behind the slice, write the slice in its place."""
        rows, slots = slice(self.rows), slice(self.start, self.start + self.rows)
        keys, values = super().update(
            key_states[:, :, self.rows :], value_states[:, :, self.rows :], layer_idx
        )
        keys[:, :, slots] = key_states[:, :, rows]
        values[:, :, slots] = value_states[:, :, rows]
        return keys, values


def upper_view(
    cache: Cache, depth: int, n_layers: int, stop_after: int | None = None
) -> StoppingView:
    """The same cache as the layers from ``depth`` to ``n_layers`` see it.

    Decoders ask the first layer how many rows are held; the layers below ``depth`` may be ahead.
    """
    new_layer = cache.layer_class_to_replicate
    while new_layer is not None and len(cache.layers) < n_layers:
        cache.layers.append(new_layer())
    return StoppingView([cache.layers[depth]] * depth + cache.layers[depth:], stop_after)


def n_rows(cache: Cache) -> int:
    """Number of filled rows."""
    return int(cache.get_seq_length())


def padding_mask(visible: Tensor, cache: Cache) -> Tensor | None:
    """The 2-D attention mask for a forward on ``cache``; None where nothing is hidden.

    ``visible`` ``(B, rows)`` bool covers the cache's rows and the new ones. Unused slots of a
    static cache are hidden explicitly: families with position biases read their width off the mask.
    """
    slots = max((layer.get_max_length() for layer in cache.layers), default=-1)
    if slots > visible.shape[1]:
        return torch.nn.functional.pad(visible.long(), (0, slots - visible.shape[1]))
    return None if bool(visible.all()) else visible.long()


def drop_rows(layers: Iterable[CacheLayerMixin], keep: int) -> None:
    """Keep the first ``keep`` rows of each of ``layers``; those with fewer stay as they are."""
    for layer in layers:
        surplus = int(layer.get_seq_length()) - keep
        if surplus > 0:
            layer.crop(-surplus)


def roll_back(cache: Cache, rows: int) -> None:
    """Drop the last ``rows`` rows of every layer.

    Raises:
        ValueError: If ``rows`` is negative or more than the cache holds.
    """
    held = n_rows(cache)
    if not 0 <= rows <= held:
        raise ValueError(f"cannot roll back {rows} rows of a cache that holds {held}")
    if rows:
        cache.crop(-rows)


def last_rows(cache: Cache, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Copies of the last ``rows`` keys and values of every layer."""
    held = n_rows(cache)
    part = slice(held - rows, held)
    return [
        (layer.keys[:, :, part].clone(), layer.values[:, :, part].clone()) for layer in cache.layers
    ]


def overwrite_rows(cache: Cache, start: int, rows: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Put given keys and values of every layer in place of those from slot ``start`` on."""
    for layer, (keys, values) in zip(cache.layers, rows, strict=True):
        layer.keys[:, :, start : start + keys.shape[2]] = keys
        layer.values[:, :, start : start + values.shape[2]] = values


def gather_last(cache: Cache, rows: int, index: Tensor) -> None:
    """Keep some of the last ``rows`` rows, side by side.

    Args:
        cache: Changed in place.
        rows: Number of rows in question.
        index: ``(B, kept)`` long, which of them each batch entry keeps, from 0.
    """
    held, kept = n_rows(cache), index.shape[1]
    start = held - rows
    slots = index + start
    chosen = [(_gathered(c.keys, slots), _gathered(c.values, slots)) for c in cache.layers]
    overwrite_rows(cache, start, chosen)
    roll_back(cache, rows - kept)


def drop_first(cache: Cache, rows: int) -> None:
    """Drop the first ``rows`` slots of every layer, which all batch entries have to spare."""
    held = n_rows(cache)
    for layer in cache.layers:
        static = isinstance(layer, StaticLayer)
        for name in ("keys", "values"):
            kept = getattr(layer, name)[:, :, rows:held]
            if static:
                getattr(layer, name)[:, :, : held - rows] = kept.clone()
            else:
                setattr(layer, name, kept)
        if static:
            layer.crop(-rows)


def shift_rows_right(cache: Cache, shifts: Tensor) -> None:
    """Move the filled rows of batch entry ``b`` by ``shifts[b]`` slots to the right.

    What falls off the right end is dropped and the freed left slots hold arbitrary finite rows
    that the caller's attention mask must hide. Keys carry their positions already, so that slots
    can change freely. ``shifts`` is ``(B,)`` of non-negative integers.
    """
    held = n_rows(cache)
    source = (torch.arange(held, device=shifts.device)[None] - shifts[:, None]) % max(held, 1)
    for layer in cache.layers:
        for name in ("keys", "values"):
            rows = getattr(layer, name)
            moved = _gathered(rows, source)
            if held == rows.shape[2]:
                setattr(layer, name, moved)
            else:
                rows[:, :, :held] = moved


def _gathered(rows: Tensor, slots: Tensor) -> Tensor:
    """The rows at ``slots`` ``(B, kept)`` of each batch entry; ``(B, heads, kept, dim)``."""
    index = slots.to(rows.device)[:, None, :, None]
    return rows.gather(2, index.expand(-1, rows.shape[1], -1, rows.shape[3]))
