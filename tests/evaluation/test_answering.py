"""Each system answers with what it stands for."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lit_kvpred.evaluation.answering import SYSTEMS, Answerer, AnswerScores, answer_text, choose
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.systems import Variant, sparse_alone
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse, FSparse
from tests.base_folders import BYTE_VOCABULARY, byte_tokenizer
from tests.tiny_models import tiny_model

GENERATE = PromptExample("copy", "def f(x): return", (" x",), "exact", max_new_tokens=9)
CHOOSE = PromptExample(
    "pick", "One and one is", (" two",), "choice", choices=(" two", " three"), gold=0
)


@pytest.fixture(scope="module")
def model() -> KVPredictionModel:
    torch.manual_seed(0)
    base = tiny_model("llama", vocab_size=BYTE_VOCABULARY)
    return KVPredictionModel(base, build_auxiliary(base, "pruned", keep=0.5)).eval()


def test_base_and_strictly_corrected_answers_are_the_exact_text(model):
    tokenizer = byte_tokenizer()
    answerer = Answerer(model, tokenizer, Correction(period=4, threshold=1.5))
    ids = tokenizer(GENERATE.prompt, return_tensors="pt")["input_ids"]
    plain = model.base.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=257)
    expected = tokenizer.decode(plain[0, ids.shape[1] :], skip_special_tokens=True)
    texts = {s: answerer.answer(s, GENERATE).text for s in answerer.systems}
    assert texts["base"] == texts["corrected"] == expected
    assert texts["predicted"] != expected
    assert texts["auxiliary"] != expected


def test_stop_strings_end_the_text_before_them(model):
    answerer = Answerer(model, byte_tokenizer(), Correction())
    whole = answerer.answer("base", GENERATE).text
    stop = whole[4]
    example = PromptExample(
        "copy", GENERATE.prompt, ("x",), "exact", stop=(stop,), max_new_tokens=9
    )
    assert answerer.answer("base", example).text == whole[: whole.index(stop)]


def test_choices_come_from_the_list_and_correction_means_exact(model):
    answerer = Answerer(model, byte_tokenizer(), Correction())
    texts = {s: answerer.answer(s, CHOOSE).text for s in answerer.systems}
    assert set(texts.values()) <= set(CHOOSE.choices)
    assert texts["corrected"] == texts["base"]
    assert answerer.answer("base", CHOOSE).stats is None


_SPARSE = ("sparse", "sirius", "sirius_catch_up")


def test_sparse_systems_come_with_a_draft(model):
    plain = Answerer(model, byte_tokenizer(), Correction())
    assert set(SYSTEMS) - set(plain.systems) == set(_SPARSE)
    assert Answerer(model, byte_tokenizer(), Correction(draft=CSparse())).systems == SYSTEMS


def test_a_strict_check_makes_sparse_drafts_exact_alone_and_after_catch_up(model):
    draft = CSparse(0.1)
    answerer = Answerer(model, byte_tokenizer(), Correction(4, threshold=1.5, draft=draft))
    answers = {s: answerer.answer(s, GENERATE) for s in SYSTEMS}
    assert answers["sirius"].text == answers["sirius_catch_up"].text == answers["base"].text
    assert answers["sparse"].text != answers["base"].text
    assert not answers["corrected"].stats.sparse_step_s
    assert answers["sirius_catch_up"].stats.sparse_step_s
    assert len(answers["sparse"].stats.sparse_step_s) == 8
    assert answers["sparse"].stats.accepted == 8


@pytest.mark.parametrize("draft", [CSparse(0.1), FSparse(0.1)])
def test_a_sparse_choice_is_made_by_the_sparse_base(model, draft, monkeypatch):
    """Likelihoods are those of a sparse base behind a dense prefill; the others are the base's."""
    seen = {}

    def likelihoods(read, tokenizer, prompt, choices):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        first, going_on = read(ids)
        seen[variant.system] = first.logits, going_on
        return [0.0, 1.0]

    monkeypatch.setattr("lit_kvpred.evaluation.answering.continuation_log_likelihoods", likelihoods)
    variants = [
        Variant("base"),
        sparse_alone(draft, 1),
        Variant("sirius", Correction(draft=draft)),
        Variant("predicted"),
    ]
    for variant in variants:
        assert choose(model, byte_tokenizer(), variant, CHOOSE) == " three"
    assert seen["base"][1] is seen["sirius"][1] is seen["predicted"][1] is model.base
    assert seen["sparse"][1] is not model.base
    assert torch.equal(seen["base"][0], seen["sparse"][0])
    assert not torch.equal(seen["base"][0], seen["predicted"][0])


def test_scores_of_generated_and_of_chosen_answers(model):
    tokenizer = byte_tokenizer()
    scores = AnswerScores(model, tokenizer, [GENERATE, CHOOSE])
    base = Variant("base")
    assert scores(base, 0, tokenizer(" x")["input_ids"]) == 1
    assert scores(base, 0, tokenizer(" xy")["input_ids"]) == 0
    chosen = Answerer(model, tokenizer, Correction()).answer("base", CHOOSE).text
    assert scores(base, 1, []) == float(chosen == " two")
    assert scores(Variant("sirius", Correction(draft=CSparse())), 1, []) == scores(base, 1, [])


def test_an_answer_keeps_its_indentation_in_a_sentencepiece_vocabulary():
    words = ["<u>", "\u2581def", "\u2581f():\n", "\u2581\u2581\u2581", "\u2581return"]
    vocabulary = {word: i for i, word in enumerate(words)}
    description = Tokenizer(models.WordLevel(vocabulary, unk_token="<u>"))
    description.pre_tokenizer = pre_tokenizers.Metaspace()
    description.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=description, unk_token="<u>")
    assert tokenizer("def f():\n")["input_ids"] == [1, 2]
    assert tokenizer.decode([3, 4]) == " return"
    assert answer_text(tokenizer, "def f():\n", [3, 4]) == "    return"
    assert answer_text(byte_tokenizer(), "a", [32, 33]) == byte_tokenizer().decode([32, 33])
