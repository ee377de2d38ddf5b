from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import DynamicCache

from lit_kvpred.errors import ConfigurationError, PromptError
from lit_kvpred.generation.prefill import exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from tests.tiny_models import (
    FAMILIES,
    identity_model,
    left_padded,
    predicting_model,
    random_ids,
    tiny_model,
)

_CLOSE = {"atol": 1e-5, "rtol": 1e-5}
_PROMPTS = [random_ids(n, seed=n) for n in (1, 5, 13, 2)]


@cache
def _predicting(family: str) -> KVPredictionModel:
    """A model with random maps, for tests that only read it."""
    return predicting_model(tiny_model(family))


def _held(layer, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys[:, :, :rows], layer.values[:, :, :rows]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_padded_batch_is_prefilled_like_each_prompt_alone(family):
    model = _predicting(family)
    ids, mask = left_padded(_PROMPTS)
    together = model.prefill(ids, mask)
    assert together.logits.shape == (4, 128)
    for row, prompt in enumerate(_PROMPTS):
        alone = model.prefill(prompt[None])
        torch.testing.assert_close(together.logits[row], alone.logits[0], **_CLOSE)
        for batch, single in zip(together.cache.layers, alone.cache.layers, strict=True):
            n = len(prompt)
            torch.testing.assert_close(batch.keys[row, :, -n:], single.keys[0], **_CLOSE)
            torch.testing.assert_close(batch.values[row, :, -n:], single.values[0], **_CLOSE)
            assert bool(batch.keys.isfinite().all())
            assert bool(batch.values.isfinite().all())


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_exact_prefill_is_the_bases_own(family):
    adapter = _predicting(family).adapter
    base = adapter.model
    ids, mask = left_padded(_PROMPTS)
    prefill = exact_prefill(adapter, describe_prompt(adapter, ids, mask))
    for row, prompt in enumerate(_PROMPTS):
        cache = DynamicCache()
        expected = base(prompt[None], cache=cache, use_cache=True).logits[0, -1]
        torch.testing.assert_close(prefill.logits[row], expected, **_CLOSE)
        for got, want in zip(prefill.cache.layers, cache.layers, strict=True):
            torch.testing.assert_close(got.keys[row, :, -len(prompt) :], want.keys[0], **_CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@torch.no_grad()
def test_prompts_of_one_token_next_to_nothing_but_padding(family):
    model = _predicting(family)
    ids, mask = torch.tensor([[0, 0, 7], [0, 0, 9]]), torch.tensor([[0, 0, 1], [0, 0, 1]])
    padded, alone = model.prefill(ids, mask), model.prefill(torch.tensor([[7], [9]]))
    torch.testing.assert_close(padded.logits, alone.logits, **_CLOSE)


@pytest.mark.parametrize("static_length", [0, 4, -1, 5.0, True])
def test_a_static_cache_that_is_too_short_is_refused(static_length):
    model = predicting_model(tiny_model("llama"))
    with pytest.raises(ConfigurationError, match="static_length must be a whole number of at lea"):
        model.prefill(random_ids(1, 5), static_length=static_length)


@pytest.mark.parametrize("static_length", [None, 4])
@torch.no_grad()
def test_a_prompt_of_one_token_runs_the_base_alone(static_length):
    base = tiny_model("llama")
    model = predicting_model(base)
    calls = []
    for network in (model.auxiliary.model, model.predictor):
        for module in network.modules():
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    ids = random_ids(2, 1)
    prefill = model.prefill(ids, static_length=static_length)
    assert not calls
    cache = DynamicCache()
    expected = base(ids, cache=cache, use_cache=True).logits[:, -1]
    torch.testing.assert_close(prefill.logits, expected, **_CLOSE)
    for got, want in zip(prefill.cache.layers, cache.layers, strict=True):
        for a, b in zip(_held(got, 1), (want.keys, want.values), strict=True):
            torch.testing.assert_close(a, b, **_CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@torch.no_grad()
def test_a_static_cache_holds_the_same_rows(family):
    model = _predicting(family)
    ids, mask = left_padded(_PROMPTS)
    for make in (
        lambda length: model.prefill(ids, mask, static_length=length),
        lambda length: exact_prefill(
            model.adapter, describe_prompt(model.adapter, ids, mask), static_length=length
        ),
    ):
        dynamic, static = make(None), make(20)
        torch.testing.assert_close(static.logits, dynamic.logits, **_CLOSE)
        assert int(static.cache.get_seq_length()) == 13
        for a, b in zip(static.cache.layers, dynamic.cache.layers, strict=True):
            assert a.keys.shape[2] == 20
            for got, want in zip(_held(a, 13), (b.keys, b.values), strict=True):
                real = mask.bool()
                got, want = got.transpose(1, 2)[real], want.transpose(1, 2)[real]
                torch.testing.assert_close(got, want, **_CLOSE)


@torch.no_grad()
def test_the_vocabulary_is_projected_for_the_last_row_only():
    model = predicting_model(tiny_model("llama"))
    rows = []
    model.base.lm_head.register_forward_pre_hook(lambda _m, a: rows.append(a[0].shape))
    model.auxiliary.model.lm_head.register_forward_pre_hook(lambda *_: rows.append("auxiliary"))
    ids = random_ids(2, 9)
    model.prefill(ids)
    exact_prefill(model.adapter, describe_prompt(model.adapter, ids, None))
    assert rows == [(2, 1, 32)] * 2


@torch.no_grad()
def test_the_base_computes_one_row_only():
    model = predicting_model(tiny_model("llama"))
    rows = []
    for layer in model.adapter.layers:
        layer.register_forward_pre_hook(lambda _m, a: rows.append(a[0].shape))
    model.prefill(random_ids(2, 9))
    assert rows == [(2, 1, 32)] * 4


def test_logits_are_float32_whatever_the_base():
    base = tiny_model("llama", dtype=torch.bfloat16)
    model = identity_model(base)
    assert model.prefill(random_ids(1, 4)).logits.dtype == torch.float32
    prompt = describe_prompt(model.adapter, random_ids(1, 4), None)
    assert exact_prefill(model.adapter, prompt).logits.dtype == torch.float32


def test_prefill_asks_no_gradient():
    model = predicting_model(tiny_model("llama"))
    assert not model.prefill(random_ids(1, 4)).logits.requires_grad


# -- prompts that can't be served ----------------------------------------------------------------


def test_every_way_in_checks_the_prompt():
    model = predicting_model(tiny_model("gpt2"))
    wrong = torch.tensor([[4, 128]])
    for prefill in (
        lambda: model.prefill(wrong),
        lambda: model.exact_context(wrong),
        lambda: model.generate(wrong, max_new_tokens=2),
        lambda: model.stream(wrong, max_new_tokens=2),
    ):
        with pytest.raises(PromptError, match="token id 128"):
            prefill()
    with pytest.raises(PromptError, match="shorten the prompt or ask for fewer tokens"):
        model.generate(random_ids(1, 250), max_new_tokens=7)


@pytest.mark.parametrize(
    "overrides", [{"n_positions": 16}, {"vocab_size": 64}], ids=["positions", "vocabulary"]
)
def test_a_prompt_that_only_the_auxiliary_cannot_read_is_refused(overrides):
    small = tiny_model("gpt2", **overrides)
    base = tiny_model("gpt2")
    model = KVPredictionModel(base, build_auxiliary(base, "canonical", source=small))
    with pytest.raises(PromptError):
        model.prefill(torch.cat([random_ids(1, 19), torch.tensor([[100, 5]])], dim=1))
