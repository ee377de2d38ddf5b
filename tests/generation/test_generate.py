from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.events import ExactEvent, RetractionEvent, TokenEvent, drain
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.sampling import Sampling
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.stopping import StopRule
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import describe_batch
from lit_kvpred.sirius.correction import Correction
from tests.generation.reference import complete_at, corrected_answer, greedy_answer
from tests.model.projections import replaced_projections
from tests.tiny_models import (
    FAMILIES,
    ISSUE_FAMILIES,
    byte_tokenizer,
    identity_model,
    left_padded,
    predicting_model,
    random_ids,
    tiny_model,
)

_PROMPTS = [random_ids(n, seed=n) for n in (1, 5, 12)]
_POLICIES = ("hold", "retract", "commit")
_REVOCABLE = ("hold", "retract")


def _fresh_model(family: str = "llama") -> KVPredictionModel:
    """Answers of this base vary, and the predicted prompt leads them elsewhere at once."""
    return predicting_model(tiny_model(family, weight_scale=8.0))


@cache
def _model(family: str = "llama") -> KVPredictionModel:
    """The same, for tests that only read it."""
    return _fresh_model(family)


def _exact(model, prompts=_PROMPTS, *, max_new_tokens=8, eos_ids=(), **others) -> list[list[int]]:
    chosen = GenerationSettings(max_new_tokens=max_new_tokens, eos_ids=eos_ids, **others)
    return generate_exact(model.adapter, *left_padded(prompts), settings=chosen).answers


def _generate(model, prompts=_PROMPTS, *, max_new_tokens=8, eos_ids=(), **others):
    ids, mask = left_padded(prompts)
    return model.generate(ids, mask, max_new_tokens=max_new_tokens, eos_ids=eos_ids, **others)


def _draft(model, prompts=_PROMPTS, **others) -> list[list[int]]:
    return _generate(model, prompts, **others).answers


# -- the exact base ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_answers_are_those_of_transformers(family):
    base = tiny_model(family, weight_scale=8.0)
    ids, mask = left_padded(_PROMPTS)
    expected = base.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=6, pad_token_id=0
    )
    adapter = FamilyAdapter(base)
    for static_cache in (False, True):
        chosen = GenerationSettings(max_new_tokens=6, static_cache=static_cache)
        for row, answer in enumerate(generate_exact(adapter, ids, mask, settings=chosen).answers):
            assert answer == expected[row, 12 : 12 + len(answer)].tolist()
            assert len(answer) == 6 or answer[-1] == 2
            assert not expected[row, 12 + len(answer) :].any()


def test_the_text_of_the_exact_base_is_greedy():
    base = tiny_model("llama", weight_scale=8.0)
    answers = _exact(predicting_model(base))
    assert answers == [greedy_answer(base, p, complete_at(8)) for p in _PROMPTS]
    assert len({tuple(answer) for answer in answers}) == 3


def test_exact_generation_is_exact_from_the_start():
    model = _model()
    ids, mask = left_padded(_PROMPTS)
    stats = generate_exact(
        model.adapter, ids, mask, settings=GenerationSettings(max_new_tokens=4, eos_ids=())
    ).stats
    assert stats.time_to_exact_s == stats.ttft_s > 0
    assert (stats.prompt_tokens, stats.new_tokens, stats.drafted) == (18, 12, 0)
    assert stats.aal is None
    assert stats.effective_density is None


# -- without correction --------------------------------------------------------------------------


@pytest.mark.parametrize("family", ISSUE_FAMILIES)
@torch.no_grad()
def test_without_correction_the_prompt_stays_predicted(family):
    model = _model(family)
    prompt = random_ids(12)
    rows = model.read_auxiliary(prompt[None, :-1], describe_batch(prompt[None, :-1], None))
    with replaced_projections(model.base, *model.predictor(rows)):
        expected = greedy_answer(model.base, prompt, complete_at(6))
    output = _generate(model, [prompt], max_new_tokens=6)
    assert output.answers == [expected]
    assert expected != greedy_answer(model.base, prompt, complete_at(6))
    assert output.stats.time_to_exact_s is None
    assert output.stats.aal is None
    assert output.stats.drafted == output.stats.accepted == output.stats.retracted == 0


@pytest.mark.parametrize("family", [*ISSUE_FAMILIES, "gemma3_text", "opt", "cohere2"])
def test_a_padded_batch_is_answered_like_each_prompt_alone(family):
    model = _model(family)
    alone = [_draft(model, [prompt], max_new_tokens=5)[0] for prompt in _PROMPTS]
    assert _draft(model, max_new_tokens=5) == alone


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_an_identity_model_answers_like_the_base(family):
    model = identity_model(tiny_model(family, weight_scale=8.0))
    assert _draft(model) == _exact(model)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_a_static_cache_changes_no_answer(family):
    model = _model(family)
    assert _draft(model, static_cache=True) == _draft(model)


def test_a_static_cache_where_positions_are_a_bias():
    model = _model("bloom")
    assert _draft(model) == [_draft(model, [prompt])[0] for prompt in _PROMPTS]
    assert _draft(model, static_cache=True) == _draft(model)


# -- correction at the extremes ------------------------------------------------------------------


@pytest.mark.parametrize("family", ISSUE_FAMILIES)
@pytest.mark.parametrize(("policy", "static_cache"), [("hold", False), ("retract", True)])
def test_a_threshold_above_one_gives_the_exact_text(family, policy, static_cache):
    model = _model(family)
    expected = _exact(model)
    draft = _draft(model)
    # The prompt of one token is exact anyway.
    assert [a == b for a, b in zip(draft, expected, strict=True)] == [True, False, False]
    output = _generate(
        model,
        correction=Correction(period=3, threshold=1.1, policy=policy),
        static_cache=static_cache,
    )
    assert output.answers == expected
    assert output.stats.accepted == 0
    assert output.stats.drafted == output.stats.retracted == 9
    assert output.stats.aal == 1
    assert output.stats.effective_density == 4


@pytest.mark.parametrize(
    ("period", "max_new_tokens", "policy"),
    [
        (1, 1, "hold"),
        (1, 2, "retract"),
        (1, 5, "hold"),
        (4, 1, "retract"),
        (4, 3, "hold"),
        (4, 4, "hold"),
        (4, 4, "retract"),
        (4, 5, "hold"),
        (4, 5, "retract"),
        (16, 3, "retract"),
    ],
)
def test_periods_and_lengths_around_each_other(period, max_new_tokens, policy):
    model = _model()
    output = _generate(
        model,
        max_new_tokens=max_new_tokens,
        correction=Correction(period=period, threshold=2.0, policy=policy),
    )
    assert output.answers == _exact(model, max_new_tokens=max_new_tokens)
    assert output.stats.drafted == 3 * min(period, max_new_tokens)
    assert output.stats.new_tokens == 3 * max_new_tokens


@pytest.mark.parametrize(
    ("period", "max_new_tokens", "policy"),
    [
        (1, 4, "hold"),
        (4, 3, "retract"),
        (4, 4, "hold"),
        (4, 5, "hold"),
        (4, 5, "retract"),
        (4, 5, "commit"),
    ],
)
def test_a_threshold_of_zero_rejects_nothing(period, max_new_tokens, policy):
    model = _model()
    output = _generate(
        model,
        max_new_tokens=max_new_tokens,
        correction=Correction(period=period, threshold=0.0, policy=policy),
    )
    drafted = min(period, max_new_tokens)
    stats = output.stats
    assert stats.drafted == stats.accepted == 3 * drafted
    assert stats.retracted == stats.unrecoverable == 0
    # The base's own token follows unless the answer is complete.
    assert stats.aal == drafted + (drafted < max_new_tokens)
    assert stats.effective_density == (drafted + 1) / stats.aal
    drafts = _draft(model, max_new_tokens=drafted)
    for prompt, draft, answer in zip(_PROMPTS, drafts, output.answers, strict=True):
        expected = greedy_answer(model.base, prompt, complete_at(max_new_tokens), draft)
        assert answer == expected


def test_commit_keeps_what_was_shown_even_if_all_of_it_is_rejected():
    model = _model()
    output = _generate(model, correction=Correction(period=4, threshold=1.1, policy="commit"))
    drafts = _draft(model, max_new_tokens=4)
    for prompt, draft, answer in zip(_PROMPTS, drafts, output.answers, strict=True):
        assert answer == greedy_answer(model.base, prompt, complete_at(8), draft)
    assert output.stats.accepted == output.stats.retracted == 0
    assert output.stats.unrecoverable == output.stats.drafted == 12


@pytest.mark.parametrize("policy", _POLICIES)
def test_a_prompt_of_one_token(policy):
    model = _model()
    prompts = [torch.tensor([7])]
    correction = Correction(period=3, threshold=1.1, policy=policy)
    output = _generate(model, prompts, correction=correction)
    assert output.answers == _exact(model, prompts)
    assert _generate(model, prompts, static_cache=True, correction=correction).answers == (
        output.answers
    )


# -- correction in between -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "threshold"), [("llama", 0.01), ("llama", 0.05), ("gemma2", 0.01)]
)
@pytest.mark.parametrize("policy", _POLICIES)
def test_answers_are_those_of_a_plain_computation(family, policy, threshold):
    model = _model(family)
    prompts = [random_ids(n, seed=n) for n in (1, 2, 5, 9, 12)]
    correction = Correction(period=4, threshold=threshold, policy=policy)
    output = _generate(model, prompts, correction=correction)
    drafts = _draft(model, prompts, max_new_tokens=4)
    accepted = 0
    for prompt, draft, answer in zip(prompts, drafts, output.answers, strict=True):
        expected, good = corrected_answer(
            model.base,
            prompt,
            draft,
            complete_at(8),
            threshold=threshold,
            keep_all=policy == "commit",
        )
        assert answer == expected
        accepted += good
    stats = output.stats
    assert stats.accepted == accepted
    assert stats.aal == pytest.approx(1 + accepted / 5)
    assert stats.effective_density == pytest.approx(5 / stats.aal)
    rejected = 20 - accepted
    assert (stats.retracted, stats.unrecoverable) == (
        (0, rejected) if policy == "commit" else (rejected, 0)
    )


def test_the_thresholds_above_tell_rows_apart():
    """Otherwise the test before would never see rows that roll back by different amounts."""
    model = _model()
    prompts = [random_ids(n, seed=n) for n in (1, 2, 5, 9, 12)]
    drafts = _draft(model, prompts, max_new_tokens=4)
    accepted = [
        corrected_answer(model.base, p, d, complete_at(8), threshold=0.01)[1]
        for p, d in zip(prompts, drafts, strict=True)
    ]
    assert len(set(accepted)) > 1
    assert 0 < sum(accepted) < 20


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 10), min_size=1, max_size=3),
    period=st.integers(1, 6),
    max_new_tokens=st.integers(1, 7),
    threshold=st.sampled_from([1.01, 5.0, float("inf")]),
    policy=st.sampled_from(_REVOCABLE),
    static_cache=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_prompts_and_periods_give_the_exact_text(
    lengths, period, max_new_tokens, threshold, policy, static_cache, seed
):
    model = _model("gemma2")
    prompts = [random_ids(n, seed=seed + 10 * n) for n in lengths]
    output = _generate(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        static_cache=static_cache,
        correction=Correction(period=period, threshold=threshold, policy=policy),
    )
    complete = complete_at(max_new_tokens)
    assert output.answers == [greedy_answer(model.base, p, complete) for p in prompts]


# -- ends of answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", _REVOCABLE)
@pytest.mark.parametrize("period", [3, 6])
def test_an_end_token_inside_a_draft_that_is_rolled_back(policy, period):
    model = _model()
    eos_ids = (_draft(model)[1][1],)
    stopped = _draft(model, eos_ids=eos_ids)
    expected = _exact(model, eos_ids=eos_ids)
    assert len(stopped[1]) == 2 < period < len(expected[1])
    output = _generate(
        model,
        eos_ids=eos_ids,
        correction=Correction(period=period, threshold=1.1, policy=policy),
    )
    assert output.answers == expected
    # What lies behind an end token is never drafted.
    assert output.stats.drafted == sum(len(tokens[:period]) for tokens in stopped)


@pytest.mark.parametrize("policy", _POLICIES)
def test_an_end_token_inside_a_draft_that_is_kept(policy):
    model = _model()
    draft = _draft(model)
    eos_ids = (draft[1][1],)
    assert not any(eos_ids[0] in tokens[:4] for tokens in (draft[0], draft[2]))
    correction = Correction(period=4, threshold=0.0, policy=policy)
    output = _generate(model, eos_ids=eos_ids, correction=correction)
    assert output.answers[1] == draft[1][:2]
    assert output.stats.drafted == output.stats.accepted == 4 + 2 + 4
    for row in (0, 2):
        expected = greedy_answer(model.base, _PROMPTS[row], complete_at(8, eos_ids), draft[row][:4])
        assert output.answers[row] == expected


@pytest.mark.parametrize("period", [2, 3, 4, 6])
def test_an_end_token_in_the_exact_text(period):
    model = _model()
    exact = _exact(model)
    eos_ids = (exact[2][3],)
    output = _generate(model, eos_ids=eos_ids, correction=Correction(period=period, threshold=1.1))
    assert output.answers == _exact(model, eos_ids=eos_ids)
    assert output.answers[2] == exact[2][:4]


def test_all_answers_end_inside_the_draft():
    model = _fresh_model()
    draft = _draft(model)
    eos_ids = tuple(tokens[1] for tokens in draft)
    expected = _draft(model, eos_ids=eos_ids)
    assert max(map(len, expected)) == 2
    calls = []
    model.base.register_forward_pre_hook(lambda *_: calls.append(1))
    output = _generate(model, eos_ids=eos_ids, correction=Correction(period=6, threshold=0.0))
    assert output.answers == expected
    assert output.stats.time_to_exact_s is not None
    # Prefill, one draft step, the verify pass, and nothing more.
    assert len(calls) == 3


def _text(tokens: list[int]) -> str:
    return byte_tokenizer().decode(tokens)


@pytest.mark.parametrize("policy", _REVOCABLE)
@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_stop_string_across_the_end_of_the_draft(policy, period):
    model, tokenizer = _model(), byte_tokenizer()
    text = _text(_exact(model)[2])
    stop = text[2:5]
    assert text.find(stop) == 2
    output = _generate(
        model,
        stop_strings=(stop,),
        tokenizer=tokenizer,
        correction=Correction(period=period, threshold=1.1, policy=policy),
    )
    assert _text(output.answers[2]) == text[:5]
    assert output.answers == _exact(model, stop_strings=(stop,), tokenizer=tokenizer)


def test_a_stop_string_of_drafted_and_exact_tokens():
    model, tokenizer = _model(), byte_tokenizer()
    correction = Correction(period=3, threshold=0.0)
    text = _text(_generate(model, correction=correction).answers[2])
    stop = text[1:5]
    assert text.find(stop) == 1
    output = _generate(model, stop_strings=(stop,), tokenizer=tokenizer, correction=correction)
    assert _text(output.answers[2]) == text[:5]


def test_a_stop_string_that_is_rolled_back_does_not_count():
    model, tokenizer = _model(), byte_tokenizer()
    stop = _text(_draft(model)[2][1:3])
    assert stop not in _text(_exact(model)[2])
    output = _generate(
        model,
        stop_strings=(stop,),
        tokenizer=tokenizer,
        correction=Correction(period=6, threshold=1.1),
    )
    assert output.answers[2] == _exact(model)[2]
    assert output.stats.drafted == 6 + 6 + 3


# -- what comes back -----------------------------------------------------------------------------


def test_sequences_are_prompts_and_padded_answers():
    model = _model()
    ids, mask = left_padded(_PROMPTS)
    exact = _exact(model)
    output = model.generate(
        ids,
        mask,
        max_new_tokens=8,
        eos_ids=(exact[2][3],),
        correction=Correction(period=2, threshold=1.1),
    )
    assert output.sequences.shape == (3, 12 + 8)
    assert torch.equal(output.sequences[:, :12], ids)
    for row, answer in enumerate(output.answers):
        padded = answer + [0] * (8 - len(answer))
        assert output.sequences[row, 12:].tolist() == padded
    assert len(output.answers[2]) == 4
    assert output.stats.new_tokens == sum(map(len, output.answers))
    assert output.stats.prompt_tokens == 18


@pytest.mark.parametrize(
    ("pad", "eos_ids", "expected"), [(None, (9, 5), 5), (None, (), 0), (3, (9,), 3)]
)
def test_what_answers_are_padded_with(pad, eos_ids, expected):
    model = _fresh_model()
    exact = _exact(model)
    model.base.generation_config.pad_token_id = pad
    stop = exact[2][1]
    output = _generate(
        model,
        eos_ids=eos_ids,
        stop_strings=(chr(stop),),
        tokenizer=byte_tokenizer(),
        correction=Correction(period=2, threshold=1.1),
    )
    assert len(output.answers[2]) < output.sequences.shape[1] - 12
    assert output.sequences[2, -1] == expected


def test_times_come_in_order():
    stats = _generate(_model(), correction=Correction(period=3, threshold=1.1)).stats
    assert 0 < stats.ttft_s < stats.time_to_exact_s < stats.total_s


def test_generation_leaves_no_gradient_and_no_changed_weight():
    model = _fresh_model()
    before = [p.clone() for p in model.parameters()]
    _generate(model, correction=Correction(period=3, threshold=0.01))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_a_reduced_precision_base(dtype):
    base = tiny_model("llama", weight_scale=8.0, dtype=dtype)
    model = predicting_model(base)
    output = _generate(model, correction=Correction(period=3, threshold=1.1))
    assert output.stats.drafted == 9
    assert [len(answer) for answer in output.answers] == [8] * 3


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"stop_strings": ("x",)}])
def test_settings_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        _generate(_model(), **wrong)


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="beams"):
        _generate(_model(), beams=4)


# -- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [None, Correction(period=3, threshold=0.01)])
def test_sampled_answers_repeat_with_their_seed(correction):
    model = _model()

    def sampled(seed):
        drawing = Sampling(temperature=1.5, seed=seed)
        return _generate(model, sampling=drawing, correction=correction).answers

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert sampled(1) != _generate(model, correction=correction).answers


def test_sampling_the_single_most_likely_token_is_greedy():
    model = _model()
    drawing = Sampling(temperature=1.0, top_k=1, seed=0)
    output = _generate(model, sampling=drawing, correction=Correction(period=3, threshold=1.1))
    assert output.answers == _exact(model)


# -- streaming -----------------------------------------------------------------------------------


def _streamed(model, prompts=_PROMPTS, *, max_new_tokens=8, eos_ids=(), **others):
    """Events, what a reader who follows them sees in the end and after each, and the output."""
    events, shown, seen = [], [[] for _ in prompts], []

    def follow(event):
        events.append(event)
        if isinstance(event, TokenEvent):
            shown[event.row].append(event.token)
        elif isinstance(event, RetractionEvent):
            assert 0 < event.count <= len(shown[event.row])
            del shown[event.row][-event.count :]
        seen.append([list(tokens) for tokens in shown])

    ids, mask = left_padded(prompts)
    stream = model.stream(ids, mask, max_new_tokens=max_new_tokens, eos_ids=eos_ids, **others)
    return events, shown, seen, drain(stream, follow)


@pytest.mark.parametrize("policy", [*_POLICIES, None])
@pytest.mark.parametrize(("period", "threshold"), [(1, 1.1), (4, 0.01), (4, 1.1)])
def test_following_the_events_gives_the_answers(policy, threshold, period):
    model = _model()
    correction = policy and Correction(period=period, threshold=threshold, policy=policy)
    events, shown, _, output = _streamed(model, correction=correction)
    assert shown == output.answers == _generate(model, correction=correction).answers
    assert sum(isinstance(e, ExactEvent) for e in events) == (policy is not None)
    retracted = sum(e.count for e in events if isinstance(e, RetractionEvent))
    if policy == "retract":
        assert retracted == output.stats.retracted
    elif policy == "hold":
        # Only the first token was shown, and only a draft without any good token loses it.
        assert retracted == sum(
            corrected_answer(model.base, p, d, complete_at(8), threshold=threshold)[1] == 0
            for p, d in zip(_PROMPTS, _draft(model, max_new_tokens=1), strict=True)
        )
    else:
        assert retracted == 0


def _index_of_exact(events) -> int:
    (place,) = [i for i, event in enumerate(events) if isinstance(event, ExactEvent)]
    return place


@pytest.mark.parametrize("threshold", [0.0, 1.1])
def test_hold_shows_one_token_until_the_text_is_exact(threshold):
    model = _model()
    correction = Correction(period=4, threshold=threshold, policy="hold")
    events, _, seen, _ = _streamed(model, correction=correction)
    place = _index_of_exact(events)
    tokens = [event for event in events[:place] if isinstance(event, TokenEvent)]
    assert [event.row for event in tokens] == [0, 1, 2]
    assert seen[2] == _draft(model, max_new_tokens=1)
    assert max(len(row) for state in seen[: place + 1] for row in state) == 1


@pytest.mark.parametrize("policy", ["retract", "commit"])
def test_other_policies_show_the_draft_as_it_is_written(policy):
    model = _model()
    correction = Correction(period=4, threshold=1.1, policy=policy)
    events, _, seen, _ = _streamed(model, correction=correction)
    place = _index_of_exact(events)
    drafted = [event for event in events[:place] if isinstance(event, TokenEvent)]
    assert len(drafted) == 12
    assert seen[11] == _draft(model, max_new_tokens=4)
    retractions = [event for event in events if isinstance(event, RetractionEvent)]
    expected = [RetractionEvent(row, 4) for row in range(3)] if policy == "retract" else []
    assert retractions == expected
    assert events[12 : 12 + len(expected)] == expected


@pytest.mark.parametrize("policy", _POLICIES)
def test_tokens_say_whether_they_are_exact(policy):
    correction = Correction(period=4, threshold=0.01, policy=policy)
    events, *_ = _streamed(_model(), correction=correction)
    place = _index_of_exact(events)
    assert not any(e.exact for e in events[:place] if isinstance(e, TokenEvent))
    assert all(e.exact for e in events[place:] if isinstance(e, TokenEvent))
    events, *_ = _streamed(_model())
    assert not any(event.exact for event in events)


def test_the_first_token_comes_before_anything_else_is_computed():
    model = _fresh_model()
    calls = []
    model.base.register_forward_pre_hook(lambda *_: calls.append("base"))
    model.adapter.decoder.register_forward_pre_hook(
        lambda _m, _a, k: calls.append(k["position_ids"].shape[1]), with_kwargs=True
    )
    stream = model.stream(
        random_ids(1, 9), max_new_tokens=6, eos_ids=(), correction=Correction(period=3)
    )
    assert calls == []
    next(stream)
    assert calls == ["base", 1]
    list(stream)
    # Two draft steps, catch-up of eight rows, the verify pass of 1 + 3 rows, then single rows.
    assert calls[2:8] == ["base", 1, "base", 1, 8, "base"]
    assert calls[8] == 4
    assert set(calls[9:]) <= {"base", 1}


def test_an_abandoned_stream_leaves_the_model_usable():
    model = _model()
    before = _draft(model)
    stream = model.stream(*left_padded(_PROMPTS), max_new_tokens=8, eos_ids=())
    next(stream)
    stream.close()
    assert not torch.is_inference_mode_enabled()
    assert _draft(model) == before


def test_reading_a_stream_does_not_put_the_reader_into_inference_mode():
    stream = _model().stream(random_ids(1, 5), max_new_tokens=3, eos_ids=())
    next(stream)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_a_rule_is_asked_after_each_token(monkeypatch):
    asked = []
    original = StopRule.is_complete
    monkeypatch.setattr(
        StopRule,
        "is_complete",
        lambda rule, tokens: asked.append(len(tokens)) or original(rule, tokens),
    )
    _generate(_model(), [random_ids(4)], max_new_tokens=5)
    assert asked == [1, 2, 3, 4, 5]
