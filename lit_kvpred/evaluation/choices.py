"""Multiple choice by likelihood of the continuation, on a processed context.

The continuation's rows are the scoring model's own, only the context may be predicted, as at
inference (unlike the published evaluation, which predicts every row: KVP 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lit_kvpred.errors import PromptError
from lit_kvpred.generation.prefill import Prefill
from lit_kvpred.model.caches import roll_back

ContextReader = Callable[[Tensor], tuple[Prefill, PreTrainedModel]]
"""Context ids ``(1, N)`` to first-token logits with a cache of N rows, and the model to go on."""


def split_continuation(
    tokenizer: PreTrainedTokenizerBase, context: str, continuation: str
) -> tuple[list[int], list[int]]:
    """Token ids of context and continuation, tokenised together so that the border is the text's.

    Spaces at the end of the context belong to the continuation.

    Raises:
        PromptError: If either part is empty.
    """
    stripped = context.rstrip(" ")
    continuation = context[len(stripped) :] + continuation
    whole = tokenizer(stripped + continuation)["input_ids"]
    length = len(tokenizer(stripped)["input_ids"])
    if length == 0 or len(whole) <= length:
        raise PromptError("a choice needs a non-empty context and a non-empty continuation")
    return whole[:length], whole[length:]


@torch.inference_mode()
def continuation_log_likelihoods(
    read: ContextReader,
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    continuations: Sequence[str],
) -> list[float]:
    """Log-likelihood in nats of each continuation after ``context``.

    Args:
        read: Processes the context; called once per distinct context. The model that it returns
            scores what follows the first token.
        tokenizer: Of that model.
        context: The prompt.
        continuations: Texts to compare, with their leading space.
    """
    likelihoods: list[float] = []
    prepared: list[int] | None = None
    for continuation in continuations:
        ids, following = split_continuation(tokenizer, context, continuation)
        if ids != prepared:
            prepared = ids
            first, model = read(torch.tensor([ids]))
        logits = first.logits[:, None]
        if len(following) > 1:
            logits = torch.cat([logits, _continue(model, first, following[:-1], len(ids))], dim=1)
        target = torch.tensor([following], device=logits.device)
        chosen = logits.float().log_softmax(-1).gather(-1, target[..., None])
        likelihoods.append(float(chosen.sum()))
    return likelihoods


def _continue(model: PreTrainedModel, first: Prefill, tokens: list[int], start: int) -> Tensor:
    """Logits ``(1, len(tokens), V)``; leaves the cache as it was."""
    positions = torch.arange(start, start + len(tokens), device=model.device)[None]
    output = model(
        torch.tensor([tokens], device=model.device),
        position_ids=positions,
        cache=first.cache,
        use_cache=True,
    )
    roll_back(first.cache, len(tokens))
    return output.logits.float()
