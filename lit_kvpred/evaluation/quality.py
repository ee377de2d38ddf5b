"""How close the base on predicted rows stays to the exact base, on held-out text.

As at inference, the first rows of each sequence are predicted and everything is measured on the
rows after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_kvpred.losses import consistency, next_token_labels
from lit_kvpred.model.exact_tail import ExactTail, tail_rows
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.predicted_rows import PredictedRows
from lit_kvpred.model.sequences import Sequences

FIRST_TOKENS = 8
"""Positions after the cut that a user sees first, reported apart."""


@dataclass(frozen=True)
class Comparison:
    """One batch through the exact base, the base on predicted rows, and the auxiliary.

    Attributes:
        exact_logits: ``(B, T - cut, V)``.
        predicted_logits: ``(B, T - cut, V)``.
        auxiliary_logits: ``(B, T - cut, V_auxiliary)``; None where it has no head.
        labels: ``(B, T - cut)`` long.
        label_mask: ``(B, T - cut)`` bool, positions with a label.
        real: ``(B, T - cut)`` bool, positions with a token.
        key_errors: ``(layers,)``, L1 over the predicted rows; 0 where rows are exact.
        value_errors: ``(layers,)``.
        predicted_rows: Number of rows behind the errors.
    """

    exact_logits: Tensor
    predicted_logits: Tensor
    auxiliary_logits: Tensor | None
    labels: Tensor
    label_mask: Tensor
    real: Tensor
    key_errors: Tensor
    value_errors: Tensor
    predicted_rows: int


@torch.no_grad()
def compare(
    model: KVPredictionModel, input_ids: Tensor, sequences: Sequences, cut: int
) -> Comparison:
    """Run a batch ``(B, T)`` all three ways and look at the logits from row ``cut`` on.

    Args:
        model: The joined model.
        input_ids: ``(B, T)`` long.
        sequences: Of these tokens.
        cut: Rows before it are the prompt's but for its last one. All of them are predicted except
            those that the model's exact tail covers.
    """
    return next(compare_tails(model, input_ids, sequences, cut, [model.exact_tail]))


@torch.no_grad()
def compare_tails(
    model: KVPredictionModel,
    input_ids: Tensor,
    sequences: Sequences,
    cut: int,
    exact_tails: Sequence[ExactTail],
) -> Iterator[Comparison]:
    """Like `compare`, once for each length of the exact tail; the exact base runs only once."""
    labels, label_mask = next_token_labels(input_ids, sequences)
    own_head = model.auxiliary.has_head
    auxiliary, exact = model.read_both(
        input_ids,
        sequences,
        logits_from=cut,
        auxiliary_logits_from=cut if own_head else None,
    )
    assert exact.logits is not None
    first, after = model.auxiliary.exact_layers, slice(cut, None)
    for tail in exact_tails:
        # The prompt's last row is row `cut` itself.
        before = slice(max(1, cut + 1 - tail_rows(tail, cut + 1)))
        predicted = model.predict(auxiliary[before])
        logits = model.continue_from(predicted, input_ids, sequences, auxiliary.hidden)
        target = PredictedRows.of_exact(exact[before], model.adapter.shapes, first)
        errors = consistency(*predicted[:2], *target[:2], sequences.real[:, before])
        key_errors, value_errors = (torch.cat([e.new_zeros(first), e]) for e in errors)
        yield Comparison(
            exact.logits,
            logits[:, cut - before.stop :],
            auxiliary.logits,
            labels[:, after],
            label_mask[:, after],
            sequences.real[:, after],
            key_errors,
            value_errors,
            int(sequences.real[:, before].sum()),
        )


class TextQuality(Metric):
    """Agreement, KL and cross-entropies over all positions seen, whatever the batch sizes.

    All states are sums, so that uneven batches and processes are weighted by their positions.

    Args:
        n_layers: Layers of the base.
    """

    full_state_update = False
    higher_is_better = None

    def __init__(self, n_layers: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        scalars = (
            "positions",
            "agreeing",
            "first_positions",
            "first_agreeing",
            "kl",
            "labelled",
            "auxiliary_labelled",
            "cross_entropy",
            "cross_entropy_base",
            "cross_entropy_auxiliary",
            "rows",
        )
        for name in scalars:
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("key_errors", "value_errors"):
            zeros = torch.zeros(n_layers, dtype=torch.float64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, batch: Comparison) -> None:
        """Add a batch."""
        exact = batch.exact_logits.float().log_softmax(-1)
        predicted = batch.predicted_logits.float().log_softmax(-1)
        agreeing = (exact.argmax(-1) == predicted.argmax(-1)) & batch.real
        kl = (exact.exp() * (exact - predicted)).sum(-1)
        self.positions += batch.real.sum()
        self.agreeing += agreeing.sum()
        self.first_positions += batch.real[:, :FIRST_TOKENS].sum()
        self.first_agreeing += agreeing[:, :FIRST_TOKENS].sum()
        self.kl += torch.where(batch.real, kl, 0.0).double().sum()
        self.labelled += batch.label_mask.sum()
        self.cross_entropy += _label_loss(predicted, batch)
        self.cross_entropy_base += _label_loss(exact, batch)
        if batch.auxiliary_logits is not None:
            auxiliary = batch.auxiliary_logits.float().log_softmax(-1)
            self.auxiliary_labelled += batch.label_mask.sum()
            self.cross_entropy_auxiliary += _label_loss(auxiliary, batch)
        self.rows += batch.predicted_rows
        self.key_errors += batch.key_errors.double() * batch.predicted_rows
        self.value_errors += batch.value_errors.double() * batch.predicted_rows

    def compute(self) -> dict[str, Any]:
        """Plain numbers under the names of an evaluation record's ``text`` entry."""
        positions, labelled = self.positions.clamp(min=1), self.labelled.clamp(min=1)
        rows = self.rows.clamp(min=1)
        own = {}
        if self.auxiliary_labelled > 0:
            own["cross_entropy_auxiliary"] = float(
                self.cross_entropy_auxiliary / self.auxiliary_labelled
            )
        return {
            "agreement": float(self.agreeing / positions),
            "agreement_first8": float(self.first_agreeing / self.first_positions.clamp(min=1)),
            "kl": float(self.kl / positions),
            "cross_entropy": float(self.cross_entropy / labelled),
            "cross_entropy_base": float(self.cross_entropy_base / labelled),
            "cross_entropy_gap": float((self.cross_entropy - self.cross_entropy_base) / labelled),
            **own,
            "consistency_keys": (self.key_errors / rows).tolist(),
            "consistency_values": (self.value_errors / rows).tolist(),
            "tokens": int(self.positions),
        }


def _label_loss(log_probabilities: Tensor, batch: Comparison) -> Tensor:
    chosen = log_probabilities.gather(-1, batch.labels[..., None])[..., 0]
    return -torch.where(batch.label_mask, chosen, 0.0).double().sum()
