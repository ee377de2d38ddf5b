"""Variants answer as their names say, and their settings are told in full."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from lit_kvpred.evaluation.systems import Variant, settings_of, sparse_alone
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse, FSparse
from tests.tiny_models import random_ids


@pytest.mark.parametrize("new_tokens", [1, 2, 6])
def test_sparse_alone_writes_all_but_the_first_token_and_keeps_all(model, new_tokens):
    ids = random_ids(1, 9)
    settings = GenerationSettings(max_new_tokens=new_tokens)
    variant = sparse_alone(FSparse(0.1), new_tokens)
    output = variant.answer(model, ids, settings=settings)
    assert len(output.stats.sparse_step_s) == output.stats.accepted == new_tokens - 1
    # What the sparse copy writes by itself behind a dense prefill.
    sparse = model.sparse_base.by_token(FSparse(0.1))
    logits, cache = model.base(ids).logits[0, -1], model.base(ids).cache
    tokens = [int(logits.argmax())]
    while len(tokens) < new_tokens:
        logits = sparse(torch.tensor([tokens[-1:]]), cache=cache).logits[0, -1]
        tokens.append(int(logits.argmax()))
    assert output.answers == [tokens]


def test_only_what_needs_them_reads_predictions(model):
    ids, settings = random_ids(1, 9), GenerationSettings(max_new_tokens=3)
    exact = generate_exact(model.adapter, ids, settings=settings).answers
    assert Variant("base").answer(model, ids, settings=settings).answers == exact
    predicted = Variant("predicted").answer(model, ids, settings=settings)
    assert predicted.stats.time_to_exact_s is None
    names = ("base", "sparse", "sirius", "speculative")
    assert all(Variant(name).exact_prompt for name in names)
    others = ("predicted", "catch_up", "sirius_catch_up")
    assert not any(Variant(name).exact_prompt for name in others)


def test_settings_are_complete_and_plain():
    names = {f.name for f in fields(Correction)} | {"draft_keep"}
    assert settings_of(None) == dict.fromkeys(names)
    settings = settings_of(Correction(4, 0.3, draft=CSparse(0.25)))
    assert settings.keys() == names
    assert (settings["draft"], settings["draft_keep"], settings["period"]) == ("csparse", 0.25, 4)
    assert settings_of(Correction())["draft_keep"] is None


def test_without_draft_nothing_of_sirius_is_left():
    sparse = Correction(4, 0.3, policy="retract", draft=CSparse(), rollback=False)
    assert sparse.without_draft() == Correction(4, 0.3, policy="retract")


def test_density_is_that_of_the_draft(model):
    draft = CSparse(0.25)
    assert Variant("sirius", Correction(draft=draft)).density(model) == pytest.approx(
        model.sparse_base.density(draft)
    )
    assert Variant("catch_up", Correction()).density(model) is None
