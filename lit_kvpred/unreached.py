"""Freezing parameters that an objective can't reach.

Without the auxiliary's own cross-entropy the top auxiliary layer's output projection, its
feed-forward part, the final norm and the head get no gradient, which distributed training would
report as an error (and an optimiser would only decay).
"""

from __future__ import annotations

import torch

from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import Sequences
from lit_kvpred.objective import Objective, training_losses

_PROBE_TOKENS = 8


def freeze_unreached(model: KVPredictionModel, objective: Objective) -> list[str]:
    """Run the objective once on a few tokens and freeze what got no gradient.

    Returns:
        Names of the parameters frozen.
    """
    ids = torch.arange(_PROBE_TOKENS, device=model.base.device)[None]
    sequences = Sequences.unpadded(1, _PROBE_TOKENS, ids.device)
    cut = None if objective.split == "all_predicted" else _PROBE_TOKENS // 2
    with torch.enable_grad():
        training_losses(model, objective, ids, sequences, cut)["loss"].backward()
    frozen = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    model.zero_grad(set_to_none=True)
    return frozen
