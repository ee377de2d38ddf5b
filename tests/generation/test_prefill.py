from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import DynamicCache

from lit_kvpred.errors import PromptError
from lit_kvpred.generation.prefill import describe_prompt, exact_prefill, predicted_prefill
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.family import FamilyAdapter
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
    prefill = exact_prefill(adapter, ids, mask)
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
        lambda length: exact_prefill(model.adapter, ids, mask, static_length=length),
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
    exact_prefill(model.adapter, ids)
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
    assert exact_prefill(model.adapter, random_ids(1, 4)).logits.dtype == torch.float32


def test_prefill_asks_no_gradient():
    model = predicting_model(tiny_model("llama"))
    assert not model.prefill(random_ids(1, 4)).logits.requires_grad


# -- prompts that can't be served ----------------------------------------------------------------


def _adapter() -> FamilyAdapter:
    return FamilyAdapter(tiny_model("gpt2"))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 0), "the prompt is empty"),
        ((0, 4), "the prompt is empty"),
        ((3,), "add a batch dimension"),
        ((1, 2, 3), "add a batch dimension"),
    ],
)
def test_an_empty_prompt_is_refused(shape, message):
    with pytest.raises(PromptError, match=message):
        describe_prompt(_adapter(), torch.ones(shape, dtype=torch.long), None)


@pytest.mark.parametrize("wrong", [128, 5000, -1])
def test_an_unknown_token_is_refused(wrong):
    with pytest.raises(PromptError, match=f"token id {wrong} .* knows ids below 128"):
        describe_prompt(_adapter(), torch.tensor([[4, wrong, 5]]), None)


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(PromptError, match=r"attention_mask \(1, 3\) must have the shape"):
        describe_prompt(_adapter(), random_ids(1, 4), torch.ones(1, 3))


@pytest.mark.parametrize("mask", [[1, 1, 0], [1, 0, 1], [0, 1, 0]])
def test_padding_on_the_right_or_inside_is_refused(mask):
    with pytest.raises(PromptError, match="padded on the left only"):
        describe_prompt(_adapter(), random_ids(1, 3), torch.tensor([mask]))


def test_a_prompt_of_nothing_but_padding_is_refused():
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    with pytest.raises(PromptError, match="all padding"):
        describe_prompt(_adapter(), random_ids(2, 3), mask)


@pytest.mark.parametrize(
    ("length", "new", "fits"), [(256, 0, True), (257, 0, False)] + [(250, 6, True), (250, 7, False)]
)
def test_a_prompt_beyond_the_positions_is_refused(length, new, fits):
    adapter, ids = _adapter(), random_ids(1, length)
    if fits:
        assert describe_prompt(adapter, ids, None, new).position_ids.shape == (1, length)
        return
    with pytest.raises(PromptError, match=rf"need {length + new} positions \({length} \+ {new}\)"):
        describe_prompt(adapter, ids, None, new)


def test_padding_takes_no_position():
    ids, mask = left_padded([random_ids(256), random_ids(3)])
    wide = torch.cat([torch.zeros(2, 9, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(2, 9, dtype=torch.long), mask], dim=1)
    assert int(describe_prompt(_adapter(), wide, mask).position_ids.max()) == 255


def test_every_way_in_checks_the_prompt():
    model = predicting_model(tiny_model("gpt2"))
    wrong = torch.tensor([[4, 128]])
    for prefill in (
        lambda: model.prefill(wrong),
        lambda: predicted_prefill(model, wrong),
        lambda: exact_prefill(model.adapter, wrong),
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
