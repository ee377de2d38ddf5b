"""Reading a model's keys and values for given tokens, in the form the predictor works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.caches import ForwardStopped, RecordingCache
from lit_kvpred.model.family import FamilyAdapter, merge_heads
from lit_kvpred.model.hidden import hidden_states_entering
from lit_kvpred.model.sequences import Sequences


class PerLayer(Sequence[Tensor]):
    """A tensor a layer, made when first asked for: readers rarely need all of them."""

    def __init__(self, n_layers: int, make: Callable[[int], Tensor]) -> None:
        self._make = make
        self._made: list[Tensor | None] = [None] * n_layers

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, layer: int) -> Tensor: ...
    @overload
    def __getitem__(self, layer: slice) -> list[Tensor]: ...
    def __getitem__(self, layer: int | slice) -> Tensor | list[Tensor]:
        """The tensor of a layer, or of several."""
        if isinstance(layer, slice):
            return [self[i] for i in range(*layer.indices(len(self)))]
        made = self._made[layer]
        if made is None:
            made = self._made[layer] = self._make(layer % len(self))
        return made


@dataclass(frozen=True)
class CacheRows:
    """Keys and values of one forward pass.

    Attributes:
        raw_keys: Per layer ``(B, T, key_width)``, merged, before key norm and rotation.
        keys: Per layer ``(B, heads, T, key_dim)``, after key norm, without rotation.
        values: Per layer ``(B, T, value_width)``, merged.
        logits: ``(B, rows, V)`` of the rows asked for, or None.
        hidden: ``(B, T, hidden)`` where asked for, or None.
        stored: Keys and values per layer as the cache holds them, split and rotated.
        sequences: Positions and padding of the rows, or None.
    """

    raw_keys: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    logits: Tensor | None = None
    hidden: Tensor | None = None
    stored: Sequence[tuple[Tensor, Tensor]] = ()
    sequences: Sequences | None = None

    def __getitem__(self, rows: slice) -> CacheRows:
        """The same rows restricted to a slice of the token axis (logits are dropped)."""
        return CacheRows(
            PerLayer(len(self.raw_keys), lambda i: self.raw_keys[i][:, rows]),
            PerLayer(len(self.keys), lambda i: self.keys[i][:, :, rows]),
            PerLayer(len(self.values), lambda i: self.values[i][:, rows]),
            hidden=None if self.hidden is None else self.hidden[:, rows],
            stored=[(k[:, :, rows], v[:, :, rows]) for k, v in self.stored],
            sequences=None if self.sequences is None else self.sequences[rows],
        )


def read_rows(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    sequences: Sequences,
    *,
    logits_from: int | None = None,
    stop_after: int | None = None,
    hidden_at: int | None = None,
) -> CacheRows:
    """Run a model over ``input_ids`` ``(B, T)`` and take its cache rows off position and norm.

    Args:
        adapter: The model's adapter.
        input_ids: Token ids, long.
        sequences: Positions and padding of these tokens.
        logits_from: Also return logits of all rows from this one on. None: the vocabulary
            projection is not computed.
        stop_after: Last layer whose keys and values are needed; nothing beyond them is computed.
        hidden_at: Also return the hidden states that enter this layer (the number of layers: that
            leave the decoder). Without any other wish nothing beyond them is computed.

    Raises:
        ConfigurationError: If gradient checkpointing made the model drop its cache.
        ValueError: If both ``logits_from`` and ``stop_after`` are given, or no such row exists.
    """
    if logits_from is not None and stop_after is not None:
        raise ValueError("logits need the whole depth; pass either logits_from or stop_after")
    if logits_from is not None and not 0 <= logits_from < input_ids.shape[1]:
        raise ValueError(f"no row {logits_from} among {input_ids.shape[1]} tokens")
    cache, logits = RecordingCache(stop_after), None
    arguments = {
        "position_ids": sequences.position_ids,
        "attention_mask": sequences.attention_mask(adapter),
        "cache": cache,
        "use_cache": True,
    }
    with ExitStack() as stack:
        norm_inputs = stack.enter_context(adapter.record_norm_inputs())
        hidden: list[Tensor] = []
        if hidden_at is not None:
            alone = logits_from is None and stop_after is None
            hidden = stack.enter_context(hidden_states_entering(adapter, hidden_at, stop=alone))
        with suppress(ForwardStopped):
            if logits_from is None:
                adapter.decoder(input_ids, **arguments)
            else:
                keep = input_ids.shape[1] - logits_from
                logits = adapter.model(input_ids, logits_to_keep=keep, **arguments).logits
    needed = adapter.n_layers if hidden_at is None or logits_from is not None else hidden_at
    if len(cache.layers) < (needed if stop_after is None else stop_after + 1):
        raise ConfigurationError(
            "the model dropped its cache, as transformers does under gradient checkpointing in "
            "train mode; call gradient_checkpointing_disable() on it"
        )
    return rows_of_cache(
        adapter,
        [(layer.keys, layer.values) for layer in cache.layers],
        sequences,
        norm_inputs,
        logits=logits,
        hidden=hidden[0] if hidden else None,
    )


def rows_of_cache(
    adapter: FamilyAdapter,
    stored: Sequence[tuple[Tensor, Tensor]],
    sequences: Sequences,
    norm_inputs: Mapping[int, Tensor],
    *,
    logits: Tensor | None = None,
    hidden: Tensor | None = None,
) -> CacheRows:
    """Take cached rows off position and norm.

    Args:
        adapter: The adapter of the model that computed them.
        stored: Keys and values per layer as the cache holds them, ``(B, heads, T, dim)``.
        sequences: Of these rows.
        norm_inputs: From `FamilyAdapter.record_norm_inputs` around the same forward.
        logits: Passed on.
        hidden: Passed on.
    """
    tables = adapter.rotary_tables(sequences.position_ids)
    n_layers = len(stored)
    keys = PerLayer(n_layers, lambda i: tables.unrotate(stored[i][0], i))

    def raw(layer: int) -> Tensor:
        if layer in norm_inputs:
            return adapter.merge_norm_input(norm_inputs[layer])
        return merge_heads(keys[layer])

    return CacheRows(
        PerLayer(n_layers, raw),
        keys,
        PerLayer(n_layers, lambda i: merge_heads(stored[i][1])),
        logits,
        hidden,
        stored,
        sequences,
    )


def mean_absolute_error(predicted: Tensor, target: Tensor, real: Tensor) -> Tensor:
    """L1 distance of split rows ``(B, heads, T, dim)``, mean over real rows, heads and dims.

    ``real`` is ``(B, T)`` bool. Padding is left out by selection, so that no NaN of a padded row
    reaches the mean.
    """
    difference = (predicted.float() - target.float()).abs().mean(dim=(1, 3))
    return torch.where(real, difference, 0.0).sum() / real.sum().clamp(min=1)
