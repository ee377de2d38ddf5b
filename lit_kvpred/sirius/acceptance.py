"""The judges of drafted tokens: a threshold (Sirius 3.1-3.2), and speculative decoding's rule."""

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
    return _prefix(token_probabilities(logits, tokens, temperature) >= threshold, lengths)


def lossless_prefix(
    probabilities: Tensor, drawn_from: Tensor, tokens: Tensor, lengths: Tensor, chances: Tensor
) -> tuple[Tensor, Tensor]:
    """Length of the accepted prefix of each draft by speculative decoding's rule (Sirius A.2).

    A token x drawn from q is accepted with probability ``min(1, p(x) / q(x))``; in place of the
    first rejected one a token is drawn from ``max(p - q, 0)``, normalised. What comes out is
    distributed as if it had been drawn from p. Greedy decoding is the case of one-hot p and q.

    Args:
        probabilities: ``(B, g + 1, V)``, p; row i is the full model's for drafted token i.
        drawn_from: ``(B, g, V)``, q.
        tokens: ``(B, g)`` long.
        lengths: ``(B,)`` long: drafted tokens per row; the rest of a row is padding.
        chances: ``(B, g)``, uniform in [0, 1).

    Returns:
        ``(B,)`` long, between 0 and ``lengths``, and ``(B, V)``, what to draw the next token from.
    """
    index = tokens[..., None]
    p = probabilities[:, :-1].gather(-1, index)[..., 0]
    q = drawn_from.gather(-1, index)[..., 0]
    accepted = _prefix(chances * q < p, lengths)
    rows = torch.arange(len(tokens), device=tokens.device)
    following = probabilities[rows, accepted]
    rejected = accepted < lengths
    surplus = (following - drawn_from[rows, accepted.clamp(max=tokens.shape[1] - 1)]).clamp(min=0)
    total = surplus.sum(-1, keepdim=True)
    # Nothing is left where p and q differ by rounding alone.
    usable = rejected[:, None] & (total > 0)
    return accepted, torch.where(usable, surplus / total.clamp(min=1e-30), following)


def _prefix(passed: Tensor, lengths: Tensor) -> Tensor:
    """``(B,)`` long: how many of the first ``lengths[b]`` of ``passed`` ``(B, g)`` lead the row."""
    inside = torch.arange(passed.shape[1], device=passed.device)[None] < lengths[:, None]
    return (passed & inside).long().cumprod(dim=1).sum(dim=1)
