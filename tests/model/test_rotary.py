from __future__ import annotations

import math

import pytest
import torch

from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.family import FamilyAdapter, split_heads
from lit_kvpred.model.rotary import RotaryTables, candidate_rotations
from tests.model.projections import recorded_projections
from tests.tiny_models import ROPE_TYPES, random_ids, tiny_model


def _llama(rope: str, **overrides):
    parameters = {"rope_theta": 10000.0, **ROPE_TYPES[rope]}
    return tiny_model("llama", rope_parameters=parameters, **overrides)


def _complex_rotation(keys: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding by complex numbers: dimension i is paired with i + dim / 2."""
    half = keys.shape[-1] // 2
    pairs = torch.complex(keys[..., :half].double(), keys[..., half:].double())
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions.double()[:, None, :, None] * frequencies
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1).float()


def test_rotation_is_that_of_complex_numbers():
    base = tiny_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    positions = torch.tensor([[0, 1, 2, 50, 200], [7, 7, 0, 3, 255]])
    keys = torch.randn(2, 2, 5, 8)
    tables = FamilyAdapter(base).rotary_tables(positions)
    expected = _complex_rotation(keys, positions, 500.0)
    torch.testing.assert_close(tables.rotate(keys, 0), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(tables.unrotate(expected, 0), keys, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rope", ROPE_TYPES)
def test_unrotated_keys_are_the_projections_whatever_the_scaling(rope):
    base = _llama(rope)
    adapter = FamilyAdapter(base)
    ids = random_ids(2, 9)
    positions = torch.arange(9)[None] + torch.tensor([[0], [100]])
    cache = RecordingCache()
    with torch.no_grad(), recorded_projections(base) as projected:
        base(ids, position_ids=positions, cache=cache, use_cache=True)
    tables = adapter.rotary_tables(positions)
    for layer, (raw, _) in projected.items():
        raw = split_heads(raw, 2)
        stored = cache.layers[layer].keys
        assert not torch.allclose(raw, stored, atol=1e-2)
        torch.testing.assert_close(tables.unrotate(stored, layer), raw, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(tables.rotate(raw, layer), stored, atol=1e-5, rtol=1e-4)


def test_attention_factor_scales_what_is_stored():
    keys, positions = torch.randn(1, 2, 3, 8), torch.arange(3)[None]
    tables = FamilyAdapter(_llama("yarn")).rotary_tables(positions)
    ratio = tables.rotate(keys, 0).norm() / keys.norm()
    assert float(ratio) == pytest.approx(1.7, rel=1e-5)


def test_each_layer_type_has_its_own_tables():
    base = tiny_model("gemma3_text")
    tables = FamilyAdapter(base).rotary_tables(torch.arange(50, 60)[None])
    keys = torch.randn(1, 2, 10, 8)
    sliding, full = tables.rotate(keys, 0), tables.rotate(keys, 2)
    assert torch.equal(tables.rotate(keys, 1), sliding)
    assert not torch.allclose(sliding, full, atol=1e-2)


@pytest.mark.parametrize("family", ["phi", "gpt_neox"])
def test_partial_rotary_leaves_the_other_dimensions_alone(family):
    adapter = FamilyAdapter(tiny_model(family))
    tables = adapter.rotary_tables(torch.arange(1, 7)[None])
    shape = adapter.shapes[0]
    keys = torch.randn(1, shape.heads, 6, shape.key_dim)
    rotated = tables.rotate(keys, 0)
    assert torch.equal(rotated[..., 4:], keys[..., 4:])
    assert not torch.isclose(rotated[..., :4], keys[..., :4]).any(-1).all()


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_families_without_rotation_get_their_keys_back(family):
    tables = FamilyAdapter(tiny_model(family)).rotary_tables(torch.arange(6)[None])
    keys = torch.randn(1, 4, 6, 8)
    assert tables.rotate(keys, 0) is keys
    assert tables.unrotate(keys, 3) is keys


def test_layers_without_a_table_are_left_alone():
    angle = torch.full((1, 3, 4), math.pi / 3)
    rotation = candidate_rotations(tiny_model("llama").model)[0]
    tables = RotaryTables(
        {"full_attention": (angle.cos(), angle.sin())},
        {"full_attention": 1.0},
        ["full_attention", None],
        rotation,
    )
    keys = torch.randn(1, 2, 3, 4)
    assert tables.rotate(keys, 1) is keys
    assert tables.unrotate(keys, 1) is keys
    assert not torch.allclose(tables.rotate(keys, 0), keys, atol=1e-2)


def test_reduced_precision_keys_are_rotated_in_float32():
    tables = FamilyAdapter(tiny_model("llama")).rotary_tables(torch.arange(200, 240)[None])
    keys = torch.randn(1, 2, 40, 8).bfloat16()
    rotated = tables.rotate(keys, 0)
    assert rotated.dtype == torch.bfloat16
    # One rounding, at the end: the same as rotating the float32 copy.
    assert torch.equal(rotated, tables.rotate(keys.float(), 0).bfloat16())
    back = tables.unrotate(rotated, 0)
    assert back.dtype == torch.bfloat16
    assert torch.equal(back, tables.unrotate(rotated.float(), 0).bfloat16())


def test_tables_of_a_reduced_precision_model_are_float32():
    base = tiny_model("llama", dtype=torch.bfloat16)
    positions = torch.arange(100, 110)[None]
    keys = torch.randn(1, 2, 10, 8)
    exact = FamilyAdapter(tiny_model("llama")).rotary_tables(positions).rotate(keys, 0)
    assert torch.equal(FamilyAdapter(base).rotary_tables(positions).rotate(keys, 0), exact)


def test_a_family_without_a_rotation_function_has_no_candidate():
    assert candidate_rotations(tiny_model("gpt2").transformer) == []
