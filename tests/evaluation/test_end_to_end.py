"""Whole answers: what is recorded, and that FLOPs count what is run."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation import end_to_end, flops
from lit_kvpred.evaluation.end_to_end import measure_answers
from lit_kvpred.evaluation.memory import PeakMemory
from lit_kvpred.evaluation.systems import Variant
from lit_kvpred.generation.generate import GenerationOutput, generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse
from tests.evaluation.counting import counted_linear_flops
from tests.tiny_models import random_ids, tiny_model

_VARIANTS = [
    Variant("predicted", None),
    Variant("catch_up", Correction(1, threshold=1.1)),
    Variant("catch_up", Correction(1, threshold=1.1, slice_rows=5)),
]


@pytest.fixture(params=["prefix", "pruned"])
def model(request) -> KVPredictionModel:
    base = tiny_model("llama", weight_scale=8.0)
    auxiliary = build_auxiliary(base, request.param, keep=2 if request.param == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary).eval()


def test_records(model):
    prompts = [random_ids(1, 12, seed=s) for s in range(2)]
    records = measure_answers(model, prompts, _VARIANTS, new_tokens=9)
    assert [(r["system"], r["slice_rows"]) for r in records] == [
        ("base", None), ("predicted", None), ("catch_up", None), ("catch_up", 5),
    ]  # fmt: skip
    base, predicted, at_once, slices = records
    for record in records:
        assert (record["prompt_tokens"], record["new_tokens"], record["batch_size"]) == (12, 9, 1)
        assert record["ttft_s"]["n"] == record["total_s"]["n"] == 2
        assert 0 < record["ttft_s"]["median"] < record["total_s"]["median"]
        assert record["flops"]["prefill"] < record["flops"]["total"]
    assert base["ttft_ratio"]["median"] == base["total_ratio"]["median"] == 1.0
    assert base["flops"]["bound_speedup"] == 1.0 < at_once["flops"]["bound_speedup"]
    # Corrected with a threshold above 1 the text is the base's.
    assert base["same_text"] == at_once["same_text"] == slices["same_text"] == 1.0
    assert predicted["same_text"] < 1.0
    assert predicted["time_to_exact_s"] is None
    assert predicted["tpot_after_s"] is None
    assert predicted["tpot_during_s"]["n"] == predicted["tpot_s"]["n"] == 16
    assert at_once["tpot_during_s"] is None
    # Three slices of 5, 5 and 1 rows; the pass that judges writes a token as well.
    assert slices["tpot_during_s"]["n"] == 6
    assert slices["drafted"] == slices["retracted"] == 4
    assert slices["tpot_after_s"]["n"] == 16


@pytest.mark.parametrize("width", [1, 3])
def test_sirius_alone(model, monkeypatch, width):
    monkeypatch.setattr(flops, "_attention_width", lambda _: 0)
    ids = random_ids(1, 12)
    correction = Correction(4, 0.0, draft=CSparse(0.5), tree_width=width)
    base, record = measure_answers(model, [ids], [Variant("sirius", correction)], new_tokens=9)
    assert record["aal"] == 4
    assert record["density"] == model.sparse_base.density(CSparse(0.5))
    assert record["sparse_step_s"]["n"] == 6
    assert record["check_s"]["n"] == 2
    assert record["ttft_s"]["n"] == 1
    assert base["sparse_step_s"] is base["density"] is None
    assert base["token_ratio"]["median"] == 1.0
    settings = GenerationSettings(max_new_tokens=9, eos_ids=())
    run = counted_linear_flops(
        lambda: generate_exact(model.adapter, ids, settings=settings, correction=correction)
    )
    assert record["flops"]["total"] == run


def test_speculative_decoding_writes_the_bases_text(model):
    correction = Correction(4, draft=CSparse(0.3), acceptance="lossless")
    _, record = measure_answers(
        model, [random_ids(1, 12)], [Variant("speculative", correction)], new_tokens=9
    )
    assert record["same_text"] == 1
    assert record["sparse_step_s"] is not None
    assert record["tpot_during_s"] is None


def test_ratios_are_those_of_the_same_round(model, monkeypatch):
    prompts = [random_ids(1, 12, seed=s) for s in range(3)]
    outputs = {
        "0": [(1.0, 4.0), (2.0, 5.0), (9.0, 10.0)],
        "1": [(0.5, 4.0), (3.0, 5.0), (9.0, 20.0)],
    }

    def results(runs, rounds):
        assert (list(runs), rounds) == (["0", "1"], 3)
        stats = {
            k: [GenerationStats(ttft_s=a, total_s=b, new_tokens=2) for a, b in v]
            for k, v in outputs.items()
        }
        return {k: [GenerationOutput(prompts[0], [[1]], s) for s in v] for k, v in stats.items()}

    monkeypatch.setattr(end_to_end, "interleaved_results", results)
    _, record = measure_answers(model, prompts, [Variant("predicted", None)])
    assert record["ttft_ratio"]["median"] == 1.0
    assert record["total_ratio"]["median"] == 1.0
    assert record["total_ratio"]["q75"] == 1.5


@pytest.mark.parametrize(
    "correction",
    [
        None,
        Correction(1, 1.1),
        Correction(4, 0.0),
        Correction(1, 1.1, slice_rows=5),
        Correction(4, 0.0, draft=CSparse(0.5)),
        Correction(3, 1.1, slice_rows=5, draft=CSparse(0.25)),
        Correction(4, 0.0, draft=CSparse(0.5), tree_width=3),
        Correction(3, 1.1, draft=CSparse(0.5), tree_width=2),
        Correction(4, draft=CSparse(0.5), acceptance="lossless"),
    ],
    ids=[
        "predicted",
        "at once",
        "period",
        "slices",
        "sparse",
        "sparse after slices",
        "tree",
        "rejected trees",
        "lossless",
    ],
)
def test_flops_are_those_of_the_products_that_run(model, correction, monkeypatch):
    monkeypatch.setattr(flops, "_attention_width", lambda _: 0)
    ids = random_ids(1, 12)
    _, record = measure_answers(model, [ids], [Variant("catch_up", correction)], new_tokens=9)
    settings = {"max_new_tokens": 9, "eos_ids": (), "correction": correction}
    run = counted_linear_flops(lambda: model.generate(ids, **settings))
    # Biases of the predictor are counted with its parameters, but are no products.
    biases = sum(p.numel() for n, p in model.predictor.named_parameters() if "bias" in n)
    assert record["flops"]["total"] == run + 2 * biases * 11


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
