"""Texts that a base writes itself."""

from __future__ import annotations

import torch

from lit_kvpred.generation.own_text import own_text
from lit_kvpred.model.family import FamilyAdapter
from tests.tiny_models import random_ids, tiny_model


def test_texts_go_on_from_their_starts_and_depend_on_the_seed_alone():
    adapter = FamilyAdapter(tiny_model("llama"))
    starts = random_ids(70, 3)
    batches = list(own_text(adapter, starts, 11, seed=5, batch_size=16))
    assert [len(rows) for rows in batches] == [16, 16, 16, 16, 6]
    texts = torch.cat(batches)
    assert texts.shape == (70, 11)
    assert torch.equal(texts[:, :3], starts)
    torch.manual_seed(1)
    assert torch.equal(torch.cat(list(own_text(adapter, starts, 11, 5, 70))), texts)
    assert not torch.equal(torch.cat(list(own_text(adapter, starts, 11, 6, 70))), texts)


def test_an_end_of_sequence_does_not_end_a_text():
    base = tiny_model("llama")
    starts = random_ids(2, 3)
    base.generation_config.eos_token_id = list(range(base.config.vocab_size))
    (texts,) = own_text(FamilyAdapter(base), starts, 8, seed=0, batch_size=2)
    assert texts.shape == (2, 8)
