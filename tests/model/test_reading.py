from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.family import FamilyAdapter, merge_heads
from lit_kvpred.model.reading import CacheRows, mean_absolute_error, read_rows
from lit_kvpred.model.sequences import Sequences
from tests.model.projections import recorded_projections
from tests.tiny_models import FAMILIES, left_padded, random_ids, tiny_model


def _unpadded(ids):
    return Sequences.unpadded(*ids.shape, ids.device)


def _count_calls(model) -> Counter:
    """How often each module's forward is entered, by name."""
    calls: Counter = Counter()
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda _m, _a, name=name: calls.update([name]))
    return calls


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_rows_are_the_projections_and_logits_the_models(family):
    base = tiny_model(family)
    ids = random_ids(2, 13)
    with recorded_projections(base) as projected:
        expected = base(ids, use_cache=False).logits
    adapter = FamilyAdapter(base)
    rows = read_rows(adapter, ids, _unpadded(ids), logits_from=0)
    torch.testing.assert_close(rows.logits, expected, atol=1e-5, rtol=1e-5)
    for layer, (raw_keys, values) in projected.items():
        torch.testing.assert_close(rows.raw_keys[layer], raw_keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(rows.values[layer], values, atol=1e-5, rtol=1e-4)
        normed = adapter.apply_key_norm(raw_keys, layer)
        torch.testing.assert_close(rows.keys[layer], normed, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "qwen3"])
@torch.no_grad()
def test_rows_of_a_padded_batch_are_those_of_each_prompt_alone(family):
    adapter = FamilyAdapter(tiny_model(family))
    prompts = [random_ids(n, seed=n) for n in (1, 4, 12)]
    ids, mask = left_padded(prompts)
    together = read_rows(adapter, ids, Sequences.padded(mask))
    for row, prompt in enumerate(prompts):
        alone = read_rows(adapter, prompt[None], _unpadded(prompt[None]))
        n = len(prompt)
        for layer in range(4):
            for part in ("raw_keys", "values"):
                got, want = getattr(together, part)[layer], getattr(alone, part)[layer]
                torch.testing.assert_close(got[row, -n:], want[0], atol=1e-5, rtol=1e-4)
            got, want = together.keys[layer][row, :, -n:], alone.keys[layer][0]
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("first", [0, 2, 5])
@torch.no_grad()
def test_logits_of_later_rows_only(first):
    base = tiny_model("llama")
    ids = random_ids(2, 6)
    rows = read_rows(FamilyAdapter(base), ids, _unpadded(ids), logits_from=first)
    expected = base(ids, use_cache=False).logits[:, first:]
    torch.testing.assert_close(rows.logits, expected)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_without_logits_the_vocabulary_projection_is_not_computed(family):
    base = tiny_model(family)
    adapter, calls, ids = FamilyAdapter(base), _count_calls(base), random_ids(1, 5)
    assert read_rows(adapter, ids, _unpadded(ids)).logits is None
    assert not any("lm_head" in name or "embed_out" in name for name in calls)
    read_rows(adapter, ids, _unpadded(ids), logits_from=4)
    assert any("lm_head" in name or "embed_out" in name for name in calls)


@pytest.mark.parametrize(
    ("family", "layer_name", "norm"),
    [("llama", "model.layers", "model.norm"), ("gpt2", "transformer.h", "transformer.ln_f")],
)
@pytest.mark.parametrize("stop", [0, 2])
def test_nothing_is_computed_beyond_the_last_needed_layer(family, layer_name, norm, stop):
    base = tiny_model(family)
    adapter, calls, ids = FamilyAdapter(base), _count_calls(base), random_ids(2, 5)
    rows = read_rows(adapter, ids, _unpadded(ids), stop_after=stop)
    assert len(rows.raw_keys) == len(rows.keys) == len(rows.values) == stop + 1
    for layer in range(4):
        assert calls[f"{layer_name}.{layer}"] == (layer <= stop)
        assert calls[f"{layer_name}.{layer}.mlp"] == (layer < stop)
    output = "o_proj" if family == "llama" else "c_proj"
    attention = "self_attn" if family == "llama" else "attn"
    assert calls[f"{layer_name}.{stop}.{attention}.{output}"] == 0
    assert calls[norm] == calls["lm_head"] == 0


def test_stopping_early_changes_no_row():
    adapter, ids = FamilyAdapter(tiny_model("qwen3")), random_ids(2, 5)
    whole = read_rows(adapter, ids, _unpadded(ids))
    stopped = read_rows(adapter, ids, _unpadded(ids), stop_after=1)
    for layer in range(2):
        assert torch.equal(whole.raw_keys[layer], stopped.raw_keys[layer])
        assert torch.equal(whole.keys[layer], stopped.keys[layer])
        assert torch.equal(whole.values[layer], stopped.values[layer])


def test_logits_of_a_stopped_forward_are_refused():
    adapter, ids = FamilyAdapter(tiny_model("llama")), random_ids(1, 3)
    with pytest.raises(ValueError, match="either logits_from or stop_after"):
        read_rows(adapter, ids, _unpadded(ids), logits_from=0, stop_after=1)


def test_gradients_reach_the_projections():
    base = tiny_model("qwen3")
    ids = random_ids(1, 5)
    rows = read_rows(FamilyAdapter(base), ids, _unpadded(ids), stop_after=1)
    rows.raw_keys[1].sum().backward(retain_graph=True)
    attention = base.model.layers[1].self_attn
    assert attention.k_proj.weight.grad.abs().sum() > 0
    # Raw keys are before the norm.
    assert attention.k_norm.weight.grad is None
    rows.keys[1].square().sum().backward()
    assert attention.k_norm.weight.grad.abs().sum() > 0


def test_a_slice_of_rows():
    adapter, ids = FamilyAdapter(tiny_model("llama")), random_ids(2, 6)
    rows = read_rows(adapter, ids, _unpadded(ids), logits_from=0)
    part = rows[1:4]
    assert part.logits is None
    for layer in range(4):
        assert torch.equal(part.raw_keys[layer], rows.raw_keys[layer][:, 1:4])
        assert torch.equal(part.values[layer], rows.values[layer][:, 1:4])
        assert torch.equal(merge_heads(part.keys[layer]), merge_heads(rows.keys[layer])[:, 1:4])
    assert isinstance(part, CacheRows)


def test_mean_absolute_error_of_real_rows():
    predicted, target = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    real = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]).bool()
    picked = np.abs(predicted.numpy() - target.numpy()).transpose(0, 2, 1, 3)[real.numpy()]
    error = mean_absolute_error(predicted, target, real)
    assert float(error) == pytest.approx(float(picked.mean()), rel=1e-6)
    assert mean_absolute_error(predicted.bfloat16(), target, real).dtype == torch.float32


def test_mean_absolute_error_without_any_real_row_is_zero():
    rows = torch.randn(1, 2, 3, 4)
    assert float(mean_absolute_error(rows, rows + 1, torch.zeros(1, 3, dtype=torch.bool))) == 0.0


def test_not_a_number_in_padding_reaches_neither_error_nor_gradient():
    predicted = torch.randn(1, 2, 3, 4)
    predicted[:, :, 0] = torch.nan
    predicted.requires_grad_()
    real = torch.tensor([[False, True, True]])
    error = mean_absolute_error(predicted, torch.zeros(1, 2, 3, 4), real)
    assert bool(error.isfinite())
    error.backward()
    assert bool(predicted.grad.isfinite().all())
    assert predicted.grad[:, :, 1:].abs().min() > 0


def test_a_dropped_cache_is_an_error_with_a_remedy():
    model = tiny_model("llama")
    model.gradient_checkpointing_enable()
    adapter = FamilyAdapter(model)
    model.train()
    ids = random_ids(1, 5)
    with pytest.raises(ConfigurationError, match="gradient_checkpointing_disable"):
        read_rows(adapter, ids, Sequences.unpadded(1, 5, ids.device))


def test_logits_from_beyond_the_tokens_are_refused():
    adapter = FamilyAdapter(tiny_model("llama"))
    ids = random_ids(1, 5)
    with pytest.raises(ValueError, match="no row 5 among 5"):
        read_rows(adapter, ids, Sequences.unpadded(1, 5, ids.device), logits_from=5)
