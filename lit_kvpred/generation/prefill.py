"""From a prompt to the first token's logits and a cache: predicted or exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from transformers import Cache

from lit_kvpred.errors import PromptError
from lit_kvpred.model.caches import GrowingCache, empty_static_cache, padding_mask
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.sequences import Sequences

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel


class Prefill(NamedTuple):
    """A processed prompt.

    Attributes:
        logits: ``(B, V)``, prediction of the first answer token.
        cache: N rows.
    """

    logits: Tensor
    cache: Cache


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
    if input_ids.ndim != 2 or input_ids.shape[1] == 0 or input_ids.shape[0] == 0:
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
    adapter: FamilyAdapter, input_ids: Tensor, sequences: Sequences, new_tokens: int, *, reader: str
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
    """Predict the rows of all prompt tokens but the last; the base runs the last one (KVP 4.2)."""
    sequences = describe_prompt(model.adapter, input_ids, attention_mask)
    model.restore_auxiliary()
    if input_ids.shape[1] > 1:
        auxiliary = model.auxiliary.adapter
        _check_readable(auxiliary, input_ids[:, :-1], sequences[:-1], 0, reader="the auxiliary")
    cache = model.predicted_cache(input_ids[:, :-1], sequences[:-1], static_length=static_length)
    return Prefill(_run_base(model.adapter, input_ids[:, -1:], sequences, cache), cache)


def exact_prefill(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    static_length: int | None = None,
) -> Prefill:
    """The base's ordinary prefill, every layer keeping its full length."""
    sequences = describe_prompt(adapter, input_ids, attention_mask)
    cache: Cache = (
        GrowingCache()
        if static_length is None
        else empty_static_cache(adapter.n_layers, static_length)
    )
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
