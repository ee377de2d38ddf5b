"""What generation must come to, computed the slow way: whole forwards, one prompt at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_kvpred.generation.context import ExactContext
from lit_kvpred.model.caches import RecordingCache

Complete = Callable[[list[int]], bool]
"""Whether an answer ends with its last token."""


def complete_at(max_new_tokens: int, eos_ids: Sequence[int] = ()) -> Complete:
    """The rule of an answer without stop strings."""
    return lambda tokens: bool(tokens) and (len(tokens) >= max_new_tokens or tokens[-1] in eos_ids)


@torch.no_grad()
def greedy_answer(
    base: PreTrainedModel, prompt: Tensor, complete: Complete, start: Sequence[int] = ()
) -> list[int]:
    """The base's own greedy text after ``prompt`` ``(N,)`` and ``start``, start included."""
    tokens = list(start)
    while not complete(tokens):
        logits = base(_text(prompt, tokens), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens


@torch.no_grad()
def corrected_answer(
    base: PreTrainedModel,
    prompt: Tensor,
    draft: Sequence[int],
    complete: Complete,
    *,
    threshold: float,
    temperature: float = 0.6,
    keep_all: bool = False,
) -> tuple[list[int], int]:
    """The answer after judging ``draft``, and how many of its tokens were accepted.

    ``keep_all`` keeps the whole draft whatever was accepted.
    """
    logits = base(_text(prompt, draft), use_cache=False).logits[0, len(prompt) - 1 :].double()
    accepted = 0
    for row, token in zip(logits, draft, strict=False):
        if float((row / temperature).softmax(-1)[token]) < threshold:
            break
        accepted += 1
    kept = len(draft) if keep_all else accepted
    return greedy_answer(base, prompt, complete, draft[:kept]), accepted


def _text(prompt: Tensor, tokens: Sequence[int]) -> Tensor:
    return torch.cat([prompt, torch.tensor(list(tokens), dtype=torch.long)])[None]


@torch.no_grad()
def assert_teacher_forced(base: PreTrainedModel, context: ExactContext) -> None:
    """The rows of a context are those of one plain pass over its tokens."""
    reference = RecordingCache()
    base(context.token_ids[None], cache=reference, use_cache=True)
    for (keys, values), layer in zip(context.rows, reference.layers, strict=True):
        torch.testing.assert_close(keys, layer.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(values, layer.values, atol=1e-4, rtol=1e-4)
