"""Slices of any size make the prompt exact, and the text the base's own."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.catch_up import CatchUp
from lit_kvpred.generation.events import ExactEvent, RetractionEvent, TokenEvent
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.prefill import predicted_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.generation.row_states import RowState, RowStates
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.stopping import StopRule
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.caches import RecordingCache, n_rows
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from tests.tiny_models import left_padded, random_ids, tiny_model

_SERVED = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "gemma2", "olmo2", "phi")
_PROMPTS = [random_ids(n, seed=n) for n in (2, 7, 12)]
_CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@cache
def _model(family: str, kind: str, tail: int = 1) -> KVPredictionModel:
    base = tiny_model(family, weight_scale=8.0)
    torch.manual_seed(3)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary, exact_tail=tail).eval()


def _started(model, prompts, static_length=None) -> tuple[AnswerState, CatchUp]:
    ids, mask = left_padded(prompts)
    prompt = describe_prompt(model.adapter, ids, mask)
    first = predicted_prefill(model, prompt, static_length=static_length)
    states = RowStates.of_prompt(len(ids), prompt.n_rows, first.predicted_rows)
    answer = AnswerState(model.adapter, first.cache, mask.bool(), states, StopRule([], 100))
    answer.append(first.logits.argmax(-1))
    return answer, CatchUp(answer, prompt, model.auxiliary.cut, first.hidden)


@pytest.mark.parametrize("family", _SERVED)
@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@pytest.mark.parametrize("rows", [1, 4, 11])
@pytest.mark.parametrize("static", [None, 40])
@torch.no_grad()
def test_riding_slices_leave_the_rows_of_a_plain_prefill(family, kind, rows, static):
    model = _model(family, kind)
    answer, catch_up = _started(model, _PROMPTS, static)
    steps = 0
    while catch_up.remaining:
        answer.append(catch_up.ride(min(rows, catch_up.remaining)).argmax(-1))
        steps += 1
        assert answer.states.count(RowState.EXACT) == 3 * catch_up.done
    assert steps == -(-11 // rows)
    assert n_rows(answer.cache) == 12 + steps
    for row, prompt in enumerate(_PROMPTS):
        plain = RecordingCache()
        model.base(prompt[None], cache=plain, use_cache=True)
        for layer, reference in zip(answer.cache.layers, plain.layers, strict=True):
            slots = slice(12 - len(prompt), 11)
            torch.testing.assert_close(
                layer.keys[row, :, slots], reference.keys[0, :, :-1], **_CLOSE
            )
            torch.testing.assert_close(
                layer.values[row, :, slots], reference.values[0, :, :-1], **_CLOSE
            )


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@torch.no_grad()
def test_the_decode_row_sees_what_an_ordinary_step_would_see(kind):
    """Its logits are those of the base on exact rows up to the slice and predicted ones behind."""
    model = _model("llama", kind)
    answer, catch_up = _started(model, _PROMPTS[2:])
    other, others = _started(model, _PROMPTS[2:])
    logits = catch_up.ride(5)
    plain = RecordingCache()
    model.base(_PROMPTS[2][None], cache=plain, use_cache=True)
    for layer, reference in zip(other.cache.layers, plain.layers, strict=True):
        layer.keys[:, :, :5] = reference.keys[:, :, :5]
        layer.values[:, :, :5] = reference.values[:, :, :5]
    torch.testing.assert_close(logits, other.step(), **_CLOSE)
    assert others.remaining == 11
    assert answer.states.count(RowState.STALE) == 2


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(_SERVED),
    kind=st.sampled_from(["prefix", "pruned"]),
    slice_rows=st.integers(1, 14),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    new_tokens=st.integers(1, 14),
    tail=st.integers(1, 5),
    static=st.booleans(),
    policy=st.sampled_from(["hold", "retract"]),
)
def test_rejecting_every_draft_gives_the_bases_text(
    family, kind, slice_rows, lengths, new_tokens, tail, static, policy
):
    model = _model(family, kind, tail)
    ids, mask = left_padded([random_ids(n, seed=n + i) for i, n in enumerate(lengths)])
    chosen = {"max_new_tokens": new_tokens, "eos_ids": (), "static_cache": static}
    exact = generate_exact(model.adapter, ids, mask, settings=GenerationSettings(**chosen))
    correction = Correction(threshold=1.1, policy=policy, slice_rows=slice_rows)
    output = model.generate(ids, mask, correction=correction, **chosen)
    assert output.answers == exact.answers


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
def test_the_draft_is_judged_as_soon_as_the_prompt_is_exact(kind):
    model = _model("llama", kind)
    stream = model.stream(
        random_ids(1, 12),
        max_new_tokens=20,
        eos_ids=(),
        correction=Correction(threshold=1.1, policy="retract", slice_rows=3),
    )
    events = list(stream)
    exact = events.index(ExactEvent())
    # One token at once and one with each of four slices, all taken back.
    assert [type(e) for e in events[:exact]] == [TokenEvent] * 5 + [RetractionEvent]
    assert events[exact - 1].count == 5
    assert not any(e.exact for e in events[: exact - 1])
    assert all(e.exact for e in events[exact + 1 :])


def test_an_answer_that_ends_first_is_left_as_it_is_where_it_is_committed():
    model = _model("llama", "prefix")
    ran = []
    handle = model.base.model.layers[3].register_forward_hook(
        lambda _, args, __: ran.append(args[0].shape[1])
    )
    output = model.generate(
        random_ids(1, 12),
        max_new_tokens=3,
        eos_ids=(),
        correction=Correction(policy="commit", slice_rows=2),
    )
    handle.remove()
    assert ran == [1, 3, 3]
    assert output.stats.time_to_exact_s is None
    assert len(output.answers[0]) == 3


def test_a_threshold_of_zero_keeps_every_draft():
    model = _model("llama", "prefix")
    output = model.generate(
        random_ids(1, 12),
        max_new_tokens=9,
        eos_ids=(),
        correction=Correction(threshold=0.0, slice_rows=4),
    )
    assert output.stats.drafted == output.stats.accepted == 4


def test_no_row_behind_an_inexact_one_counts_as_exact():
    states = RowStates(1)
    states.append_predicted(4)
    with pytest.raises(AssertionError, match="behind rows that are not exact"):
        states.mark_exact(slice(2, 3))
    states.mark_exact(slice(0, 3))
    assert states.count(RowState.EXACT) == 3
