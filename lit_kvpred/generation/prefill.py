"""From a prompt to the first token's logits and a cache: predicted or exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from transformers import Cache

from lit_kvpred.errors import PromptError
from lit_kvpred.model.caches import empty_cache, padding_mask
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.prefix import PrefixAuxiliary
from lit_kvpred.model.reading import rows_of_cache
from lit_kvpred.model.sequences import Sequences

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel


class Prefill(NamedTuple):
    """A processed prompt.

    Attributes:
        logits: ``(B, V)``, prediction of the first answer token.
        cache: N rows.
        predicted_rows: How many of them, from the first, are predicted.
        hidden: ``(B, N, hidden)`` leaving the shared layers of a prefix; None for others.
    """

    logits: Tensor
    cache: Cache
    predicted_rows: int = 0
    hidden: Tensor | None = None


def describe_prompt(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    new_tokens: int = 0,
) -> Sequences:
    """Check a prompt batch and describe its positions.

    Args:
        adapter: The base's adapter.
        input_ids: ``(B, N)`` long.
        attention_mask: ``(B, N)``, 0 at left padding; None means no padding.
        new_tokens: Tokens that shall follow the prompt.

    Raises:
        PromptError: If a prompt is empty, padded on the right, holds unknown ids, or doesn't fit
            the model's positions together with ``new_tokens``.
    """
    if input_ids.ndim != 2:
        raise PromptError(
            f"input_ids must be (prompts, tokens), got shape {tuple(input_ids.shape)}; "
            "add a batch dimension"
        )
    if input_ids.shape[1] == 0 or input_ids.shape[0] == 0:
        raise PromptError(
            f"the prompt is empty (input_ids of shape {tuple(input_ids.shape)}); "
            "give at least one token"
        )
    batch_size, length = input_ids.shape
    sequences = Sequences.unpadded(batch_size, length, input_ids.device)
    if attention_mask is not None:
        if attention_mask.shape != input_ids.shape:
            raise PromptError(
                f"attention_mask {tuple(attention_mask.shape)} must have the shape of input_ids "
                f"{tuple(input_ids.shape)}"
            )
        if not bool(attention_mask.bool().all()):
            sequences = Sequences.padded(attention_mask)
        _check_left_padding(sequences.real)
    _check_readable(adapter, input_ids, sequences, new_tokens, reader="the base")
    return sequences


def _check_readable(
    adapter: FamilyAdapter, input_ids: Tensor, sequences: Sequences, new_tokens: int, reader: str
) -> None:
    vocabulary = adapter.model.get_input_embeddings().weight.shape[0]
    unknown = input_ids[(input_ids < 0) | (input_ids >= vocabulary)]
    if unknown.numel() > 0:
        raise PromptError(
            f"the prompt holds token id {int(unknown[0])} but {reader} knows ids below "
            f"{vocabulary}; tokenize it with the base's own tokenizer"
        )
    longest = int(sequences.real.sum(1).max()) + new_tokens
    if adapter.max_positions is not None and longest > adapter.max_positions:
        raise PromptError(
            f"prompt and answer need {longest} positions ({longest - new_tokens} + {new_tokens}) "
            f"but {reader} has {adapter.max_positions}; shorten the prompt or ask for fewer tokens"
        )


def _check_left_padding(real: Tensor) -> None:
    if not bool(real.any(1).all()):
        raise PromptError("a prompt of the batch is empty (all padding); leave it out")
    if not bool((real.long().diff(dim=1) >= 0).all()):
        raise PromptError(
            "prompts must be padded on the left only; set tokenizer.padding_side = 'left'"
        )


def predicted_prefill(
    model: KVPredictionModel,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    static_length: int | None = None,
) -> Prefill:
    """Predict the rows of all prompt tokens but the last ones; the base runs these (KVP 4.2).

    The base runs ``model.exact_tail`` rows, all of them where the prompt is no longer.
    """
    sequences = describe_prompt(model.adapter, input_ids, attention_mask)
    model.restore_auxiliary()
    predicted_rows = max(0, input_ids.shape[1] - model.exact_tail)
    if isinstance(model.auxiliary, PrefixAuxiliary):
        return _prefix_prefill(model, input_ids, sequences, predicted_rows, static_length)
    before = slice(predicted_rows)
    if predicted_rows > 0:
        auxiliary = model.auxiliary.adapter
        _check_readable(auxiliary, input_ids[:, before], sequences[before], 0, "the auxiliary")
    cache = model.predicted_cache(
        input_ids[:, before], sequences[before], static_length=static_length
    )
    logits = _run_base(model.adapter, input_ids[:, predicted_rows:], sequences, cache)
    return Prefill(logits, cache, predicted_rows)


def _prefix_prefill(
    model: KVPredictionModel,
    input_ids: Tensor,
    sequences: Sequences,
    predicted_rows: int,
    static_length: int | None,
) -> Prefill:
    """All rows through the shared layers, the last ones through the layers above as well."""
    assert isinstance(model.auxiliary, PrefixAuxiliary)
    adapter, cut = model.adapter, model.auxiliary.cut
    cache = empty_cache(adapter.n_layers, static_length)
    length = input_ids.shape[1]
    with cut.adapter.record_norm_inputs() as norm_inputs:
        hidden = cut.run_lower(
            input_ids,
            cache,
            position_ids=sequences.position_ids,
            attention_mask=padding_mask(sequences.real, cache),
        )
    if predicted_rows > 0:
        before = slice(predicted_rows)
        stored = [
            (layer.keys[:, :, :length], layer.values[:, :, :length])
            for layer in cache.layers[: cut.depth]
        ]
        rows = rows_of_cache(adapter, stored, sequences.position_ids, norm_inputs, hidden=hidden)
        predicted = model.predict(rows[before])._replace(exact=())
        model.fill(cache, predicted, sequences[before])
    arguments = {
        "position_ids": sequences.position_ids[:, predicted_rows:],
        "attention_mask": padding_mask(sequences.real, cache),
    }
    logits = cut.run_upper(hidden[:, predicted_rows:], cache, logits_to_keep=1, **arguments)
    if cut.depth == adapter.n_layers:
        predicted_rows = 0
    return Prefill(logits[:, -1].float(), cache, predicted_rows, hidden)


def exact_prefill(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    static_length: int | None = None,
) -> Prefill:
    """The base's ordinary prefill, every layer keeping its full length."""
    sequences = describe_prompt(adapter, input_ids, attention_mask)
    cache = empty_cache(adapter.n_layers, static_length)
    return Prefill(_run_base(adapter, input_ids, sequences, cache), cache)


def _run_base(
    adapter: FamilyAdapter, input_ids: Tensor, sequences: Sequences, cache: Cache
) -> Tensor:
    rows = input_ids.shape[1]
    output = adapter.model(
        input_ids,
        position_ids=sequences.position_ids[:, -rows:],
        attention_mask=padding_mask(sequences.real, cache),
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1].float()
