"""A checked prompt batch: its tokens, where they stand, and what is known of them already."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_kvpred.errors import PromptError
from lit_kvpred.generation.context import ExactContext
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.sequences import Sequences


@dataclass(frozen=True)
class Prompt:
    """Prompts of a batch.

    Attributes:
        token_ids: ``(B, N)`` long, left-padded.
        sequences: Of these tokens.
        known: Rows, from the first, that ``context`` holds exactly. Shorter prompts of a batch have
            padding among them and read as many tokens of the context again.
        context: Where they come from.
    """

    token_ids: Tensor
    sequences: Sequences
    known: int = 0
    context: ExactContext | None = None

    @property
    def batch_size(self) -> int:
        """Number of prompts."""
        return self.token_ids.shape[0]

    @property
    def n_rows(self) -> int:
        """Length N of the longest prompt."""
        return self.token_ids.shape[1]


def describe_prompt(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    new_tokens: int = 0,
    context: ExactContext | None = None,
) -> Prompt:
    """Check a prompt batch and describe its positions.

    Args:
        adapter: The base's adapter.
        input_ids: ``(B, N)`` long.
        attention_mask: ``(B, N)``, 0 at left padding; None means no padding.
        new_tokens: Tokens that shall follow the prompt.
        context: Exact rows; those of the tokens that all prompts begin with are used.

    Raises:
        PromptError: If a prompt is empty, padded on the right, holds unknown ids, or doesn't fit
            the positions together with ``new_tokens``, or if the context is another model's.
    """
    _check_tensor("input_ids", input_ids)
    _check_ids(input_ids)
    input_ids = input_ids.long()
    batch_size, length = input_ids.shape
    sequences = Sequences.unpadded(batch_size, length, input_ids.device)
    if attention_mask is not None:
        _check_tensor("attention_mask", attention_mask)
        _check_mask(attention_mask, input_ids)
        if not bool(attention_mask.bool().all()):
            sequences = Sequences.padded(attention_mask)
        _check_left_padding(sequences.real)
    check_readable(adapter, input_ids, sequences, new_tokens, reader="the base")
    if context is None:
        return Prompt(input_ids, sequences)
    if not isinstance(context, ExactContext):
        raise PromptError(
            f"context must come from exact_context or keep_context, got {type(context).__name__}"
        )
    context.check_model(adapter)
    known = context.shared_with([p[r] for p, r in zip(input_ids, sequences.real, strict=True)])
    return Prompt(input_ids, sequences, known, context)


def check_readable(
    adapter: FamilyAdapter, input_ids: Tensor, sequences: Sequences, new_tokens: int, reader: str
) -> None:
    """Raise `PromptError` if ``reader`` doesn't know a token or lacks positions."""
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


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise PromptError(
            f"{name} must be a tensor, got {type(value).__name__}; "
            "tokenize with return_tensors='pt'"
        )


def _check_ids(input_ids: Tensor) -> None:
    if input_ids.ndim != 2:
        raise PromptError(
            f"input_ids must be (prompts, tokens), got shape {tuple(input_ids.shape)}; "
            "add a batch dimension"
        )
    if input_ids.shape[1] == 0 or input_ids.shape[0] == 0:
        raise PromptError("the prompt is empty; give at least one token")
    kind = input_ids.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise PromptError(
            f"input_ids must hold token ids, whole numbers, got {str(kind).removeprefix('torch.')};"
            " pass what the tokenizer returns"
        )


def _check_mask(attention_mask: Tensor, input_ids: Tensor) -> None:
    if attention_mask.is_complex() or bool(attention_mask.isnan().any()):
        raise PromptError("attention_mask holds no numbers; give 1 for tokens and 0 for padding")
    if attention_mask.shape != input_ids.shape:
        raise PromptError(
            f"attention_mask {tuple(attention_mask.shape)} must have the shape of input_ids "
            f"{tuple(input_ids.shape)}"
        )


def _check_left_padding(real: Tensor) -> None:
    if not bool(real.any(1).all()):
        raise PromptError("a prompt of the batch is empty (all padding); leave it out")
    if not bool((real.long().diff(dim=1) >= 0).all()):
        raise PromptError(
            "prompts must be padded on the left only; set tokenizer.padding_side = 'left'"
        )
