"""TTFT records: their form, and that each variant does what it is named for."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import PromptError
from lit_kvpred.evaluation.ttft import count_flops, measure_ttft, reachable_speedup
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from tests.tiny_models import tiny_model


@pytest.fixture
def model() -> KVPredictionModel:
    base = tiny_model("llama")
    return KVPredictionModel(base, build_auxiliary(base, "pruned", keep=0.5))


def test_records(model):
    model.train()
    rows = {"base": [], "auxiliary": []}
    for name, network in (("base", model.base), ("auxiliary", model.auxiliary.model)):

        def note(_, args, kwargs, name=name):
            rows[name].append((args[0] if args else kwargs["input_ids"]).shape[1])

        network.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    records = measure_ttft(model, [8, 1], repeats=2)
    assert [r["prompt_tokens"] for r in records] == [8, 1]
    for record in records:
        for name in ("base", "kv_prediction", "auxiliary", "tail"):
            assert record[name]["n"] == 2
            assert 0 < record[name]["q25"] <= record[name]["median"] <= record[name]["q75"]
        assert record["speedup"] == pytest.approx(
            record["base"]["median"] / record["kv_prediction"]["median"]
        )
        assert record["speedup_over_ratio"] == pytest.approx(
            record["speedup"] / record["flops"]["ratio"]
        )
        assert record["speedup_over_reachable"] == pytest.approx(
            record["speedup"] / record["reachable_speedup"]
        )
    # Base: whole prompts alone, single last tokens on predicted rows, and the step on exact ones.
    assert sorted(rows["base"]) == [1] * 15 + [7] + [8] * 3
    assert sorted(rows["auxiliary"]) == [1] * 3 + [7] * 3 + [8] * 3
    assert model.training
    assert not model.base.training


def test_published_ratio_counts_parameters_once(model):
    counted = count_flops(model, 16)
    base = sum(p.numel() for p in model.base.parameters())
    auxiliary = sum(p.numel() for p in model.auxiliary.model.parameters())
    assert counted["published_ratio"] == base / auxiliary
    assert counted["ratio"] == counted["base"] / counted["kv_prediction"]


def test_reachable_speedup_counts_the_last_step_as_measured(model):
    counted = {"base": 100.0, "kv_prediction": 50.0, "tail": 10.0}
    # A step at the rate of the prefill: the bound is the FLOPs ratio itself.
    assert reachable_speedup(2.0, 0.2, counted) == pytest.approx(2.0)
    # A step as long as the whole prefill leaves nothing to gain.
    assert reachable_speedup(2.0, 2.0, counted) == pytest.approx(2.0 / 2.8)
    assert count_flops(model, 16)["tail"] < count_flops(model, 16)["kv_prediction"]


def test_too_long_a_prompt_is_refused(model):
    with pytest.raises(PromptError, match="the base has 256 positions"):
        measure_ttft(model, [257], repeats=1)


def test_timing_leaves_no_gradient_graph(model):
    measure_ttft(model, [4], repeats=1)
    assert torch.is_grad_enabled()
