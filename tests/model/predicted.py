"""Caches of predicted rows alone, for tests that look at them."""

from __future__ import annotations

from torch import Tensor
from transformers import Cache

from lit_kvpred.model.caches import empty_cache
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import Sequences


def predicted_cache(
    model: KVPredictionModel,
    input_ids: Tensor,
    sequences: Sequences,
    *,
    static_length: int | None = None,
) -> Cache:
    """A base cache whose rows for ``input_ids`` ``(B, T)`` are all predicted; T may be 0."""
    cache = empty_cache(model.adapter.n_layers, static_length)
    if input_ids.shape[1] > 0:
        model.fill(cache, model.predict(model.read_auxiliary(input_ids, sequences)), sequences)
    return cache
