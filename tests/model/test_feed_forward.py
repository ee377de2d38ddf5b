"""Neurons of feed-forward parts: left out, reordered and chosen, for every ordinary family."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import UnsupportedFamilyError
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.feed_forward import feed_forwards
from tests.tiny_models import FAMILIES, random_ids, tiny_model

_WITHOUT = ("gpt_oss",)
_SERVED = tuple(family for family in FAMILIES if family not in _WITHOUT)
_PLAIN = ("gpt2", "gpt_neox", "opt", "phi")


@pytest.mark.parametrize("family", _SERVED)
def test_neurons_are_found_in_every_layer(family):
    adapter = FamilyAdapter(tiny_model(family))
    parts = feed_forwards(adapter)
    assert len(parts) == adapter.n_layers
    assert {part.neurons for part in parts} == {64}
    assert {part.gated for part in parts} == {family not in _PLAIN}
    weights = 2 if family in _PLAIN else 3
    assert parts[0].parameters >= weights * 32 * 64


@pytest.mark.parametrize("family", _SERVED)
@torch.no_grad()
def test_what_is_left_out_is_as_if_it_were_zero(family):
    """Zeroing what enters the leaving map is the same as gathering the others' weights."""
    base = tiny_model(family, weight_scale=8.0)
    (part, *_) = feed_forwards(FamilyAdapter(base))
    kept = torch.tensor([0, 3, 17, 40, 63])
    if part.module in list(FamilyAdapter(base).layers):
        pytest.skip("its maps stand in the layer itself; whole models are compared elsewhere")
    leaving = part.module._modules[part.leaving]
    mask = torch.zeros(64).index_fill(0, kept, 1.0)
    x = torch.randn(2, 5, 32)
    handle = leaving.register_forward_pre_hook(lambda _, args: (args[0] * mask,))
    expected = part.module(x)
    handle.remove()
    torch.testing.assert_close(part.compact(kept)(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", _WITHOUT)
def test_other_kinds_are_refused_by_name(family):
    with pytest.raises(UnsupportedFamilyError, match=f"'{family}' has no feed-forward part"):
        feed_forwards(FamilyAdapter(tiny_model(family)))


def test_neurons_that_cannot_be_told_apart_are_refused(monkeypatch):
    base = tiny_model("llama")
    mlp = base.model.layers[0].mlp
    plain = type(mlp).forward
    monkeypatch.setattr(
        type(mlp), "forward", lambda self, x: plain(self, x) + self.down_proj.weight[0].sum() * x
        if self.down_proj.weight.shape[1] != 64 else plain(self, x) + self.up_proj.weight[0, 0]
    )  # fmt: skip
    with pytest.raises(UnsupportedFamilyError, match="can't be told apart"):
        feed_forwards(FamilyAdapter(base))


def test_the_module_itself_stays_as_it_is():
    base = tiny_model("llama")
    before = {n: p.clone() for n, p in base.named_parameters()}
    (part, *_) = feed_forwards(FamilyAdapter(base))
    small = part.compact(torch.arange(10))
    assert small.gate_proj.weight.shape == (10, 32)
    assert small.down_proj.in_features == 10
    assert part.module.gate_proj.weight.shape == (64, 32)
    assert all(torch.equal(p, before[n]) for n, p in base.named_parameters())
    assert all(p.requires_grad for p in base.parameters())
    base(random_ids(1, 4))
