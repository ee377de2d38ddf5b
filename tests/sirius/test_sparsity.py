"""Contextual sparsity: which neurons are kept, and what a sparse base computes (Sirius 2)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model import feed_forward
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.sirius.sparsity import (
    CSparse,
    FSparse,
    NeuronStatistics,
    SparseBase,
    kept_neurons,
)
from tests.tiny_models import FAMILIES, left_padded, random_ids, tiny_model

_SERVED = tuple(family for family in FAMILIES if family != "gpt_oss")


def _sparse_base(family: str = "llama") -> SparseBase:
    return SparseBase(FamilyAdapter(tiny_model(family, weight_scale=8.0)))


def _counted(sparse: SparseBase, ids, mask=None) -> NeuronStatistics:
    statistics = NeuronStatistics(sparse.parts)
    real = torch.ones_like(ids) if mask is None else mask
    with torch.no_grad(), statistics.recording(real.bool()):
        sparse.adapter.model(ids, attention_mask=mask)
    return statistics


def test_the_statistic_is_that_of_the_paper():
    sparse, ids = _sparse_base(), random_ids(1, 12)
    layer = sparse.adapter.layers[1]
    inputs = []
    handle = layer.mlp.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    statistics = _counted(sparse, ids)
    handle.remove()
    with torch.no_grad():
        x = inputs[0][0].double()
        gate, up = layer.mlp.gate_proj.weight.double(), layer.mlp.up_proj.weight.double()
        z = F.silu(x @ gate.T) * (x @ up.T)
    expected = (z / z.norm(dim=-1, keepdim=True)).square().sum(0)
    torch.testing.assert_close(statistics.squares[1].double(), expected, atol=1e-5, rtol=1e-4)
    assert statistics.tokens == [12] * 4
    chosen = statistics.choose(0.25)[1]
    assert sorted(expected.topk(16).indices.tolist()) == chosen.tolist()


def test_slices_add_up_and_padding_does_not_count():
    sparse = _sparse_base()
    prompts = [random_ids(n, seed=n) for n in (4, 9)]
    together = _counted(sparse, *left_padded(prompts))
    alone = [_counted(sparse, prompt[None]) for prompt in prompts]
    for both, one, other in zip(together.squares, *(s.squares for s in alone), strict=True):
        torch.testing.assert_close(both, one + other, atol=1e-4, rtol=1e-4)
    assert together.tokens == [13] * 4


@pytest.mark.parametrize("family", _SERVED)
@pytest.mark.parametrize("sparsity", [CSparse(1.0), FSparse(1.0)])
@torch.no_grad()
def test_keeping_everything_is_the_base(family, sparsity):
    sparse, ids = _sparse_base(family), random_ids(1, 10)
    if isinstance(sparsity, CSparse):
        model = sparse.by_prompt(_counted(sparse, ids), sparsity)
    else:
        model = sparse.by_token(sparsity)
    base = sparse.adapter.model
    torch.testing.assert_close(model(ids).logits, base(ids).logits, atol=1e-4, rtol=1e-4)
    assert sparse.density(sparsity) == pytest.approx(1.0)


@pytest.mark.parametrize("family", _SERVED)
@torch.no_grad()
def test_a_sparse_copy_is_the_base_with_the_other_neurons_at_zero(family):
    sparse, ids = _sparse_base(family), random_ids(1, 10)
    statistics = _counted(sparse, ids)
    model = sparse.by_prompt(statistics, CSparse(0.5))
    found = model(ids).logits
    handles = []
    for part, kept in zip(sparse.parts, statistics.choose(0.5), strict=True):
        mask = torch.zeros(64).index_fill(0, kept, 1.0)
        leaving = part.module._modules[part.leaving]
        handles.append(leaving.register_forward_pre_hook(lambda _, args, m=mask: (args[0] * m,)))
    expected = sparse.adapter.model(ids).logits
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    dense = sparse.adapter.model(ids).logits
    assert not torch.allclose(found, dense, atol=1e-3)


@torch.no_grad()
def test_fsparse_keeps_the_largest_gates_of_each_token():
    sparse = _sparse_base()
    model = sparse.by_token(FSparse(0.25))
    mlp, dense = model.model.layers[0].mlp, sparse.adapter.layers[0].mlp
    x = torch.randn(1, 3, 32)
    gate = F.silu(dense.gate_proj(x))
    threshold = gate.abs().topk(16, dim=-1).values[..., -1:]
    expected = dense.down_proj(torch.where(gate.abs() >= threshold, gate, 0.0) * dense.up_proj(x))
    torch.testing.assert_close(mlp(x), expected, atol=1e-5, rtol=1e-5)


def test_the_base_is_untouched_and_weights_are_shared():
    sparse, ids = _sparse_base(), random_ids(1, 6)
    base = sparse.adapter.model
    before = {n: p.clone() for n, p in base.named_parameters()}
    model = sparse.by_prompt(_counted(sparse, ids), CSparse(0.5))
    assert model.model.layers[0].self_attn is base.model.layers[0].self_attn
    assert model.lm_head.weight is base.lm_head.weight
    assert all(torch.equal(p, before[n]) for n, p in base.named_parameters())
    assert not any(m._forward_pre_hooks for m in base.modules())


@pytest.mark.parametrize(
    ("config", "keep", "coarse", "fine"),
    # Sirius 2.4: densities of the published models with embeddings and head.
    [("llama-3-8b", 0.5, 0.649, 0.766), ("llama-3-8b", 0.4, 0.579, 0.719),
     ("llama-2-7b", 0.5, 0.679, 0.786), ("llama-2-13b", 0.4, 0.608, 0.739),
     ("llama-3-70b", 0.5, 0.600, 0.734)],
)  # fmt: skip
def test_published_densities(config, keep, coarse, fine):
    hidden, ffn, layers, heads, kv, vocabulary = {
        "llama-3-8b": (4096, 14336, 32, 32, 8, 128256),
        "llama-2-7b": (4096, 11008, 32, 32, 32, 32000),
        "llama-2-13b": (5120, 13824, 40, 40, 40, 32000),
        "llama-3-70b": (8192, 28672, 80, 64, 8, 128256),
    }[config]
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=hidden,
                intermediate_size=ffn,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv,
                vocab_size=vocabulary,
                tie_word_embeddings=False,
            )
        )
    sparse = SparseBase.__new__(SparseBase)
    adapter = FamilyAdapter.__new__(FamilyAdapter)
    adapter.model, adapter.config, adapter.layers = model, model.config, model.model.layers
    sparse.adapter = adapter
    sparse.parts = [feed_forward._find(adapter, layer) for layer in adapter.layers]
    assert sparse.density(CSparse(keep)) == pytest.approx(coarse, abs=1e-3)
    assert sparse.density(FSparse(keep)) == pytest.approx(fine, abs=1e-3)


@pytest.mark.parametrize("keep", [0, -0.1, 1.1, float("nan"), "0.5", True])
def test_shares_out_of_range_are_refused(keep):
    for kind in (CSparse, FSparse):
        with pytest.raises(ConfigurationError, match="keep must be a number above 0 and at most"):
            kind(keep)


def test_at_least_one_neuron_is_kept():
    assert [kept_neurons(k, 64) for k in (0.001, 0.5, 1.0)] == [1, 32, 64]
