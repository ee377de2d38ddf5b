"""A conversation's later turns, and prompts that share a beginning, read only what is new."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from lit_kvpred.errors import ConfigurationError, PromptError
from lit_kvpred.generation.context import ExactContext
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse
from tests.tiny_models import left_padded, random_ids, tiny_model

_FAMILIES = ("llama", "qwen3", "gpt2", "gpt_neox", "gemma2", "phi")
_KINDS = ("prefix", "pruned")
_CLOSE = {"atol": 1e-4, "rtol": 1e-4}
_SYSTEM = random_ids(9, seed=1)[None]


@cache
def _model(family: str = "llama", kind: str = "prefix", tail: int = 1) -> KVPredictionModel:
    base = tiny_model(family, weight_scale=8.0)
    torch.manual_seed(3)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary, exact_tail=tail).eval()


def _plain(model, ids, mask=None, **chosen) -> list[list[int]]:
    chosen = {"max_new_tokens": 6, "eos_ids": ()} | chosen
    return generate_exact(model.adapter, ids, mask, settings=GenerationSettings(**chosen)).answers


def _assert_exact(model: KVPredictionModel, context: ExactContext) -> None:
    reference = RecordingCache()
    with torch.no_grad():
        model.base(context.token_ids[None], cache=reference, use_cache=True)
    for (keys, values), layer in zip(context.rows, reference.layers, strict=True):
        torch.testing.assert_close(keys, layer.keys, **_CLOSE)
        torch.testing.assert_close(values, layer.values, **_CLOSE)


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("slice_rows", [None, 2])
@pytest.mark.parametrize("static", [False, True])
def test_a_second_turn_is_that_of_the_plain_base(family, kind, slice_rows, static):
    model = _model(family, kind)
    settings = {"max_new_tokens": 6, "eos_ids": (), "static_cache": static, "keep_context": True}
    correction = Correction(period=3, threshold=1.1, slice_rows=slice_rows)
    first = model.generate(_SYSTEM, correction=correction, **settings)
    assert len(first.context) == 9 + 6 - 1
    _assert_exact(model, first.context)

    second = torch.cat([first.sequences, random_ids(5, seed=2)[None]], dim=1)
    output = model.generate(second, context=first.context, correction=correction, **settings)
    assert output.answers == _plain(model, second)
    _assert_exact(model, output.context)
    third = torch.cat([output.sequences, random_ids(2, seed=3)[None]], dim=1)
    again = model.generate(third, context=output.context, correction=correction, **settings)
    assert again.answers == _plain(model, third)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("correction", "new"),
    [(None, 5), (Correction(period=8, policy="commit"), 3), (Correction(period=8), 1)],
    ids=["never corrected", "ended before it was exact", "one token"],
)
def test_a_context_is_completed_where_the_answer_was_not_exact(kind, correction, new):
    model = _model("llama", kind)
    output = model.generate(
        _SYSTEM, max_new_tokens=new, eos_ids=(), correction=correction, keep_context=True
    )
    held = len(output.context)
    assert held == 9 + new - 1
    assert output.context.token_ids.tolist() == output.sequences[0, :held].tolist()
    _assert_exact(model, output.context)


@pytest.mark.parametrize("draft", [None, CSparse(0.5)])
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("padding", [0, 3])
def test_an_answer_may_end_anywhere(draft, at, padding):
    """The end of sequence may be drafted and accepted, or be the base's own."""
    model = _model()
    correction = Correction(period=4, threshold=0.0, policy="retract", draft=draft)
    settings = {"max_new_tokens": 12, "correction": correction, "keep_context": True}
    free = model.generate(_SYSTEM, eos_ids=(), **settings).answers[0]
    ids, mask = left_padded([_SYSTEM[0], random_ids(9 + padding)])
    output = model.generate(ids[:1], mask[:1], eos_ids=(free[at],), **settings)
    assert output.answers[0] == free[: free.index(free[at]) + 1]
    held = len(output.context)
    assert held - 9 in (len(output.answers[0]) - 1, len(output.answers[0]))
    assert output.context.token_ids.tolist() == output.sequences[0, padding:][:held].tolist()
    _assert_exact(model, output.context)


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("kind", _KINDS)
def test_prompts_that_share_a_beginning_are_each_as_if_alone(family, kind):
    model = _model(family, kind, tail=2)
    context = model.exact_context(_SYSTEM)
    _assert_exact(model, context)
    prompts = [torch.cat([_SYSTEM[0], random_ids(n, seed=n)]) for n in (1, 4, 7)]
    ids, mask = left_padded(prompts)
    logits = model.prefill(ids, mask, context=context).logits
    for row, prompt in zip(logits, prompts, strict=True):
        alone = model.prefill(prompt[None], context=context).logits[0]
        torch.testing.assert_close(row, alone, **_CLOSE)
    correction = Correction(period=2, threshold=1.1)
    output = model.generate(
        ids, mask, context=context, correction=correction, max_new_tokens=6, eos_ids=()
    )
    assert output.answers == _plain(model, ids, mask)
    assert torch.equal(output.sequences[:, : ids.shape[1]], ids)


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("kind", _KINDS)
def test_known_rows_stay_and_the_others_are_predicted_as_without(family, kind):
    model = _model(family, kind)
    prompt = torch.cat([_SYSTEM, random_ids(6, seed=6)[None]], dim=1)
    context = model.exact_context(_SYSTEM)
    known = model.prefill(prompt, context=context)
    assert known.predicted_rows == 5
    fresh = model.prefill(prompt)
    for layer, (a, b) in enumerate(zip(known.cache.layers, fresh.cache.layers, strict=True)):
        torch.testing.assert_close(a.keys[:, :, 9:14], b.keys[:, :, 9:14], **_CLOSE)
        torch.testing.assert_close(a.values[:, :, 9:14], b.values[:, :, 9:14], **_CLOSE)
        torch.testing.assert_close(a.keys[:, :, :9], context.rows[layer][0], **_CLOSE)


def test_only_new_tokens_are_read():
    model = _model()
    context = model.exact_context(_SYSTEM)
    widths = []
    hook = model.adapter.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: widths.append((args or tuple(kwargs.values()))[0].shape[1]),
        with_kwargs=True,
    )
    prompt = torch.cat([_SYSTEM, random_ids(6, seed=6)[None]], dim=1)
    model.generate(prompt, context=context, max_new_tokens=2, correction=Correction(period=1))
    hook.remove()
    # One known row more for the feature that looks back, and one verify pass of last row and draft.
    assert widths[0] == 6 + 1
    assert max(widths) == 7
    assert sum(widths) <= 7 + 2 + 2


def test_a_context_is_never_changed():
    model = _model()
    context = model.exact_context(_SYSTEM)
    before = [(k.clone(), v.clone()) for k, v in context.rows]
    for seed in range(3):
        prompt = torch.cat([_SYSTEM[:, :5], random_ids(6, seed=seed)[None]], dim=1)
        model.generate(prompt, context=context, max_new_tokens=4, correction=Correction(period=2))
    assert len(context) == 9
    for (k, v), (k0, v0) in zip(context.rows, before, strict=True):
        assert torch.equal(k, k0)
        assert torch.equal(v, v0)


@pytest.mark.parametrize("shared", [0, 1, 5, 9])
def test_whatever_is_shared_is_used(shared):
    model = _model()
    context = model.exact_context(_SYSTEM)
    other = (_SYSTEM[:, shared : shared + 1] + 1) % 100
    prompt = torch.cat([_SYSTEM[:, :shared], other, random_ids(3, seed=8)[None]], dim=1)
    known = shared if shared < 9 else 9
    assert model.prefill(prompt, context=context).predicted_rows == prompt.shape[1] - 1 - known
    output = model.generate(
        prompt, context=context, max_new_tokens=6, eos_ids=(), correction=Correction(threshold=1.1)
    )
    assert output.answers == _plain(model, prompt)


def test_the_context_itself_as_prompt_leaves_one_token_to_read():
    model = _model()
    context = model.exact_context(_SYSTEM)
    output = model.generate(_SYSTEM, context=context, max_new_tokens=6, eos_ids=())
    assert output.answers == _plain(model, _SYSTEM)
    assert output.stats.time_to_exact_s is not None


def test_a_padded_prompt_leaves_a_context_without_padding():
    model = _model()
    ids, mask = left_padded([_SYSTEM[0], random_ids(12)])
    output = model.generate(ids[:1], mask[:1], max_new_tokens=4, eos_ids=(), keep_context=True)
    assert output.context.token_ids[:9].tolist() == _SYSTEM[0].tolist()
    _assert_exact(model, output.context)


def test_a_context_grows_from_another():
    model = _model()
    longer = torch.cat([_SYSTEM, random_ids(4, seed=4)[None]], dim=1)
    context = model.exact_context(longer, model.exact_context(_SYSTEM))
    assert len(context) == 13
    _assert_exact(model, context)


def test_what_cannot_be_is_refused():
    model = _model()
    context = model.exact_context(_SYSTEM)
    with pytest.raises(PromptError, match="rows of another model"):
        _model("qwen3").generate(_SYSTEM, context=context, max_new_tokens=2)
    with pytest.raises(PromptError, match="context must come from exact_context .*, got Tensor"):
        model.generate(_SYSTEM, context=_SYSTEM, max_new_tokens=2)
    with pytest.raises(PromptError, match="a context is one text, got 2"):
        model.exact_context(_SYSTEM.expand(2, -1))
    with pytest.raises(ConfigurationError, match="keep_context needs a single prompt, got 2"):
        model.generate(_SYSTEM.expand(2, -1), max_new_tokens=2, keep_context=True)


def test_a_context_of_another_dtype_is_refused():
    base = tiny_model("llama")
    model = KVPredictionModel(base, build_auxiliary(base, "prefix", keep=2)).eval()
    context = model.exact_context(_SYSTEM)
    base.bfloat16()
    with pytest.raises(PromptError, match="holds torch.float32 rows but the model"):
        model.generate(_SYSTEM, context=context, max_new_tokens=2)


def test_wrong_types_are_named():
    model = _model()
    with pytest.raises(ConfigurationError, match="correction must be a Correction or None, got di"):
        model.generate(_SYSTEM, correction={"period": 3})
    with pytest.raises(ConfigurationError, match="draft must be CSparse"):
        Correction(draft=CSparse)
    with pytest.raises(ConfigurationError, match="max_new_tokens must be a whole number"):
        model.generate(_SYSTEM, max_new_tokens=2.5)
    with pytest.raises(ConfigurationError, match="keep must be a number above 0"):
        CSparse("half")
