"""Reading a model's keys and values for given tokens, in the form the predictor works on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.caches import ForwardStopped, RecordingCache
from lit_kvpred.model.family import FamilyAdapter, merge_heads
from lit_kvpred.model.sequences import Sequences


@dataclass(frozen=True)
class CacheRows:
    """Keys and values of one forward pass.

    Attributes:
        raw_keys: Per layer ``(B, T, key_width)``, merged, before key norm and rotation.
        keys: Per layer ``(B, heads, T, key_dim)``, after key norm, without rotation.
        values: Per layer ``(B, T, value_width)``, merged.
        logits: ``(B, rows, V)`` of the rows asked for, or None.
    """

    raw_keys: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]
    logits: Tensor | None

    def __getitem__(self, rows: slice) -> CacheRows:
        """The same rows restricted to a slice of the token axis (logits are dropped)."""
        return CacheRows(
            [k[:, rows] for k in self.raw_keys],
            [k[:, :, rows] for k in self.keys],
            [v[:, rows] for v in self.values],
            None,
        )


def read_rows(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    sequences: Sequences,
    *,
    logits_from: int | None = None,
    stop_after: int | None = None,
) -> CacheRows:
    """Run a model over ``input_ids`` ``(B, T)`` and take its cache rows off position and norm.

    Args:
        adapter: The model's adapter.
        input_ids: Token ids, long.
        sequences: Positions and padding of these tokens.
        logits_from: Also return logits of all rows from this one on. None: the vocabulary
            projection is not computed.
        stop_after: Last layer whose keys and values are needed; nothing beyond them is computed.

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
    with adapter.record_norm_inputs() as norm_inputs:
        try:
            if logits_from is None:
                adapter.decoder(input_ids, **arguments)
            else:
                keep = input_ids.shape[1] - logits_from
                logits = adapter.model(input_ids, logits_to_keep=keep, **arguments).logits
        except ForwardStopped:
            pass
    if len(cache.layers) <= (adapter.n_layers - 1 if stop_after is None else stop_after):
        raise ConfigurationError(
            "the model dropped its cache, as transformers does under gradient checkpointing in "
            "train mode; call gradient_checkpointing_disable() on it"
        )
    tables = adapter.rotary_tables(sequences.position_ids)
    keys = [tables.unrotate(layer.keys, i) for i, layer in enumerate(cache.layers)]
    raw = [
        adapter.merge_norm_input(norm_inputs[i]) if i in norm_inputs else merge_heads(k)
        for i, k in enumerate(keys)
    ]
    return CacheRows(raw, keys, [merge_heads(layer.values) for layer in cache.layers], logits)


def mean_absolute_error(predicted: Tensor, target: Tensor, real: Tensor) -> Tensor:
    """L1 distance of split rows ``(B, heads, T, dim)``, mean over real rows, heads and dims.

    ``real`` is ``(B, T)`` bool. Padding is left out by selection, so that no NaN of a padded row
    reaches the mean.
    """
    difference = (predicted.float() - target.float()).abs().mean(dim=(1, 3))
    return torch.where(real, difference, 0.0).sum() / real.sum().clamp(min=1)
