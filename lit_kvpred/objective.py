"""One training step's losses: the published objective and ours, computed without waste."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_kvpred.checks import require_number
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.losses import (
    Reduction,
    consistency,
    cross_entropy,
    hidden_distance,
    kl_divergence,
    next_token_labels,
    reduce_layers,
    z_loss,
)
from lit_kvpred.model.exact_tail import tail_behind
from lit_kvpred.model.hidden import hidden_states_leaving
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.predicted_rows import PredictedRows
from lit_kvpred.model.reading import CacheRows
from lit_kvpred.model.sequences import Sequences

Split = Literal["all_predicted", "matched"]
_TERMS = (
    "base_weight",
    "auxiliary_weight",
    "consistency_weight",
    "distillation_weight",
    "hidden_weight",
)


@dataclass(frozen=True)
class Objective:
    """Weights of the loss terms.

    Attributes:
        base_weight: Cross-entropy of the base on predicted rows.
        auxiliary_weight: Cross-entropy of the auxiliary itself.
        consistency_weight: L1 distance of predicted to exact rows.
        consistency_reduction: ``sum`` or ``mean`` over layers.
        distillation_weight: KL to the exact base's logits.
        hidden_weight: Distance of the hidden states that leave the predicted layers to the exact
            base's. Every layer is a teacher of its own, which says more about a batch than its
            logits alone do.
        z_loss_weight: Coefficient of the z-loss that accompanies each cross-entropy.
        split: ``all_predicted``: every row is predicted, as published. ``matched``: rows before a
            random cut are predicted, rows after it are the base's own, as at inference.

    Raises:
        ConfigurationError: If a weight is negative, all are zero, or a word is unknown.
    """

    base_weight: float = 1.0
    auxiliary_weight: float = 1.0
    consistency_weight: float = 1.0
    consistency_reduction: Reduction = "mean"
    distillation_weight: float = 0.0
    hidden_weight: float = 0.0
    z_loss_weight: float = 1e-4
    split: Split = "all_predicted"

    def __post_init__(self) -> None:
        for name in (*_TERMS, "z_loss_weight"):
            require_number(name, getattr(self, name), least=0, below=math.inf)
        if not any(getattr(self, name) for name in _TERMS):
            raise ConfigurationError(f"at least one of {', '.join(_TERMS)} must be positive")
        if self.consistency_reduction not in ("sum", "mean"):
            raise ConfigurationError(
                f"consistency_reduction '{self.consistency_reduction}' must be 'sum' or 'mean'"
            )
        if self.split not in ("all_predicted", "matched"):
            raise ConfigurationError(f"split '{self.split}' must be 'all_predicted' or 'matched'")

    @property
    def runs_base(self) -> bool:
        """Whether the base has to run on predicted rows."""
        return self.base_weight > 0 or self.follows_exact

    @property
    def follows_exact(self) -> bool:
        """Whether the base's exact forward over the whole depth is a teacher."""
        return self.distillation_weight > 0 or self.hidden_weight > 0

    @property
    def predicts(self) -> bool:
        """Whether rows have to be predicted at all."""
        return self.runs_base or self.consistency_weight > 0


def training_losses(
    model: KVPredictionModel,
    objective: Objective,
    input_ids: Tensor,
    sequences: Sequences,
    cut: int | None = None,
) -> dict[str, Tensor]:
    """All terms with a positive weight, and their weighted sum under ``loss``.

    Args:
        model: The joined model.
        objective: Weights.
        input_ids: ``(B, T)`` long.
        sequences: Of these tokens.
        cut: For the matched split: rows before it are predicted, logits after it count. None
            predicts all rows.

    Returns:
        Scalars by name: ``loss`` and some of ``base_loss``, ``auxiliary_loss``,
        ``consistency_loss``, ``distillation_loss``, ``hidden_loss``.
    """
    labels, mask = next_token_labels(input_ids, sequences)
    # Logits before the last row of the tail are never used at inference.
    skipped = 0 if cut is None else tail_behind(model.exact_tail, cut) - 1
    after = slice((cut or 0) + skipped, None)
    first = model.auxiliary.exact_layers if objective.hidden_weight > 0 else model.adapter.n_layers
    with hidden_states_leaving(model.adapter, first) as exact_hidden:
        auxiliary, exact = _read(model, objective, input_ids, sequences, cut)
    losses: dict[str, Tensor] = {}
    weighted: list[Tensor] = []

    def add(name: str, value: Tensor, weight: float) -> None:
        losses[name] = value
        weighted.append(weight * value)

    if objective.auxiliary_weight > 0:
        assert auxiliary.logits is not None
        term = _with_z_loss(auxiliary.logits, labels, mask, objective)
        add("auxiliary_loss", term, objective.auxiliary_weight)
    if objective.predicts:
        predicted = model.predict(auxiliary if cut is None else auxiliary[slice(cut)])
        if objective.runs_base:
            with hidden_states_leaving(model.adapter, first) as hidden:
                logits = (
                    model.replay(predicted, input_ids, sequences)
                    if cut is None
                    else model.continue_from(predicted, input_ids, sequences, auxiliary.hidden)
                )[:, skipped:]
            if objective.base_weight > 0:
                term = _with_z_loss(logits, labels[:, after], mask[:, after], objective)
                add("base_loss", term, objective.base_weight)
            if objective.distillation_weight > 0:
                assert exact is not None
                assert exact.logits is not None
                real = sequences.real[:, after]
                term = kl_divergence(exact.logits[:, skipped:], logits, real)
                add("distillation_loss", term, objective.distillation_weight)
            if objective.hidden_weight > 0:
                rows = slice(cut, None)
                exact_rows = {layer: state[:, rows] for layer, state in exact_hidden.items()}
                term = hidden_distance(hidden, exact_rows, sequences.real[:, rows])
                add("hidden_loss", term, objective.hidden_weight)
        if objective.consistency_weight > 0:
            assert exact is not None
            below = model.auxiliary.exact_layers
            target = PredictedRows.of_exact(exact[slice(cut)], model.adapter.shapes, below)
            real = sequences.real[:, :cut]
            errors = consistency(*predicted[:2], *target[:2], real)
            term = reduce_layers(*errors, objective.consistency_reduction)
            add("consistency_loss", term, objective.consistency_weight)
    losses["loss"] = torch.stack(weighted).sum()
    return losses


def _read(
    model: KVPredictionModel,
    objective: Objective,
    input_ids: Tensor,
    sequences: Sequences,
    cut: int | None,
) -> tuple[CacheRows, CacheRows | None]:
    """The auxiliary's rows, and the base's exact ones if a term needs them."""
    logits_from = (cut or 0) if objective.follows_exact else None
    compares = logits_from is not None or objective.consistency_weight > 0
    own_logits_from = 0 if objective.auxiliary_weight > 0 else None
    if model.auxiliary.cut is not None:
        # All tokens pass the shared layers here, so that the base goes on from there.
        if compares:
            return model.read_both(
                input_ids,
                sequences,
                logits_from=logits_from,
                auxiliary_logits_from=own_logits_from,
            )
        return model.read_auxiliary(input_ids, sequences, logits_from=own_logits_from), None
    exact = None
    if logits_from is not None:
        exact = model.read_base(input_ids, sequences, logits_from=logits_from)
    elif compares:
        exact = model.read_base(input_ids[:, :cut], sequences[slice(cut)])
    if own_logits_from is not None:
        return model.read_auxiliary(input_ids, sequences, logits_from=0), exact
    return model.read_auxiliary(input_ids[:, :cut], sequences[slice(cut)]), exact


def _with_z_loss(logits: Tensor, labels: Tensor, mask: Tensor, objective: Objective) -> Tensor:
    loss = cross_entropy(logits, labels, mask)
    if objective.z_loss_weight > 0:
        loss = loss + objective.z_loss_weight * z_loss(logits, mask)
    return loss
