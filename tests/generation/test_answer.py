from __future__ import annotations

import pytest
import torch

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.prefill import exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.generation.row_states import RowStates
from lit_kvpred.generation.stopping import StopRule
from lit_kvpred.model.caches import n_rows
from lit_kvpred.model.family import FamilyAdapter
from tests.tiny_models import left_padded, random_ids, tiny_model

_CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def _begun(base, prompts, rule=None, static_length=None) -> AnswerState:
    """An answer of which nothing is written yet, behind an exact prompt."""
    ids, mask = left_padded(prompts)
    adapter = FamilyAdapter(base)
    prefill = exact_prefill(
        adapter, describe_prompt(adapter, ids, mask), static_length=static_length
    )
    states = RowStates(len(prompts))
    states.append_computed(ids.shape[1])
    rule = rule or StopRule([], 100)
    return AnswerState(adapter, prefill.cache, mask.bool(), states, rule)


def test_tokens_are_appended_until_an_answer_is_complete():
    rule = StopRule([2], 3)
    answer = _begun(tiny_model("llama"), [random_ids(3), random_ids(4)], rule)
    answer.append(torch.tensor([5, 6]))
    assert not answer.all_done
    answer.append(torch.tensor([2, 7]))
    assert answer.done == [True, False]
    answer.append(torch.tensor([8, 9]))
    assert answer.tokens == [[5, 2], [6, 7, 9]]
    assert answer.all_done


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("static_length", [None, 20])
@torch.no_grad()
def test_steps_give_the_logits_of_the_whole_text(family, static_length):
    base = tiny_model(family)
    prompts = [random_ids(n, seed=n) for n in (1, 4, 12)]
    answer = _begun(base, prompts, static_length=static_length)
    for step in range(3):
        answer.append(random_ids(3, seed=50 + step))
        logits = answer.step()
        for row, prompt in enumerate(prompts):
            text = torch.cat([prompt, torch.tensor(answer.tokens[row])])
            expected = base(text[None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits[row], expected, **_CLOSE)
    assert n_rows(answer.cache) == answer.states.n_rows == answer.visible.shape[1] == 15


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("static_length", [None, 24])
@pytest.mark.parametrize("dropped", [[0, 0, 0], [2, 2, 2], [5, 0, 4], [5, 5, 1]])
@torch.no_grad()
def test_dropping_rows_by_different_amounts_leaves_the_shorter_texts(
    family, static_length, dropped
):
    base = tiny_model(family)
    prompts = [random_ids(n, seed=n) for n in (2, 4, 12)]
    answer = _begun(base, prompts, static_length=static_length)
    fed = random_ids(3, 5, seed=7)
    answer.feed(fed, torch.ones(3, 5, dtype=torch.bool))
    answer.drop_last(torch.tensor(dropped))
    assert n_rows(answer.cache) == 17 - min(dropped)
    assert answer.states.n_rows == answer.visible.shape[1] == 17 - min(dropped)
    texts = [
        torch.cat([prompt, row[: 5 - drop]])
        for prompt, row, drop in zip(prompts, fed, dropped, strict=True)
    ]
    assert answer.visible.sum(1).tolist() == [len(text) for text in texts]
    # Whatever follows is what follows the shorter texts.
    following = random_ids(3, 3, seed=8)
    logits = answer.feed(following, torch.ones(3, 3, dtype=torch.bool))
    for row, text in enumerate(texts):
        whole = torch.cat([text, following[row]])
        expected = base(whole[None], use_cache=False).logits[0, -3:]
        torch.testing.assert_close(logits[row], expected, **_CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@torch.no_grad()
def test_feeding_rows_with_padding_at_the_end(family):
    base = tiny_model(family)
    prompts = [random_ids(n, seed=n) for n in (2, 6)]
    answer = _begun(base, prompts)
    fed = random_ids(2, 4, seed=7)
    real = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    logits = answer.feed(fed, real)
    for row, rows in enumerate((2, 4)):
        whole = torch.cat([prompts[row], fed[row, :rows]])
        expected = base(whole[None], use_cache=False).logits[0, -rows:]
        torch.testing.assert_close(logits[row, :rows], expected, **_CLOSE)


def test_logits_are_float32_whatever_the_base():
    answer = _begun(tiny_model("llama", dtype=torch.bfloat16), [random_ids(3)])
    answer.append(torch.tensor([5]))
    assert answer.step().dtype == torch.float32
