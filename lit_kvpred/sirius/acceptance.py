"""The judge of drafted tokens: an absolute threshold on tempered probability (Sirius 3.1-3.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def token_probabilities(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Tempered probability of each drafted token.

    Args:
        logits: ``(B, g, V)``; row i is the full model's prediction of drafted token i.
        tokens: ``(B, g)`` long.
        temperature: Divides the logits (.6 in the paper's code).

    Returns:
        ``(B, g)`` float32.
    """
    tempered = logits.float() / temperature
    chosen = tempered.gather(-1, tokens[..., None])[..., 0]
    return (chosen - tempered.logsumexp(-1)).exp()


def accepted_prefix(
    logits: Tensor, tokens: Tensor, lengths: Tensor, *, threshold: float, temperature: float
) -> Tensor:
    """Length of the longest accepted prefix of each draft.

    Token i is accepted iff ``softmax(logits_i / temperature)[token_i] >= threshold``; the first
    failure ends the prefix. A threshold above 1 rejects everything, 0 accepts everything.

    Args:
        logits: ``(B, g, V)``.
        tokens: ``(B, g)`` long.
        lengths: ``(B,)`` long: drafted tokens per row; the rest of a row is padding.
        threshold: Least tempered probability.
        temperature: Divides the logits.

    Returns:
        ``(B,)`` long, between 0 and ``lengths``.
    """
    passed = token_probabilities(logits, tokens, temperature) >= threshold
    inside = torch.arange(tokens.shape[1], device=tokens.device)[None] < lengths[:, None]
    return (passed & inside).long().cumprod(dim=1).sum(dim=1)
