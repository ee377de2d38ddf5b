"""The terms of the training objective, each a mean over unmasked positions (KVP 3.3, DESIGN 7).

Shapes: logits ``(B, T, V)``, labels ``(B, T)`` long, masks ``(B, T)`` bool. A mask without a single
True gives 0, not NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_kvpred.model.reading import mean_absolute_error
from lit_kvpred.model.sequences import Sequences

Reduction = Literal["sum", "mean"]


def next_token_labels(input_ids: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Labels ``(B, T)`` and the mask of positions whose next token continues the same document."""
    labels = input_ids.roll(-1, dims=1)
    mask = sequences.real & sequences.real.roll(-1, dims=1)
    if sequences.document_ids is not None:
        mask &= sequences.document_ids == sequences.document_ids.roll(-1, dims=1)
    mask[:, -1] = False
    return labels, mask


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` ``(B, T)`` where ``mask``; other values may be anything, NaN included."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Next-token cross-entropy in nats."""
    flat = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    return masked_mean(flat.view_as(labels), mask)


def z_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Mean squared log-partition; keeps logits from drifting (KVP 3.3)."""
    return masked_mean(logits.float().logsumexp(-1).square(), mask)


def kl_divergence(exact_logits: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """KL from the exact base's distribution to the predicted one, in nats."""
    exact, predicted = exact_logits.float(), logits.float()
    # Written with log-partitions: as few passes over (B, T, V) as possible.
    partition = exact.logsumexp(-1, keepdim=True)
    probabilities = (exact - partition).exp()
    gap = (probabilities * (exact - predicted)).sum(-1)
    return masked_mean(gap - partition[..., 0] + predicted.logsumexp(-1), mask)


def hidden_distance(
    predicted: Mapping[int, Tensor], exact: Mapping[int, Tensor], mask: Tensor
) -> Tensor:
    """Squared distance of hidden states ``(B, T, hidden)``, mean over layers, rows and components.

    Rows are divided by their root mean square first, as the next layer's norm sees them, so that it
    is twice one minus their cosine and few large rows don't rule.

    Args:
        predicted: By layer, of a forward on predicted rows.
        exact: The same layers of an exact one.
        mask: ``(B, T)`` bool.
    """
    distances = [
        (_unit_rms(predicted[layer]) - _unit_rms(exact[layer])).square().mean(-1)
        for layer in predicted
    ]
    return masked_mean(torch.stack(distances).mean(0), mask)


def _unit_rms(hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden.float(), hidden.shape[-1:], eps=1e-6)


def consistency(
    predicted_keys: Sequence[Tensor],
    predicted_values: Sequence[Tensor],
    exact_keys: Sequence[Tensor],
    exact_values: Sequence[Tensor],
    real: Tensor,
) -> tuple[Tensor, Tensor]:
    """L1 distance of predicted to exact rows per base layer (KVP 3.3).

    Each layer's mean is over real positions, heads and dims, so that wide layers weigh no more.

    Args:
        predicted_keys: Per layer ``(B, heads, T, dim)``, after key norm, un-rotated.
        predicted_values: Per layer ``(B, heads, T, dim)``.
        exact_keys: The base's, in the same form.
        exact_values: The base's, in the same form.
        real: ``(B, T)`` bool.

    Returns:
        Key and value errors, each ``(layers,)``.
    """

    def errors(predicted: Sequence[Tensor], exact: Sequence[Tensor]) -> Tensor:
        if not predicted:
            return torch.zeros(0, device=real.device)
        pairs = zip(predicted, exact, strict=True)
        return torch.stack([mean_absolute_error(p, e, real) for p, e in pairs])

    return errors(predicted_keys, exact_keys), errors(predicted_values, exact_values)


def reduce_layers(key_errors: Tensor, value_errors: Tensor, reduction: Reduction) -> Tensor:
    """Keys and values are added; layers are summed (public configs) or averaged (the paper)."""
    per_layer = key_errors + value_errors
    return per_layer.sum() if reduction == "sum" else per_layer.mean()
