from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from lit_kvpred.errors import (
    BaseModelError,
    ConfigurationError,
    TokenizerMismatchError,
)
from lit_kvpred.model.auxiliary import build_auxiliary, prune
from lit_kvpred.model.family import FamilyAdapter
from tests.tiny_models import FAMILIES, byte_tokenizer, random_ids, tiny_model

_KEPT = [0, 2, 3]


def _stack(model) -> tuple[str, nn.ModuleList]:
    """The list of layers and its name."""
    ((name, stack),) = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] in ("layers", "h")
    ]
    return name, stack


def _outside(model) -> dict[str, torch.Tensor]:
    name, _ = _stack(model)
    return {n: t for n, t in model.state_dict().items() if not n.startswith(name + ".")}


@pytest.mark.parametrize("family", FAMILIES)
def test_pruning_keeps_exactly_the_right_tensors(family):
    base = tiny_model(family)
    pruned = prune(base, _KEPT)
    (_, layers), (_, kept) = _stack(base), _stack(pruned)
    assert len(kept) == pruned.config.num_hidden_layers == 3
    for new, old in enumerate(_KEPT):
        expected, got = layers[old].state_dict(), kept[new].state_dict()
        assert set(expected) == set(got)
        assert all(torch.equal(expected[name], got[name]) for name in expected)
    expected, got = _outside(base), _outside(pruned)
    assert set(expected) == set(got)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert not pruned.training


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_pruned_copy_computes_what_the_base_without_those_layers_does(family):
    base = tiny_model(family)
    pruned = prune(base, _KEPT)
    shorter = copy.deepcopy(base)
    name, layers = _stack(shorter)
    shorter.get_submodule(name.rpartition(".")[0]).__setattr__(
        name.rpartition(".")[2], nn.ModuleList(layers[i] for i in _KEPT)
    )
    shorter.config.num_hidden_layers = 3
    if getattr(base.config, "layer_types", None):
        shorter.config.layer_types = [base.config.layer_types[i] for i in _KEPT]
    ids = random_ids(2, 13)
    expected = shorter(ids, use_cache=False).logits
    torch.testing.assert_close(pruned(ids, use_cache=False).logits, expected)
    assert not torch.allclose(expected, base(ids, use_cache=False).logits, atol=1e-2)
    # With a cache, rows of kept layers must not land on each other.
    torch.testing.assert_close(pruned(ids, use_cache=True).logits, expected)


def test_a_pruned_copy_shares_nothing_with_the_base():
    base = tiny_model("llama")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    pruned = prune(base, [0, 1])
    with torch.no_grad():
        for parameter in pruned.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())
    assert base.config.num_hidden_layers == 4


@pytest.mark.parametrize(
    ("family", "attribute", "value"),
    [
        ("gemma2", "layer_types", ["sliding_attention", "sliding_attention"]),
        ("gemma3_text", "layer_types", ["sliding_attention", "full_attention"]),
        ("cohere2", "layer_types", ["sliding_attention", "sliding_attention"]),
        ("smollm3", "no_rope_layers", [1, 1]),
    ],
)
def test_lists_with_an_entry_per_layer_shrink(family, attribute, value):
    base = tiny_model(family)
    before = list(getattr(base.config, attribute))
    pruned = prune(base, [0, 2])
    assert list(getattr(pruned.config, attribute)) == value
    assert list(getattr(base.config, attribute)) == before


def test_a_layer_without_position_stays_without():
    pruned = FamilyAdapter(prune(tiny_model("smollm3"), [0, 3]))
    keys, tables = torch.randn(1, 2, 5, 8), pruned.rotary_tables(torch.arange(1, 6)[None])
    assert not torch.equal(tables.rotate(keys, 0), keys)
    assert torch.equal(tables.rotate(keys, 1), keys)


def test_lists_that_do_not_speak_of_layers_stay_whole():
    base = tiny_model("llama", eos_token_id=[2, 3, 4, 5])
    assert prune(base, [0, 2]).config.eos_token_id == [2, 3, 4, 5]


def test_tied_embeddings_stay_tied():
    pruned = prune(tiny_model("llama", tie_word_embeddings=True), [0, 1])
    assert pruned.lm_head.weight is pruned.model.embed_tokens.weight


def test_a_reduced_precision_base_gives_a_float32_copy():
    base = tiny_model("llama", dtype=torch.bfloat16)
    pruned = prune(base, [0, 3])
    assert {p.dtype for p in pruned.parameters()} == {torch.float32}
    expected = base.model.layers[3].mlp.up_proj.weight.float()
    assert torch.equal(pruned.model.layers[1].mlp.up_proj.weight, expected)
    assert {p.dtype for p in base.parameters()} == {torch.bfloat16}


def test_the_attention_implementation_is_kept():
    assert (
        prune(tiny_model("llama", attn_implementation="eager"), [0]).config._attn_implementation
        == "eager"
    )
    assert prune(tiny_model("llama"), [0]).config._attn_implementation == "sdpa"


def test_a_quantised_origin_is_not_carried_over():
    base = tiny_model("llama")
    base.config.quantization_config = {"quant_method": "gguf"}
    assert getattr(prune(base, [0, 1]).config, "quantization_config", None) is None
    assert base.config.quantization_config == {"quant_method": "gguf"}


def test_a_copy_that_lost_a_tensor_is_noticed(monkeypatch):
    base = tiny_model("llama")
    build = AutoModelForCausalLM.from_config

    def deaf(*arguments, **keywords):
        model = build(*arguments, **keywords)
        monkeypatch.setattr(model, "load_state_dict", lambda *_a, **_k: None)
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", deaf)
    with pytest.raises(BaseModelError, match="did not carry over 'model"):
        prune(base, [0, 1])


def test_a_family_whose_layers_are_not_alike_is_refused():
    # Its last layer has a bias that the others lack, so that the kept second layer has none.
    with pytest.raises(BaseModelError) as error:
        prune(tiny_model("gpt_neox_japanese"), [0, 1])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kept", [[], [1, 2], [0, 0], [0, 4], [2, 0]])
def test_bad_lists_of_kept_layers_are_refused(kept):
    with pytest.raises(ConfigurationError, match="kept layers"):
        build_auxiliary(tiny_model("llama"), keep=kept)


@pytest.mark.parametrize(
    ("keep", "kept", "base_map"),
    [
        (0.75, [0, 1, 2], [0, 1, 2, 2]),
        (0.5, [0, 2], [0, 0, 1, 1]),
        (0.25, [0], [0, 0, 0, 0]),
        ([0, 1, 3], [0, 1, 3], [0, 1, 1, 2]),
        ((0, 1), [0, 1], [0, 1, 1, 1]),
    ],
)
def test_a_pruned_auxiliary(keep, kept, base_map):
    auxiliary = build_auxiliary(tiny_model("llama"), keep=keep)
    assert auxiliary.kept == kept
    assert auxiliary.base_map == base_map
    assert auxiliary.adapter.n_layers == len(kept)
    assert auxiliary.describe() == {"kind": "pruned", "source": None, "kept": kept}
    assert all(p.requires_grad for p in auxiliary.parameters())


def test_half_of_the_layers_is_the_default():
    assert build_auxiliary(tiny_model("llama")).kept == [0, 2]


def test_a_fraction_without_rule_is_refused():
    with pytest.raises(ConfigurationError, match="no published pruning rule for fraction 0.6"):
        build_auxiliary(tiny_model("llama"), keep=0.6)


def test_a_canonical_auxiliary_from_a_loaded_model():
    small = tiny_model("llama", seed=4, num_hidden_layers=3, hidden_size=16)
    auxiliary = build_auxiliary(tiny_model("llama"), "canonical", source=small)
    assert auxiliary.base_map == [0, 0, 1, 2]
    assert auxiliary.describe() == {"kind": "canonical", "source": None, "kept": None}
    assert auxiliary.model is small


def test_a_canonical_auxiliary_may_be_of_another_family():
    auxiliary = build_auxiliary(tiny_model("llama"), "canonical", source=tiny_model("gpt2"))
    assert auxiliary.adapter.family == "gpt2"


def test_a_canonical_auxiliary_deeper_than_the_base_is_refused():
    deep = tiny_model("llama", num_hidden_layers=5)
    with pytest.raises(ConfigurationError, match="auxiliary of 5 layers can't feed a base of 4"):
        build_auxiliary(tiny_model("llama"), "canonical", source=deep)


def test_a_canonical_auxiliary_needs_a_source():
    with pytest.raises(ConfigurationError, match="needs `source`"):
        build_auxiliary(tiny_model("llama"), "canonical")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigurationError, match="kind 'suffix' is not one of"):
        build_auxiliary(tiny_model("llama"), "suffix")


def test_trainable_weights_are_float32():
    small = tiny_model("llama", num_hidden_layers=2, dtype=torch.bfloat16)
    auxiliary = build_auxiliary(tiny_model("llama"), "canonical", source=small)
    assert {p.dtype for p in auxiliary.parameters()} == {torch.float32}


@pytest.fixture
def small_folder(tmp_path):
    """A small sibling of the base with a tokenizer, on disk."""
    folder = tmp_path / "small"
    tiny_model("llama", seed=4, num_hidden_layers=2).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_a_canonical_auxiliary_from_a_folder(small_folder):
    auxiliary = build_auxiliary(
        tiny_model("llama"),
        "canonical",
        source=str(small_folder),
        base_tokenizer=byte_tokenizer(),
    )
    assert auxiliary.source == str(small_folder)
    expected = tiny_model("llama", seed=4, num_hidden_layers=2).state_dict()
    got = auxiliary.model.state_dict()
    assert set(got) == set(expected)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_the_bases_own_tokenizer_is_compared_by_default(small_folder, tmp_path):
    folder = tmp_path / "base"
    tiny_model("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder)
    auxiliary = build_auxiliary(base, "canonical", source=str(small_folder))
    assert auxiliary.base_map == [0, 0, 1, 1]


def test_a_sibling_with_another_tokenizer_is_refused(small_folder):
    other = byte_tokenizer()
    other.add_tokens(["spare"])
    with pytest.raises(TokenizerMismatchError):
        build_auxiliary(
            tiny_model("llama"), "canonical", source=str(small_folder), base_tokenizer=other
        )


def test_the_base_is_no_canonical_auxiliary_of_itself():
    base = tiny_model("llama")
    with pytest.raises(ConfigurationError, match="another model than the base"):
        build_auxiliary(base, "canonical", source=base)
