"""Text measures: exact for an identity predictor, weighted by positions, equal by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lit_kvpred.evaluation.quality import TextQuality, compare
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import Sequences
from tests.model.predicted import predicted_cache
from tests.tiny_models import tiny_model


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 128, (batch, length), generator=generator)


@pytest.fixture
def model() -> KVPredictionModel:
    base = tiny_model("qwen3")
    return KVPredictionModel(base, build_auxiliary(base, "pruned", keep=0.5))


def measure(model: KVPredictionModel, *batches: torch.Tensor, cut: int = 6) -> dict:
    quality = TextQuality(model.adapter.n_layers)
    for batch in batches:
        quality.update(compare(model, batch, Sequences.unpadded(*batch.shape, batch.device), cut))
    return quality.compute()


def test_identity_predictor_is_the_base():
    base = tiny_model("gemma2")
    model = KVPredictionModel(base, build_auxiliary(base, "pruned", keep=[0, 1, 2, 3]))
    model.predictor.set_identity_()
    measured = measure(model, ids(2, 16))
    assert measured["agreement"] == measured["agreement_first8"] == 1.0
    assert measured["kl"] == pytest.approx(0.0, abs=1e-6)
    assert measured["cross_entropy_gap"] == pytest.approx(0.0, abs=1e-6)
    assert max(measured["consistency_keys"] + measured["consistency_values"]) < 1e-5


def test_measures_by_hand(model):
    batch, cut = ids(1, 12), 5
    measured = measure(model, batch, cut=cut)
    with torch.no_grad():
        exact = model.base(batch).logits[0, cut:].double().log_softmax(-1)
        auxiliary = model.auxiliary.model(batch).logits[0, cut:].double().log_softmax(-1)
        cache = predicted_cache(model, batch[:, :cut], Sequences.unpadded(1, cut, batch.device))
        positions = torch.arange(cut, 12)[None]
        logits = model.base(batch[:, cut:], position_ids=positions, cache=cache).logits
        predicted = logits[0].double().log_softmax(-1)
    kl = sum(float((e.exp() * (e - p)).sum()) for e, p in zip(exact, predicted, strict=True)) / 7
    agree = [int(e.argmax() == p.argmax()) for e, p in zip(exact, predicted, strict=True)]
    labels = batch[0, cut + 1 :].tolist()

    def cross_entropy(rows: torch.Tensor) -> float:
        return -sum(float(rows[i, label]) for i, label in enumerate(labels)) / len(labels)

    assert measured["kl"] == pytest.approx(kl, abs=1e-5)
    assert measured["agreement"] == pytest.approx(sum(agree) / 7)
    assert measured["cross_entropy"] == pytest.approx(cross_entropy(predicted), abs=1e-5)
    assert measured["cross_entropy_base"] == pytest.approx(cross_entropy(exact), abs=1e-5)
    assert measured["cross_entropy_auxiliary"] == pytest.approx(cross_entropy(auxiliary), abs=1e-5)
    assert measured["tokens"] == 7


def test_uneven_batches_weigh_by_position(model):
    together = measure(model, ids(3, 14))
    apart = measure(model, ids(3, 14)[:2], ids(3, 14)[2:])
    for name, value in together.items():
        assert apart[name] == pytest.approx(value, rel=1e-5), name


def test_padding_counts_for_nothing(model):
    batch = ids(2, 14)
    padded = torch.cat([batch, torch.zeros(2, 4, dtype=torch.long)], dim=1)
    mask = torch.ones_like(padded)
    mask[:, 14:] = 0
    quality = TextQuality(model.adapter.n_layers)
    quality.update(compare(model, padded, Sequences.padded(mask), 6))
    for name, value in measure(model, batch).items():
        assert quality.compute()[name] == pytest.approx(value, rel=1e-4), name


def test_nothing_measured_is_zero_not_nan():
    measured = TextQuality(2).compute()
    assert all(not math.isnan(v) for v in measured.values() if isinstance(v, float))
