from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import DynamicCache

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.catch_up import CatchUp
from lit_kvpred.generation.prefill import predicted_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.generation.reconciliation import Verdict, reconcile
from lit_kvpred.generation.row_states import RowState, RowStates
from lit_kvpred.generation.sampling import Sampling, TokenChooser
from lit_kvpred.generation.stopping import StopRule
from lit_kvpred.model.caches import n_rows
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from tests.generation.reference import complete_at, corrected_answer, greedy_answer
from tests.tiny_models import left_padded, predicting_model, random_ids, tiny_model

_GREEDY = TokenChooser(Sampling(), torch.device("cpu"))
_PROMPTS = [random_ids(n, seed=n) for n in (1, 4, 12)]
# A tiny model's most likely token always has more than this, its least likely one never.
_THRESHOLD = 1 / 256


@cache
def _model(family: str) -> KVPredictionModel:
    """A model with random maps, for tests that only read it."""
    return predicting_model(tiny_model(family, weight_scale=8.0))


def _drafted(model, prompts, drafts, *, rule=None, static_length=None) -> AnswerState:
    """An answer on predicted prompts, with given drafts written into its cache."""
    ids, mask = left_padded(prompts)
    prompt = describe_prompt(model.adapter, ids, mask)
    prefill = predicted_prefill(model, prompt, static_length=static_length)
    states = RowStates(len(prompts))
    states.append_predicted(ids.shape[1] - 1)
    states.append_computed(1)
    rule = rule or StopRule([], 100)
    answer = AnswerState(model.adapter, prefill.cache, mask.bool(), states, rule)
    for step in range(max(map(len, drafts))):
        answer.append(torch.tensor([draft[min(step, len(draft) - 1)] for draft in drafts]))
        answer.step()
    answer.tokens = [list(draft) for draft in drafts]
    answer.done = [rule.is_complete(draft) for draft in drafts]
    return answer


def _reconciled(answer, prompts, correction, shown=None) -> Verdict:
    ids, mask = left_padded(prompts)
    CatchUp(answer, describe_prompt(answer.adapter, ids, mask)).finish()
    shown = shown or [0] * len(prompts)
    return reconcile(answer, ids[:, -1:], correction, _GREEDY, shown)


def _bad_token(base, text) -> int:
    probabilities = base(text[None], use_cache=False).logits[0, -1].div(0.6).softmax(-1)
    assert float(probabilities.min()) < _THRESHOLD / 2
    return int(probabilities.argmin())


@torch.no_grad()
def _draft(base, prompt, good: int, length: int) -> list[int]:
    """A draft of ``length`` tokens of which the base would write exactly the first ``good``."""
    tokens = greedy_answer(base, prompt, complete_at(good)) if good else []
    while len(tokens) < length:
        tokens.append(_bad_token(base, torch.cat([prompt, torch.tensor(tokens).long()])))
    return tokens


def _assert_cache_is_that_of_the_texts(answer, prompts) -> None:
    """Every row that can be seen equals the row of a plain forward over prompt and answer."""
    base = answer.adapter.model
    held = n_rows(answer.cache)
    assert answer.visible.shape[1] == answer.states.n_rows == held
    for row, prompt in enumerate(prompts):
        # The last token is pending: chosen, but not in the cache.
        text = torch.cat([prompt, torch.tensor(answer.tokens[row][:-1]).long()])
        plain = DynamicCache()
        base(text[None], cache=plain, use_cache=True)
        seen = answer.visible[row].nonzero()[:, 0]
        assert seen.tolist() == list(range(held - len(text), held))
        for got, want in zip(answer.cache.layers, plain.layers, strict=True):
            for a, b in ((got.keys, want.keys), (got.values, want.values)):
                torch.testing.assert_close(a[row][:, seen], b[0], atol=1e-5, rtol=1e-5)


def _assert_goes_on_exactly(answer, prompts) -> None:
    """The next logits are those of the whole text."""
    logits = answer.step()
    for row, prompt in enumerate(prompts):
        text = torch.cat([prompt, torch.tensor(answer.tokens[row])])
        expected = answer.adapter.model(text[None], use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("static_length", [None, 24])
@pytest.mark.parametrize("good", [(5, 5, 5), (4, 0, 5)])
@torch.no_grad()
def test_cache_and_text_are_exact_afterwards(family, static_length, good):
    model = _model(family)
    base = model.base
    drafts = [_draft(base, p, g, 5) for p, g in zip(_PROMPTS, good, strict=True)]
    answer = _drafted(model, _PROMPTS, drafts, static_length=static_length)
    assert answer.states.count(RowState.STALE) > 0
    correction = Correction(period=5, threshold=_THRESHOLD, policy="retract")
    verdict = _reconciled(answer, _PROMPTS, correction, shown=[5, 5, 5])
    assert verdict == Verdict([0] * 3, [5, 5, 5], list(good), list(good), [1] * 3)
    assert answer.states.count(RowState.EXACT) == 3 * n_rows(answer.cache)
    for row, prompt in enumerate(_PROMPTS):
        start = drafts[row][: good[row]]
        expected = greedy_answer(base, prompt, complete_at(good[row] + 1), start)
        assert answer.tokens[row] == expected
    _assert_cache_is_that_of_the_texts(answer, _PROMPTS)
    _assert_goes_on_exactly(answer, _PROMPTS)


@pytest.mark.parametrize("static_length", [None, 24])
@torch.no_grad()
def test_drafts_of_different_length(static_length):
    base = tiny_model("llama", weight_scale=8.0)
    good, lengths = (2, 1, 4), (2, 3, 6)
    drafts = [_draft(base, p, g, n) for p, g, n in zip(_PROMPTS, good, lengths, strict=True)]
    answer = _drafted(predicting_model(base), _PROMPTS, drafts, static_length=static_length)
    correction = Correction(period=6, threshold=_THRESHOLD)
    expected = Verdict([0] * 3, [2, 3, 6], [2, 1, 4], [2, 1, 4], [1] * 3)
    assert _reconciled(answer, _PROMPTS, correction) == expected
    _assert_cache_is_that_of_the_texts(answer, _PROMPTS)
    _assert_goes_on_exactly(answer, _PROMPTS)


@pytest.mark.parametrize("static_length", [None, 24])
@torch.no_grad()
def test_commit_keeps_what_was_shown_and_rewrites_its_rows(static_length):
    base = tiny_model("llama", weight_scale=8.0)
    good, shown = (0, 4, 3), [4, 2, 5]
    drafts = [_draft(base, p, g, 5) for p, g in zip(_PROMPTS, good, strict=True)]
    answer = _drafted(predicting_model(base), _PROMPTS, drafts, static_length=static_length)
    correction = Correction(period=5, threshold=_THRESHOLD, policy="commit")
    verdict = _reconciled(answer, _PROMPTS, correction, shown=shown)
    assert verdict == Verdict([0] * 3, [5, 5, 5], [0, 4, 3], [4, 4, 5], [1] * 3)
    for row, kept in enumerate(verdict.kept):
        assert answer.tokens[row][:kept] == drafts[row][:kept]
        expected = greedy_answer(base, _PROMPTS[row], complete_at(kept + 1), drafts[row][:kept])
        assert answer.tokens[row] == expected
    _assert_cache_is_that_of_the_texts(answer, _PROMPTS)
    _assert_goes_on_exactly(answer, _PROMPTS)


@pytest.mark.parametrize("policy", ["hold", "retract"])
@torch.no_grad()
def test_other_policies_take_back_what_was_shown(policy):
    base = tiny_model("llama", weight_scale=8.0)
    drafts = [_draft(base, p, 1, 4) for p in _PROMPTS]
    answer = _drafted(predicting_model(base), _PROMPTS, drafts)
    correction = Correction(period=4, threshold=_THRESHOLD, policy=policy)
    assert _reconciled(answer, _PROMPTS, correction, shown=[4, 4, 4]).kept == [1, 1, 1]


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.2])
@torch.no_grad()
def test_thresholds_between_the_extremes(threshold):
    base = tiny_model("qwen3", weight_scale=8.0)
    prompts = [random_ids(9, seed=s) for s in range(6)]
    drafts = [
        greedy_answer(base, p, complete_at(3)) + random_ids(2, seed=s).tolist()
        for s, p in enumerate(prompts)
    ]
    answer = _drafted(predicting_model(base), prompts, drafts)
    verdict = _reconciled(answer, prompts, Correction(period=5, threshold=threshold))
    for row, prompt in enumerate(prompts):
        _, accepted = corrected_answer(
            base, prompt, drafts[row], complete_at(6), threshold=threshold
        )
        assert verdict.accepted[row] == accepted
    _assert_cache_is_that_of_the_texts(answer, prompts)


@torch.no_grad()
def test_an_end_token_in_an_accepted_draft_ends_the_answer():
    base = tiny_model("llama", weight_scale=8.0)
    drafts = [_draft(base, p, 3, 3) for p in _PROMPTS]
    rule = StopRule([drafts[0][2]], 100)
    assert not any(drafts[0][2] in draft for draft in drafts[1:])
    answer = _drafted(predicting_model(base), _PROMPTS, drafts, rule=rule)
    assert answer.done == [True, False, False]
    verdict = _reconciled(answer, _PROMPTS, Correction(period=3, threshold=_THRESHOLD))
    assert verdict.accepted == [3, 3, 3]
    assert answer.done == [True, False, False]
    assert answer.tokens[0] == drafts[0]
    assert [len(tokens) for tokens in answer.tokens] == [3, 4, 4]


@torch.no_grad()
def test_an_end_token_in_a_rejected_draft_does_not_count():
    base = tiny_model("llama", weight_scale=8.0)
    drafts = [_draft(base, p, 1, 3) for p in _PROMPTS]
    rule = StopRule([drafts[0][2]], 100)
    answer = _drafted(predicting_model(base), _PROMPTS, drafts, rule=rule)
    assert answer.done[0]
    _reconciled(answer, _PROMPTS, Correction(period=3, threshold=_THRESHOLD))
    assert not answer.done[0]
    assert len(answer.tokens[0]) == 2
    _assert_goes_on_exactly(answer, _PROMPTS)


@torch.no_grad()
def test_catching_up_forgets_every_predicted_row():
    base = tiny_model("gemma2", weight_scale=8.0)
    answer = _drafted(predicting_model(base), _PROMPTS, [[5, 6], [7, 8], [9, 10]])
    ids, mask = left_padded(_PROMPTS)
    CatchUp(answer, describe_prompt(answer.adapter, ids, mask)).finish()
    assert n_rows(answer.cache) == answer.states.n_rows == answer.visible.shape[1] == 11
    assert answer.states.count(RowState.EXACT) == 33
    for row, prompt in enumerate(_PROMPTS[1:], start=1):
        plain = DynamicCache()
        base(prompt[None, :-1], cache=plain, use_cache=True)
        for got, want in zip(answer.cache.layers, plain.layers, strict=True):
            rows = got.keys[row, :, -(len(prompt) - 1) :]
            torch.testing.assert_close(rows, want.keys[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_judging_before_catching_up_is_refused():
    model = predicting_model(tiny_model("llama"))
    answer = _drafted(model, _PROMPTS, [[5, 6], [7, 8], [9, 10]])
    ids, _ = left_padded(_PROMPTS)
    with pytest.raises(AssertionError, match="not exact"):
        reconcile(answer, ids[:, -1:], Correction(period=2), _GREEDY, [0, 0, 0])


@torch.no_grad()
def test_catching_up_projects_no_vocabulary():
    model = predicting_model(tiny_model("llama"))
    answer = _drafted(model, _PROMPTS, [[5], [7], [9]])
    calls = []
    model.base.lm_head.register_forward_pre_hook(lambda *_: calls.append(1))
    ids, mask = left_padded(_PROMPTS)
    CatchUp(answer, describe_prompt(answer.adapter, ids, mask)).finish()
    assert not calls
