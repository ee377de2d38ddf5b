from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import UnsupportedFamilyError
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.family import FamilyAdapter, LayerShape, merge_heads, split_heads
from lit_kvpred.model.rotary import candidate_rotations
from tests.model.projections import recorded_projections
from tests.tiny_models import (
    FAMILIES,
    KEY_NORM_FAMILIES,
    UNSERVED_FAMILIES,
    random_ids,
    tiny_model,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_facts_about_a_family(family):
    base = tiny_model(family)
    adapter = FamilyAdapter(base)
    cache = RecordingCache()
    base(random_ids(1, 3), cache=cache, use_cache=True)
    assert adapter.family == family
    assert adapter.n_layers == 4
    assert adapter.max_positions == 256
    assert len(adapter.layer_types) == 4
    assert adapter.decoder is base.get_decoder()
    assert all(hasattr(layer, "forward") for layer in adapter.layers)
    for shape, layer in zip(adapter.shapes, cache.layers, strict=True):
        _, heads, _, dim = layer.keys.shape
        assert (shape.heads, shape.key_dim, shape.value_dim) == (heads, dim, layer.values.shape[3])
        assert shape.key_width == heads * dim
        assert shape.value_width == heads * layer.values.shape[3]


def test_widths_count_key_heads_not_query_heads():
    assert FamilyAdapter(tiny_model("llama")).shapes == [LayerShape(2, 8, 8)] * 4
    assert FamilyAdapter(tiny_model("qwen3")).shapes == [LayerShape(2, 16, 16)] * 4
    assert FamilyAdapter(tiny_model("gpt2")).shapes == [LayerShape(4, 8, 8)] * 4


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_stored_keys_are_rebuilt_from_raw_projections(family):
    base = tiny_model(family)
    adapter = FamilyAdapter(base)
    ids, positions = random_ids(2, 13), torch.arange(13)[None]
    cache = RecordingCache()
    with recorded_projections(base) as projected, adapter.record_norm_inputs() as norm_inputs:
        base(ids, cache=cache, use_cache=True)
    tables = adapter.rotary_tables(positions)
    assert set(projected) == {0, 1, 2, 3}
    for layer, (raw_keys, values) in projected.items():
        stored = cache.layers[layer]
        torch.testing.assert_close(merge_heads(stored.values), values)
        normed = adapter.apply_key_norm(raw_keys, layer)
        torch.testing.assert_close(tables.rotate(normed, layer), stored.keys, atol=1e-5, rtol=1e-4)
        unrotated = tables.unrotate(stored.keys, layer)
        torch.testing.assert_close(unrotated, normed, atol=1e-5, rtol=1e-4)
        if layer in norm_inputs:
            torch.testing.assert_close(adapter.merge_norm_input(norm_inputs[layer]), raw_keys)


@pytest.mark.parametrize("family", FAMILIES)
def test_which_families_have_key_norm(family):
    assert FamilyAdapter(tiny_model(family)).has_key_norm == (family in KEY_NORM_FAMILIES)


@pytest.mark.parametrize(("family", "unrotated"), [("cohere2", [3]), ("smollm3", [3])])
def test_layers_without_position_are_found(family, unrotated):
    adapter = FamilyAdapter(tiny_model(family))
    tables = adapter.rotary_tables(torch.arange(1, 6)[None])
    keys = torch.randn(1, 2, 5, 8)
    same = [layer for layer in range(4) if torch.equal(tables.rotate(keys, layer), keys)]
    assert same == unrotated


def _rms(rows: torch.Tensor, eps: float) -> torch.Tensor:
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt()


def test_key_norm_of_each_head():
    base = tiny_model("qwen3")
    norm = base.model.layers[1].self_attn.k_norm
    raw = torch.randn(2, 3, 32)
    expected = _rms(raw.unflatten(-1, (2, 16)), norm.variance_epsilon) * norm.weight
    normed = FamilyAdapter(base).apply_key_norm(raw, 1)
    torch.testing.assert_close(normed, expected.transpose(1, 2))


def test_key_norm_with_an_offset_scale():
    base = tiny_model("gemma3_text")
    norm = base.model.layers[1].self_attn.k_norm
    raw = torch.randn(2, 3, 16)
    expected = _rms(raw.unflatten(-1, (2, 8)), norm.eps) * (1 + norm.weight)
    normed = FamilyAdapter(base).apply_key_norm(raw, 1)
    torch.testing.assert_close(normed, expected.transpose(1, 2))


def test_key_norm_across_heads():
    base = tiny_model("olmo2")
    norm = base.model.layers[1].self_attn.k_norm
    raw = torch.randn(2, 3, 16)
    expected = _rms(raw, norm.variance_epsilon) * norm.weight
    normed = FamilyAdapter(base).apply_key_norm(raw, 1)
    torch.testing.assert_close(merge_heads(normed), expected)


def test_without_key_norm_heads_are_split_only():
    raw = torch.randn(2, 3, 16)
    normed = FamilyAdapter(tiny_model("llama")).apply_key_norm(raw, 0)
    assert torch.equal(normed[1, :, 2], raw[1, 2].view(2, 8))


@pytest.mark.parametrize("family", KEY_NORM_FAMILIES)
@pytest.mark.parametrize("heads", [1, 2, 5])
@torch.no_grad()
def test_key_norm_with_any_number_of_heads(family, heads):
    base = tiny_model(
        family, num_attention_heads=heads, num_key_value_heads=heads, head_dim=8, hidden_size=40
    )
    adapter = FamilyAdapter(base)
    with recorded_projections(base) as projected, adapter.record_norm_inputs() as norm_inputs:
        base(random_ids(2, 7), use_cache=False)
    for layer, (raw_keys, _) in projected.items():
        torch.testing.assert_close(adapter.merge_norm_input(norm_inputs[layer]), raw_keys)


def test_recording_norm_inputs_leaves_no_hook_behind():
    base = tiny_model("qwen3")
    adapter = FamilyAdapter(base)
    with pytest.raises(RuntimeError, match="stop"), adapter.record_norm_inputs():
        raise RuntimeError("stop")
    assert not any(module._forward_pre_hooks for module in base.modules())


@pytest.mark.parametrize("family", UNSERVED_FAMILIES)
def test_a_family_that_cannot_be_served_is_refused(family):
    with pytest.raises(UnsupportedFamilyError, match=f"'{family}' can't be served") as error:
        FamilyAdapter(tiny_model(family))
    assert "\n" not in str(error.value)


def test_a_family_with_an_unknown_position_scheme_is_refused(monkeypatch):
    base = tiny_model("gpt2")
    monkeypatch.setattr(type(base.config), "model_type", "unheard_of")
    with pytest.raises(UnsupportedFamilyError, match="its position scheme is unknown"):
        FamilyAdapter(base)


def test_a_wrong_rotation_is_refused_not_used(monkeypatch):
    base = tiny_model("llama")
    (right, *_) = candidate_rotations(base.model)
    # The decoder keeps its own rotation; the adapter is shown the opposite one.
    monkeypatch.setattr(
        "lit_kvpred.model.family.candidate_rotations",
        lambda decoder: [lambda keys, cos, sin: right(keys, cos, -sin)],
    )
    with pytest.raises(UnsupportedFamilyError, match="could not be taken off and put on again"):
        FamilyAdapter(base)


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_a_model_does_not_change_its_mode(training):
    base = tiny_model("gpt2").train(training)
    FamilyAdapter(base)
    assert base.training is training
    assert base.transformer.drop.training is training


def test_looking_at_a_model_changes_no_weight_and_asks_no_gradient():
    base = tiny_model("qwen3")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    FamilyAdapter(base)
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())
    assert all(parameter.grad is None for parameter in base.parameters())


def test_splitting_and_merging_heads():
    rows = torch.arange(2 * 3 * 8).view(2, 3, 8)
    split = split_heads(rows, 2)
    assert split.shape == (2, 2, 3, 4)
    assert split[1, 1, 2].tolist() == rows[1, 2, 4:].tolist()
    assert torch.equal(merge_heads(split), rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma3_text", "phi"])
def test_reduced_precision_models_are_served(family, dtype):
    full = FamilyAdapter(tiny_model(family))
    reduced = FamilyAdapter(tiny_model(family, dtype=dtype))
    assert reduced.shapes == full.shapes
    assert reduced._table_of_layer == full._table_of_layer
