"""A base cut in depth: both parts together are the base."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import ConfigurationError, UnsupportedFamilyError
from lit_kvpred.model.caches import GrowingCache, RecordingCache, empty_static_cache, n_rows
from lit_kvpred.model.depth import DepthCut
from lit_kvpred.model.family import FamilyAdapter
from tests.tiny_models import FAMILIES, random_ids, tiny_model

_CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def _positions(start: int, end: int) -> torch.Tensor:
    return torch.arange(start, end)[None]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [1, 2, 4])
@torch.no_grad()
def test_lower_and_upper_part_are_the_base(family, depth):
    base, ids = tiny_model(family), random_ids(2, 12)
    whole, parts = RecordingCache(), RecordingCache()
    expected = base(ids, cache=whole, use_cache=True).logits
    cut = DepthCut(FamilyAdapter(base), depth)
    hidden = cut.run_lower(ids, parts, position_ids=_positions(0, 12))
    assert len(parts.layers) == depth
    found = cut.run_upper(hidden, parts, logits_to_keep=12, position_ids=_positions(0, 12))
    torch.testing.assert_close(found, expected, **_CLOSE)
    for layer, reference in zip(parts.layers, whole.layers, strict=True):
        torch.testing.assert_close(layer.keys, reference.keys, **_CLOSE)
        torch.testing.assert_close(layer.values, reference.values, **_CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("static", [False, True])
@torch.no_grad()
def test_the_upper_part_may_come_later_and_in_pieces(family, static):
    base, ids = tiny_model(family), random_ids(1, 11)
    expected = base(ids).logits
    cut = DepthCut(FamilyAdapter(base), 2)
    cache = empty_static_cache(4, 16) if static else GrowingCache()
    hidden = cut.run_lower(ids, cache, position_ids=_positions(0, 11))
    found = []
    for start, end in ((0, 3), (3, 10), (10, 11)):
        mask = torch.zeros(1, 16 if static else end, dtype=torch.long)
        mask[:, :end] = 1
        found.append(
            cut.run_upper(
                hidden[:, start:end],
                cache,
                logits_to_keep=end - start,
                position_ids=_positions(start, end),
                attention_mask=mask if static else None,
            )
        )
        assert n_rows(cache) == 11
    torch.testing.assert_close(torch.cat(found, dim=1), expected, **_CLOSE)


@torch.no_grad()
def test_filling_gives_the_rows_without_the_rest():
    base, ids = tiny_model("llama"), random_ids(1, 7)
    cut = DepthCut(FamilyAdapter(base), 1)
    whole, cache = RecordingCache(), GrowingCache()
    base(ids, cache=whole, use_cache=True)
    hidden = cut.run_lower(ids, cache, position_ids=_positions(0, 7))
    ran = []
    base.model.layers[3].mlp.register_forward_hook(lambda *_: ran.append("mlp"))
    cut.fill_upper(hidden, cache, position_ids=_positions(0, 7))
    assert ran == []
    for layer, reference in zip(cache.layers, whole.layers, strict=True):
        torch.testing.assert_close(layer.values, reference.values, **_CLOSE)


def test_the_parts_share_every_weight_and_follow_the_base():
    base = tiny_model("llama")
    cut = DepthCut(FamilyAdapter(base), 2)
    own = {p.data_ptr() for p in base.parameters()}
    assert {p.data_ptr() for p in cut.upper.parameters()} <= own
    assert len(base.model.layers) == 4
    assert base.config.num_hidden_layers == 4
    assert cut.upper.config.num_hidden_layers == 2
    base.double()
    assert {p.dtype for p in cut.upper.parameters()} == {torch.float64}


@pytest.mark.parametrize("depth", [0, -1, 5])
def test_a_depth_that_is_not_there_is_refused(depth):
    with pytest.raises(ConfigurationError, match="choose between 1 and 4"):
        DepthCut(FamilyAdapter(tiny_model("llama")), depth)


def test_a_family_whose_parts_are_not_the_whole_is_refused():
    base = tiny_model("llama")
    adapter = FamilyAdapter(base)
    # A decoder that does something else between its layers than hand on hidden states.
    base.model.layers[2].register_forward_hook(
        lambda module, _, output: output + float(module is base.model.layers[2]) * len(seen)
    )
    seen: list[int] = []
    base.model.register_forward_pre_hook(lambda *_: seen.append(1))
    with pytest.raises(UnsupportedFamilyError, match="can't be cut in depth"):
        DepthCut(adapter, 2)


def test_the_attention_implementation_may_change_at_any_time():
    adapter = FamilyAdapter(tiny_model("llama"))
    cut, ids = DepthCut(adapter, 2), random_ids(1, 12)
    adapter.model.set_attn_implementation("eager")
    with torch.no_grad():
        cache = GrowingCache()
        hidden = cut.run_lower(ids, cache)
        found = cut.run_upper(hidden, cache, logits_to_keep=12)
        expected = adapter.model(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
