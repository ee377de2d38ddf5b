from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lit_kvpred.model.fingerprint import fingerprint
from lit_kvpred.model.loading import load_base
from tests.tiny_models import ISSUE_FAMILIES, tiny_model


@pytest.fixture
def model():
    return tiny_model("llama")


@pytest.mark.parametrize("family", ISSUE_FAMILIES)
def test_saved_and_reloaded_in_either_dtype_it_stays_the_same(family, tmp_path):
    model = tiny_model(family)
    expected = fingerprint(model)
    model.save_pretrained(tmp_path)
    assert fingerprint(load_base(tmp_path)) == expected
    assert fingerprint(load_base(tmp_path, dtype="bfloat16")) == expected


def test_fresh_rounding_to_bfloat16_keeps_it(model):
    assert fingerprint(copy.deepcopy(model).to(torch.bfloat16)) == fingerprint(model)


def test_how_a_model_is_run_does_not_enter(model):
    before = fingerprint(model)
    model.train()
    model.set_attn_implementation("eager")
    model.config.use_cache = False
    model.config.transformers_version = "0.0"
    model.config.name_or_path = "elsewhere"
    model.requires_grad_(False)
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", ["model.norm.weight", "lm_head.weight"])
def test_one_changed_weight_changes_it(model, name):
    before = fingerprint(model)
    weight = model.get_parameter(name).data.view(-1)
    weight[-1] *= 1.01
    assert fingerprint(model) != before


def test_a_changed_weight_beyond_the_first_block_changes_it(model, monkeypatch):
    monkeypatch.setattr("lit_kvpred.model.fingerprint._BLOCK_ELEMENTS", 100)
    before = fingerprint(model)
    weight = model.get_input_embeddings().weight
    assert weight.numel() > 200
    weight.data.view(-1)[150] += 1.0
    assert fingerprint(model) != before


def test_the_size_of_a_block_does_not_enter(model, monkeypatch):
    before = fingerprint(model)
    monkeypatch.setattr("lit_kvpred.model.fingerprint._BLOCK_ELEMENTS", 97)
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    "change",
    [{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rms_norm_eps": 1e-3}],
    ids=["rope", "eps"],
)
def test_one_changed_config_value_changes_it(model, change):
    before = fingerprint(model)
    for name, value in change.items():
        setattr(model.config, name, value)
    assert fingerprint(model) != before


def test_a_config_value_under_another_name_changes_it(model):
    model.config.first_name = 3
    before = fingerprint(model)
    del model.config.first_name
    model.config.second_name = 3
    assert fingerprint(model) != before


def test_a_value_moved_to_another_parameter_changes_it(model):
    before = fingerprint(model)
    layer = model.model.layers[0]
    layer.input_layernorm, layer.post_attention_layernorm = (
        layer.post_attention_layernorm,
        layer.input_layernorm,
    )
    assert fingerprint(model) != before


def test_a_renamed_parameter_changes_it(model):
    before = fingerprint(model)
    model.model.last_norm = model.model.norm
    del model.model.norm
    assert fingerprint(model) != before


def test_a_reshaped_parameter_changes_it(model):
    before = fingerprint(model)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data.view(32, 128))
    assert fingerprint(model) != before


def test_a_tied_tensor_counts_once():
    tied = tiny_model("llama", tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    before = fingerprint(tied)
    # The same values, untied: one parameter more.
    tied.lm_head.weight = nn.Parameter(tied.lm_head.weight.detach().clone())
    assert fingerprint(tied) != before
