"""Agreement on text by length of the exact tail."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.held_out import measure_text
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from tests.tiny_models import random_ids, tiny_model


def _model(kind: str, tail: int = 1) -> KVPredictionModel:
    base = tiny_model("llama", weight_scale=8.0)
    torch.manual_seed(0)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary, exact_tail=tail).eval()


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
def test_the_longer_the_tail_the_closer_the_base(kind):
    model, batches = _model(kind), [{"input_ids": random_ids(4, 20, seed=s)} for s in range(2)]
    short, long = measure_text(model, batches, 12, [1, 12])
    assert (short["exact_tail"], long["exact_tail"]) == (1, 12)
    assert short["tokens"] == long["tokens"] == 2 * 4 * 8
    assert long["kl"] < short["kl"]
    assert long["flops"] > short["flops"]
    reference = flops.prefill(model.base.config, 13)
    assert short["flops"] * reference == pytest.approx(round(short["flops"] * reference))


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
def test_first_logits_are_those_of_a_prefill(kind):
    """Row ``cut`` of the text is the last prompt token at inference."""
    tail, cut, ids = 3, 9, random_ids(1, 10)
    model = _model(kind, tail)
    (row,) = measure_text(model, [{"input_ids": ids}], cut, [tail])
    with torch.no_grad():
        predicted = model.prefill(ids).logits[0].double().log_softmax(-1)
        exact = model.base(ids).logits[0, -1].double().log_softmax(-1)
    assert row["tokens"] == 1
    assert row["agreement"] == float(exact.argmax() == predicted.argmax())
    assert row["kl"] == pytest.approx(float((exact.exp() * (exact - predicted)).sum()), rel=1e-3)
