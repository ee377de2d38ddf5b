"""Likelihood of continuations against a plain teacher-forced forward."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import PromptError
from lit_kvpred.evaluation.choices import continuation_log_likelihoods, split_continuation
from lit_kvpred.generation.prefill import exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.model.family import FamilyAdapter
from tests.base_folders import BYTE_VOCABULARY, byte_tokenizer
from tests.tiny_models import tiny_model


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_likelihoods_equal_a_plain_forward(family):
    model, tokenizer = tiny_model(family, vocab_size=BYTE_VOCABULARY), byte_tokenizer()
    adapter, calls = FamilyAdapter(model), []

    def read(ids: torch.Tensor):
        calls.append(ids)
        return exact_prefill(adapter, describe_prompt(adapter, ids, None)), model

    context, choices = "The sky is", [" blue", " g", " very green"]
    found = continuation_log_likelihoods(read, tokenizer, context, choices)
    assert len(calls) == 1
    for choice, value in zip(choices, found, strict=True):
        ids = torch.tensor([tokenizer(context + choice)["input_ids"]])
        logits = model(ids).logits[0].log_softmax(-1)
        n = len(context.encode())
        expected = sum(float(logits[i - 1, ids[0, i]]) for i in range(n, ids.shape[1]))
        assert value == pytest.approx(expected, abs=1e-3)


def test_trailing_spaces_belong_to_the_continuation():
    context, following = split_continuation(byte_tokenizer(), "Answer:  ", "x")
    assert len(context) == len("Answer:")
    assert len(following) == 3


@pytest.mark.parametrize(("context", "continuation"), [("", " x"), ("a", ""), ("  ", "x")])
def test_empty_parts_are_refused(context, continuation):
    with pytest.raises(PromptError, match="non-empty"):
        split_continuation(byte_tokenizer(), context, continuation)
