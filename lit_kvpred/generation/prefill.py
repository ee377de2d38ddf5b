"""From a prompt to the first token's logits and a cache: predicted or exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from transformers import Cache

from lit_kvpred.generation.prompt import Prompt, check_readable
from lit_kvpred.model.caches import empty_cache, padding_mask
from lit_kvpred.model.depth import DepthCut
from lit_kvpred.model.exact_tail import tail_rows
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.reading import rows_of_cache
from lit_kvpred.sirius.sparsity import NeuronStatistics, counting

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel


class Prefill(NamedTuple):
    """A processed prompt.

    Attributes:
        logits: ``(B, V)``, prediction of the first answer token.
        cache: N rows.
        predicted_rows: How many of them, from the first unknown one, are predicted.
        hidden: ``(B, N - known, hidden)`` leaving the shared layers of a prefix, of the rows that
            were not known; None for other auxiliaries.
    """

    logits: Tensor
    cache: Cache
    predicted_rows: int = 0
    hidden: Tensor | None = None


def predicted_prefill(
    model: KVPredictionModel,
    prompt: Prompt,
    *,
    static_length: int | None = None,
    statistics: NeuronStatistics | None = None,
) -> Prefill:
    """Predict the rows of all prompt tokens but the last ones; the base runs these (KVP 4.2).

    The base runs the tail that ``model.exact_tail`` says, all rows where the unknown part of the
    prompt is no longer. Rows known from a context stay as they are.

    Args:
        model: The joined model.
        prompt: The prompts.
        static_length: Slots of a static cache; None makes a dynamic one.
        statistics: Counts the neurons of all rows that are computed exactly.
    """
    model.restore_auxiliary()
    if model.auxiliary.cut is not None:
        return _prefix_prefill(model, model.auxiliary.cut, prompt, static_length, statistics)
    stop = _first_exact(model, prompt)
    cache = _known_cache(model.adapter, prompt, prompt.known, static_length)
    if stop > prompt.known:
        before = slice(stop)
        ids, sequences = prompt.token_ids[:, before], prompt.sequences[before]
        check_readable(model.auxiliary.adapter, ids, sequences, 0, "the auxiliary")
        predicted = model.predict(model.read_auxiliary(ids, sequences)).after(prompt.known)
        model.fill(cache, predicted, sequences[prompt.known :])
        _restore_known(prompt, cache, stop)
    counted = statistics if stop == prompt.known else None
    logits = _run_base(model.adapter, prompt, stop, cache, counted)
    return Prefill(logits, cache, stop - prompt.known)


def _prefix_prefill(
    model: KVPredictionModel,
    cut: DepthCut,
    prompt: Prompt,
    static_length: int | None,
    statistics: NeuronStatistics | None,
) -> Prefill:
    """All rows through the shared layers, the last ones through the layers above as well."""
    adapter, known = model.adapter, prompt.known
    stop = _first_exact(model, prompt)
    # The last known row passes the shared layers again: features look one row back.
    first = max(0, known - 1)
    cache = _known_cache(adapter, prompt, first, static_length)
    sequences = prompt.sequences[first:]
    lower, upper = slice(cut.depth), slice(cut.depth, None)
    with (
        cut.adapter.record_norm_inputs() as norm_inputs,
        counting(statistics, sequences.real, lower),
    ):
        hidden = cut.run_lower(
            prompt.token_ids[:, first:],
            cache,
            position_ids=sequences.position_ids,
            attention_mask=padding_mask(prompt.sequences.real, cache),
        )
    if prompt.context is not None and known > first:
        real = prompt.sequences.real
        prompt.context.fill(cache, slice(first, known), real, cut.depth)
    if stop > known:
        rows = slice(first, prompt.n_rows)
        stored = [
            (layer.keys[:, :, rows], layer.values[:, :, rows])
            for layer in cache.layers[: cut.depth]
        ]
        read = rows_of_cache(adapter, stored, sequences, norm_inputs, hidden=hidden)
        predicted = model.predict(read[: stop - first])._replace(exact=())
        model.fill(cache, predicted.after(known - first), prompt.sequences[known:stop])
        _restore_known(prompt, cache, stop, cut.depth)
    hidden = hidden[:, known - first :]
    predicted_rows = 0 if cut.depth == adapter.n_layers else stop - known
    counted = None if predicted_rows else statistics
    with counting(counted, prompt.sequences.real[:, stop:], upper):
        logits = cut.run_upper(
            hidden[:, stop - known :],
            cache,
            logits_to_keep=1,
            position_ids=prompt.sequences.position_ids[:, stop:],
            attention_mask=padding_mask(prompt.sequences.real, cache),
        )
    return Prefill(logits[:, -1].float(), cache, predicted_rows, hidden)


def exact_prefill(
    adapter: FamilyAdapter,
    prompt: Prompt,
    *,
    static_length: int | None = None,
    statistics: NeuronStatistics | None = None,
) -> Prefill:
    """The base's ordinary prefill, every layer keeping its full length."""
    cache = _known_cache(adapter, prompt, prompt.known, static_length)
    return Prefill(_run_base(adapter, prompt, prompt.known, cache, statistics), cache)


def _first_exact(model: KVPredictionModel, prompt: Prompt) -> int:
    """Index of the first row behind the predicted ones."""
    return prompt.n_rows - tail_rows(model.exact_tail, prompt.n_rows - prompt.known)


def _known_cache(
    adapter: FamilyAdapter, prompt: Prompt, rows: int, static_length: int | None
) -> Cache:
    """A cache that holds the first ``rows`` rows of the context."""
    cache = empty_cache(adapter.n_layers, static_length)
    if prompt.context is not None and rows:
        prompt.context.fill(cache, slice(rows), prompt.sequences.real)
    return cache


def _restore_known(prompt: Prompt, cache: Cache, stop: int, first_layer: int = 0) -> None:
    """Rows of the context that shorter prompts had to read again are exact all the same."""
    if prompt.context is not None and not prompt.sequences.all_real:
        slots = slice(prompt.known, stop)
        prompt.context.restore(cache, slots, prompt.sequences.real, prompt.known, first_layer)


def _run_base(
    adapter: FamilyAdapter,
    prompt: Prompt,
    first: int,
    cache: Cache,
    statistics: NeuronStatistics | None,
) -> Tensor:
    """Run the base over the rows from ``first`` on; ``(B, V)`` logits of the last."""
    with counting(statistics, prompt.sequences.real[:, first:]):
        output = adapter.model(
            prompt.token_ids[:, first:],
            position_ids=prompt.sequences.position_ids[:, first:],
            attention_mask=padding_mask(prompt.sequences.real, cache),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    return output.logits[:, -1].float()
