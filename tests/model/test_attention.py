"""Attention that rows receive, compared with what transformers itself gives away."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.model.attention import attention_received
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.reading import read_rows
from lit_kvpred.model.sequences import Sequences
from tests.tiny_models import ISSUE_FAMILIES, left_padded, random_ids, tiny_model


@pytest.mark.parametrize("family", [*ISSUE_FAMILIES, "phi3", "olmo2", "opt"])
def test_it_is_the_models_own(family):
    adapter = FamilyAdapter(tiny_model(family, weight_scale=4.0))
    ids = random_ids(2, 12)
    sequences = Sequences.unpadded(2, 12, ids.device)
    plain = read_rows(adapter, ids, sequences)
    with torch.no_grad(), attention_received(adapter, sequences, 1) as received:
        rows = read_rows(adapter, ids, sequences)
    adapter.model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = adapter.model(ids, output_attentions=True).attentions[1:]
    expected = torch.stack([w.mean(1).sum(1) for w in weights]).mean(0)
    torch.testing.assert_close(received.mean(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(received.mean().mean(1), torch.ones(2))
    for one, other in zip(rows.stored, plain.stored, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_the_implementation_is_put_back():
    adapter = FamilyAdapter(tiny_model("llama"))
    before = adapter.model.config._attn_implementation
    sequences = Sequences.unpadded(1, 5, torch.device("cpu"))
    measuring = attention_received(adapter, sequences, 0)
    measuring.__enter__()
    assert adapter.model.config._attn_implementation == "eager"
    assert not measuring.__exit__(RuntimeError, RuntimeError("stop"), None)
    assert adapter.model.config._attn_implementation == before != "eager"
    assert not any(m._forward_hooks for m in adapter.model.modules())


def test_padding_gives_and_documents_share_nothing():
    adapter = FamilyAdapter(tiny_model("llama", weight_scale=4.0))
    prompts = [random_ids(n, seed=n) for n in (5, 9)]

    def received(ids, sequences):
        with torch.no_grad(), attention_received(adapter, sequences, 0) as found:
            read_rows(adapter, ids, sequences)
        return found.mean()

    alone = [received(p[None], Sequences.unpadded(1, len(p), p.device))[0] for p in prompts]
    ids, mask = left_padded(prompts)
    padded = received(ids, Sequences.padded(mask))
    torch.testing.assert_close(padded[0, -5:], alone[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(padded[1], alone[1], atol=1e-5, rtol=1e-4)
    documents = torch.tensor([[0] * 5 + [1] * 9])
    packed = received(torch.cat(prompts)[None], Sequences.packed(documents))[0]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_a_model_that_tells_nothing():
    adapter = FamilyAdapter(tiny_model("llama"))
    sequences = Sequences.unpadded(1, 5, torch.device("cpu"))
    with attention_received(adapter, sequences, 4) as received:
        read_rows(adapter, random_ids(1, 5), sequences)
    assert received.mean() is None
