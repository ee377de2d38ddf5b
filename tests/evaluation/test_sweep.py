"""A sweep over correction settings counts what happens to the text."""

from __future__ import annotations

import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.sweep import closed_form_of_speculation, sweep
from lit_kvpred.evaluation.sweep_grid import correction_grid, sweep_variants
from lit_kvpred.evaluation.systems import Variant
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse
from tests.tiny_models import random_ids

_PROMPTS = [random_ids(n, seed=n) for n in (9, 3, 14, 9, 5)]
_PERIOD, _NEW = 4, 7


def _sweep(model, *corrections, exact_prompt=False, **settings):
    variants = sweep_variants(corrections, exact_prompt=exact_prompt, new_tokens=_NEW)
    base, *rows = sweep(model, _PROMPTS, variants, new_tokens=_NEW, **{"batch_size": 2, **settings})
    assert (base["system"], base["same_text"], base["effective_density"]) == ("base", 1, 1)
    return rows


def test_extreme_thresholds(model):
    none, reject, accept = _sweep(
        model,
        Correction(_PERIOD, 1.1, policy="retract"),
        Correction(_PERIOD, 0.0, policy="retract"),
    )
    assert none["policy"] is none["aal"] is none["retraction_rate"] is none["accuracy"] is None
    assert (none["drafted"], none["answers"], none["system"]) == (0, 5, "predicted")
    assert none["same_text"] < 1
    assert none["same_text"] <= none["same_tokens"] < 1
    assert (reject["policy"], reject["threshold"], reject["period"]) == ("retract", 1.1, _PERIOD)
    assert reject["same_text"] == reject["same_first_token"] == reject["retraction_rate"] == 1
    assert reject["same_tokens"] == 1
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
    same = first = shared = 0
    for prompt in _PROMPTS:
        (own,) = model.generate(prompt[None], max_new_tokens=_NEW).answers
        (base,) = generate_exact(model.adapter, prompt[None], settings=settings).answers
        same += own == base
        first += own[0] == base[0]
        shared += next((i for i in range(_NEW) if own[i] != base[i]), _NEW) / _NEW
    assert none["same_text"] == same / 5
    assert none["same_first_token"] == first / 5
    assert none["same_tokens"] == pytest.approx(shared / 5)


def test_answers_are_scored_at_their_own_places(model):
    """Batches are in the order of lengths, scores in that of the prompts."""
    settings = GenerationSettings(max_new_tokens=_NEW)
    texts = [generate_exact(model.adapter, p[None], settings=settings).answers[0] for p in _PROMPTS]
    asked = []

    def score(variant: Variant, place: int, tokens) -> float:
        asked.append((variant.system, place))
        return float(tokens == texts[place] and place != 3)

    variants = [Variant("predicted"), Variant("catch_up", Correction(_PERIOD, 1.1))]
    rows = sweep(model, _PROMPTS, variants, new_tokens=_NEW, batch_size=2, score=score)
    assert [r["accuracy"] for r in rows[::2]] == [0.8, 0.8]
    assert rows[1]["accuracy"] <= rows[1]["same_text"]
    assert sorted(place for system, place in asked if system == "base") == [0, 1, 2, 3, 4]


def test_sparse_drafts_alone_and_after_catch_up(model):
    draft = CSparse(0.5)
    accept, reject = (Correction(_PERIOD, t, policy="retract", draft=draft) for t in (0.0, 1.1))
    *_, accepted, rejected = _sweep(model, accept, reject, exact_prompt=True)
    rows = [accepted, rejected]
    assert [r["threshold"] for r in rows] == [0.0, 1.1]
    assert rows[0]["aal"] == _PERIOD
    density = model.sparse_base.density(draft)
    assert rows[0]["effective_density"] == pytest.approx((3 * density + 1) / 4)
    assert (rows[1]["same_text"], rows[1]["aal"]) == (1, 1)
    none, joined = _sweep(model, reject)
    assert none["effective_density"] is None
    assert joined["same_text"] == 1
    assert joined["system"] == "sirius_catch_up"
    assert joined["drafted"] > 5 * _PERIOD


def test_references_of_sparse_drafts(model):
    draft = CSparse(0.1)
    sparse, speculative, sirius = _sweep(
        model, Correction(_PERIOD, 0.0, policy="retract", draft=draft), exact_prompt=True
    )
    density = model.sparse_base.density(draft)
    assert sparse["system"] == "sparse"
    assert sparse["effective_density"] == density
    assert sparse["aal"] is sparse["period"] is sparse["threshold"] is sparse["drafted"] is None
    assert (sparse["draft"], sparse["draft_keep"]) == ("csparse", 0.1)
    assert sparse["same_text"] < 1
    # Greedy text of speculative decoding is the base's own.
    assert speculative["system"] == "speculative"
    assert speculative["acceptance"] == "lossless"
    assert speculative["same_text"] == 1
    assert speculative["effective_density"] == pytest.approx((3 * density + 1) / speculative["aal"])
    rejected = sum(speculative["rejected_at"])
    accepted = round(speculative["accepted_rate"] * speculative["drafted"])
    assert speculative["alpha"] == pytest.approx(accepted / (accepted + rejected))
    assert speculative["expected_aal"] >= 1
    assert sirius["alpha"] is sirius["expected_aal"] is sirius["expected_density"] is None


def test_with_every_correction_off_the_text_is_that_of_sparse_decoding(model):
    grid = correction_grid(
        policies=["retract"], periods=[_PERIOD], thresholds=[1.1], drafts=[CSparse(0.1)],
        ablation=True,
    )  # fmt: skip
    sparse, _, whole, *_, off = _sweep(model, *grid, exact_prompt=True)
    assert whole["same_text"] == 1
    assert (off["kv_rewriting"], off["rollback"], off["interleave"]) == (False, False, False)
    for measure in ("same_text", "same_tokens", "same_first_token"):
        assert off[measure] == sparse[measure]
    assert off["same_text"] < 1
    assert off["retraction_rate"] == 0


def test_closed_form_of_speculation():
    assert closed_form_of_speculation(1.0, 4, 0.5) == {
        "alpha": 1.0,
        "expected_aal": 4,
        "expected_density": 0.625,
    }
    half = closed_form_of_speculation(0.5, 3, 0.5)
    assert half["expected_aal"] == 1.75
    assert half["expected_density"] == pytest.approx(2 / 1.75)


def test_nothing_to_answer_is_an_error(model):
    with pytest.raises(ConfigurationError, match="at least one prompt"):
        sweep(model, [], [])
