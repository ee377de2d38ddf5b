"""Sirius by itself."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred import Correction, CSparse, FSparse, SiriusModel
from lit_kvpred.errors import PromptError, UnsupportedFamilyError
from lit_kvpred.generation.events import TokenEvent
from tests.tiny_models import random_ids, tiny_model


@pytest.fixture(scope="module")
def sirius() -> SiriusModel:
    return SiriusModel(tiny_model("llama", weight_scale=8.0))


@pytest.mark.parametrize("draft", [CSparse(0.3), FSparse(0.3), None])
def test_a_strict_threshold_gives_the_bases_text(sirius, draft):
    ids = random_ids(1, 9)
    correction = Correction(period=4, threshold=1.1, draft=draft)
    output = sirius.generate(ids, correction=correction, max_new_tokens=12, eos_ids=())
    plain = sirius.base.generate(
        ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert torch.equal(output.sequences, plain)


def test_by_default_drafts_are_sparse(sirius):
    output = sirius.generate(random_ids(1, 9), max_new_tokens=20, eos_ids=())
    assert output.stats.sparse_step_s
    assert output.stats.ttft_s == output.stats.time_to_exact_s


def test_a_stream_tells_the_answer(sirius):
    ids = random_ids(1, 9)
    events = list(sirius.stream(ids, max_new_tokens=12, eos_ids=()))
    answer = sirius.generate(ids, max_new_tokens=12, eos_ids=()).answers[0]
    assert [e.token for e in events if isinstance(e, TokenEvent)] == answer


def test_bad_prompts_and_families_are_refused(sirius):
    with pytest.raises(PromptError, match="the prompt is empty"):
        sirius.generate(torch.empty(1, 0, dtype=torch.long))
    experts = SiriusModel(tiny_model("gpt_oss"))
    with pytest.raises(UnsupportedFamilyError, match="'gpt_oss' has no feed-forward part"):
        experts.generate(random_ids(1, 4), max_new_tokens=4)
