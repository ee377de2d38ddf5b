"""A sweep over correction settings counts what happens to the text."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.sweep import sweep
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse
from tests.tiny_models import random_ids, tiny_model

_PROMPTS = [random_ids(n, seed=n) for n in (9, 3, 14, 9, 5)]
_PERIOD, _NEW = 4, 7


@pytest.fixture(scope="module")
def model() -> KVPredictionModel:
    base = tiny_model("llama", weight_scale=8.0)
    base.generation_config.eos_token_id = None
    torch.manual_seed(0)
    return KVPredictionModel(base, build_auxiliary(base, "prefix", keep=2)).eval()


def _sweep(model, *corrections, **settings):
    return sweep(model, _PROMPTS, corrections, new_tokens=_NEW, batch_size=2, **settings)


def test_extreme_thresholds(model):
    none, reject, accept = _sweep(
        model,
        Correction(_PERIOD, 1.1, policy="retract"),
        Correction(_PERIOD, 0.0, policy="retract"),
    )
    assert none["policy"] is none["aal"] is none["retraction_rate"] is None
    assert (none["drafted"], none["answers"]) == (0, 5)
    assert none["same_text"] < 1
    assert (reject["policy"], reject["threshold"], reject["period"]) == ("retract", 1.1, _PERIOD)
    assert reject["same_text"] == reject["same_first_token"] == reject["retraction_rate"] == 1
    assert (reject["drafted"], reject["aal"], reject["accepted_rate"]) == (5 * _PERIOD, 1, 0)
    assert (accept["accepted_rate"], accept["retraction_rate"]) == (1, 0)
    assert accept["aal"] == 1 + _PERIOD
    assert accept["same_first_token"] == none["same_first_token"]


def test_policies_differ_in_what_may_be_taken_back(model):
    none, retract, commit, hold = _sweep(
        model, *(Correction(_PERIOD, 1.1, policy=p) for p in ("retract", "commit", "hold"))
    )
    assert commit["unrecoverable_rate"] == 1
    assert commit["retraction_rate"] == retract["unrecoverable_rate"] == 0
    assert commit["same_first_token"] == none["same_first_token"]
    assert hold["same_text"] == 1


def test_shares_are_those_of_the_answers_alone(model):
    none, *_ = _sweep(model)
    settings = GenerationSettings(max_new_tokens=_NEW)
    same = first = 0
    for prompt in _PROMPTS:
        (own,) = model.generate(prompt[None], max_new_tokens=_NEW).answers
        (base,) = generate_exact(model.adapter, prompt[None], settings=settings).answers
        same += own == base
        first += own[0] == base[0]
    assert none["same_text"] == same / 5
    assert none["same_first_token"] == first / 5


def test_sparse_drafts_alone_and_after_catch_up(model):
    draft = CSparse(0.5)
    accept, reject = (Correction(_PERIOD, t, policy="retract", draft=draft) for t in (0.0, 1.1))
    rows = _sweep(model, accept, reject, exact_prompt=True)
    assert [r["threshold"] for r in rows] == [0.0, 1.1]
    assert rows[0]["aal"] == _PERIOD
    density = model.sparse_base.density(draft)
    assert rows[0]["effective_density"] == pytest.approx((3 * density + 1) / 4)
    assert (rows[1]["same_text"], rows[1]["aal"]) == (1, 1)
    none, joined = _sweep(model, reject)
    assert none["effective_density"] is None
    assert joined["same_text"] == 1
    assert joined["drafted"] > 5 * _PERIOD


def test_nothing_to_answer_is_an_error(model):
    with pytest.raises(ConfigurationError, match="at least one prompt"):
        sweep(model, [], [])
