"""The calibration pass: the closed-form fit of a predictor to the base's exact rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from lit_kvpred.checks import require_number
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.attention import attention_received
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.least_squares import (
    LeastSquaresFit,
    NormalEquations,
    Weighting,
    attention_weights,
)
from lit_kvpred.model.sequences import sequences_of


@torch.no_grad()
def calibrate(
    model: KVPredictionModel,
    batches: Iterable[Mapping[str, Tensor] | Tensor],
    *,
    ridge: float | None,
    weighting: Weighting,
) -> LeastSquaresFit:
    """Fit the predictor of ``model`` in one pass; see `KVPredictionModel.fit_least_squares`."""
    if ridge is not None:
        require_number("ridge", ridge, least=0, below=math.inf)
    if weighting not in ("attention", "uniform"):
        raise ConfigurationError(
            f"weighting '{weighting}' is unknown; use 'attention' or 'uniform'"
        )
    begin = turn = time.perf_counter()
    forward = waited = 0.0
    equations = NormalEquations(model.predictor)
    device = model.base.device
    for batch in batches:
        waited += time.perf_counter() - turn
        fields = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
        fields = {name: value.to(device) for name, value in fields.items()}
        sequences = sequences_of(fields)
        model.adapter.require_positions(sequences.position_ids)
        before = time.perf_counter()
        with ExitStack() as stack:
            received = None
            if weighting == "attention":
                # The last exact layer as well: a forward for keys and values alone leaves out
                # the attention of the last one.
                first = max(0, model.auxiliary.exact_layers - 1)
                received = stack.enter_context(attention_received(model.adapter, sequences, first))
            auxiliary, base = model.read_both(fields["input_ids"], sequences)
        if device.type == "cuda":
            torch.cuda.synchronize()
        forward += time.perf_counter() - before
        attention = None if received is None else received.mean()
        weights = None if attention is None else attention_weights(attention)
        equations.add(auxiliary, base, sequences.real, weights)
        turn = time.perf_counter()
    waited += time.perf_counter() - turn
    fit = equations.solve_(ridge)
    seconds = time.perf_counter() - begin - waited
    return replace(fit, seconds=seconds, forward_seconds=forward)
