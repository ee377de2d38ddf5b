"""Whole answers: what is recorded, and that FLOPs count what is run."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.end_to_end import Variant, measure_answers
from lit_kvpred.evaluation.memory import PeakMemory
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from tests.evaluation.counting import counted_linear_flops
from tests.tiny_models import random_ids, tiny_model

_VARIANTS = [
    Variant("predicted", None),
    Variant("at once", Correction(1, threshold=1.1)),
    Variant("slices", Correction(1, threshold=1.1, slice_rows=5)),
]


@pytest.fixture(params=["prefix", "pruned"])
def model(request) -> KVPredictionModel:
    base = tiny_model("llama", weight_scale=8.0)
    auxiliary = build_auxiliary(base, request.param, keep=2 if request.param == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary).eval()


def test_records(model):
    prompts = [random_ids(1, 12, seed=s) for s in range(2)]
    record = measure_answers(model, prompts, _VARIANTS, new_tokens=9)
    rows = record["variants"]
    assert list(rows) == ["base", "predicted", "at once", "slices"]
    assert (record["prompt_tokens"], record["new_tokens"]) == (12, 9)
    for row in rows.values():
        assert row["ttft_s"]["n"] == row["total_s"]["n"] == 2
        assert 0 < row["ttft_s"]["median"] < row["total_s"]["median"]
    # Corrected with a threshold above 1 the text is the base's.
    assert rows["base"]["same_text"] == rows["at once"]["same_text"] == 1.0
    assert rows["slices"]["same_text"] == 1.0
    assert rows["predicted"]["same_text"] < 1.0
    assert rows["predicted"]["time_to_exact_s"] is None
    assert rows["predicted"]["tpot_after_s"] is None
    assert rows["predicted"]["tpot_during_s"]["n"] == 16
    assert rows["at once"]["tpot_during_s"] is None
    # Three slices of 5, 5 and 1 rows; the pass that judges writes a token as well.
    assert rows["slices"]["tpot_during_s"]["n"] == 6
    assert rows["slices"]["drafted"] == rows["slices"]["retracted"] == 4
    assert rows["slices"]["tpot_after_s"]["n"] == 16


@pytest.mark.parametrize(
    "correction",
    [None, Correction(1, 1.1), Correction(4, 0.0), Correction(1, 1.1, slice_rows=5)],
    ids=["predicted", "at once", "period", "slices"],
)
def test_flops_are_those_of_the_products_that_run(model, correction, monkeypatch):
    monkeypatch.setattr(flops, "_attention_width", lambda _: 0)
    ids = random_ids(1, 12)
    record = measure_answers(model, [ids], [Variant("it", correction)], new_tokens=9)
    settings = {"max_new_tokens": 9, "eos_ids": (), "correction": correction}
    run = counted_linear_flops(lambda: model.generate(ids, **settings))
    # Biases of the predictor are counted with its parameters, but are no products.
    biases = sum(p.numel() for n, p in model.predictor.named_parameters() if "bias" in n)
    assert record["variants"]["it"]["flops"] == run + 2 * biases * 11


def test_prompts_of_different_lengths_are_refused(model):
    with pytest.raises(ConfigurationError, match="one length"):
        measure_answers(model, [random_ids(1, 5), random_ids(1, 6)], _VARIANTS)
    with pytest.raises(ConfigurationError, match="one length"):
        measure_answers(model, [], _VARIANTS)


def test_peak_memory_sees_what_was_allocated_inside():
    small, large = PeakMemory(), PeakMemory()
    with small:
        pass
    with large:
        torch.ones(64 * 2**20 // 4).sum()
    if small.bytes is None:
        pytest.skip("this system does not tell its peak memory")
    assert large.bytes > small.bytes + 40 * 2**20
