"""FLOPs against the published tables (KVP 5) and against torch's counter on real forwards."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.evaluation import flops
from tests.evaluation.counting import counted_linear_flops
from tests.tiny_models import tiny_model

P_270M, P_450M, P_1B, P_3B = 271_527_168, 457_179_136, 1_079_891_456, 3_036_647_424

# base, auxiliary, predictor parameters; published, N = 59, N = 1024
PUBLISHED = [
    (P_1B, P_450M, 6.21e6, 2.36, 2.28, 2.33),
    (P_1B, P_270M, 5.44e6, 3.98, 3.72, 3.89),
    (P_1B, 806.7e6, 8.67e6, 1.34, 1.32, 1.32),
    (P_1B, 559.5e6, 8.67e6, 1.93, 1.87, 1.90),
    (P_1B, 300.2e6, 8.46e6, 3.60, 3.36, 3.49),
    (P_3B, P_1B, 16.03e6, 2.81, 2.69, 2.77),
    (P_3B, P_450M, 12.26e6, 6.64, 5.92, 6.43),
    (P_3B, P_270M, 10.69e6, 11.18, 9.23, 10.66),
    (P_3B, 2260.4e6, 25.47e6, 1.34, 1.32, 1.33),
    (P_3B, 1541.5e6, 25.47e6, 1.97, 1.91, 1.94),
    (P_3B, 791.2e6, 24.75e6, 3.84, 3.56, 3.71),
]


@pytest.mark.parametrize(
    ("base", "auxiliary", "predictor", "published", "short", "long"), PUBLISHED
)
def test_ratios_of_the_published_tables(base, auxiliary, predictor, published, short, long):
    assert round(flops.published_ratio(base, auxiliary), 2) == published
    assert round(flops.parameter_ratio(59, base, auxiliary, predictor), 2) == short
    assert round(flops.parameter_ratio(1024, base, auxiliary, predictor), 2) == long


def test_baseline_formulas_of_the_published_tables():
    assert [round(flops.random_pruning_ratio(r), 2) for r in (0.75, 0.5, 0.25)] == [1.33, 2, 4]
    assert [round(flops.static_pruning_ratio(r), 2) for r in (0.5, 0.25)] == [1.33, 2]
    ends = (0.75, 0.5, 0.25, 0.10, 0.05, 0.01)
    first = [round(flops.lazy_llm_ratio(0.75, e), 2) for e in ends]
    assert first == [1.21, 1.38, 1.60, 1.77, 1.83, 1.89]
    second = [round(flops.lazy_llm_ratio(0.5, e), 2) for e in ends[1:]]
    assert second == [1.54, 1.82, 2.04, 2.13, 2.20]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3", "gpt_neox"])
def test_prefill_counts_what_a_real_forward_does(family):
    model, n = tiny_model(family), 24
    ids = torch.zeros(1, n, dtype=torch.long)
    linear = counted_linear_flops(lambda: model(ids, logits_to_keep=1))
    config = model.config
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    attention = sum(4 * width * (t + 1) for t in range(n)) * config.num_hidden_layers
    assert flops.prefill(config, n) == linear + attention


def test_kv_prediction_leaves_out_what_the_prefill_never_computes():
    model = tiny_model("llama")  # 4 layers, width 32, kv width 16, mlp 64
    n, last = 11, 2
    counted = flops.kv_prediction(
        model.config, model.config, n, last_layer=last, predictor_parameters=100
    )
    layer = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)
    qkv = 2 * (32 * 32 + 2 * 32 * 16)
    attention = sum(4 * 32 * (t + 1) for t in range(n - 1))
    auxiliary = (n - 1) * (last * layer + qkv) + last * attention
    step = 4 * layer + 4 * 4 * 32 * n + 2 * 32 * 128
    assert counted == auxiliary + 2 * 100 * (n - 1) + step
    assert flops.decode_step(model.config, n) == step


def test_features_of_the_last_hidden_state_need_the_whole_auxiliary():
    config, n = tiny_model("llama").config, 11
    counted = flops.kv_prediction(config, config, n, last_layer=None, predictor_parameters=0)
    whole = flops.prefill(config, n - 1) - 2 * 32 * 128
    assert counted == whole + flops.decode_step(config, n)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("tail", [1, 3, 11, 20])
def test_a_prefix_runs_each_layer_once_for_the_rows_that_pass_it(family, tail):
    config, n = tiny_model(family).config, 11
    counted = flops.prefix_prediction(config, n, depth=3, predictor_parameters=7, exact_tail=tail)
    rows = max(0, n - tail)
    saved = flops.tail(config, n, n, depth=3) - flops.tail(config, n, tail, depth=3)
    assert counted == flops.prefill(config, n) - saved + 2 * 7 * rows
    if tail >= n:
        assert counted == flops.prefill(config, n)


def test_the_tail_of_one_row_is_a_decode_step():
    config = tiny_model("llama").config
    assert flops.tail(config, 17, 1) == flops.decode_step(config, 17)
    assert flops.tail(config, 17, 17) == flops.prefill(config, 17)


def test_the_ratio_grows_with_the_prompt():
    config = tiny_model("llama").config
    ratios = [
        flops.prefill(config, n)
        / flops.kv_prediction(config, config, n, last_layer=1, predictor_parameters=10)
        for n in (2, 16, 128)
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 2
