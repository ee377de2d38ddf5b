"""Each system answers with what it stands for."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.evaluation.accuracy import CorrectionStatistics, TaskAccuracy
from lit_kvpred.evaluation.answering import SYSTEMS, Answerer
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
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
    texts = {s: answerer.answer(s, GENERATE).text for s in SYSTEMS}
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
    texts = {s: answerer.answer(s, CHOOSE).text for s in SYSTEMS}
    assert set(texts.values()) <= set(CHOOSE.choices)
    assert texts["corrected"] == texts["base"]
    assert answerer.answer("base", CHOOSE).stats is None


def test_accuracy_adds_up_by_task_and_system():
    metric = TaskAccuracy([GENERATE, CHOOSE])
    metric.update("base", GENERATE, " x")
    metric.update("base", GENERATE, " y")
    metric.update("predicted", GENERATE, " xyz")
    metric.update("base", CHOOSE, " two")
    entries = metric.compute()
    assert entries["copy"]["base"] == 0.5
    assert entries["copy"]["predicted"] == 0.0
    assert entries["copy"]["n"] == 2
    assert entries["copy"]["edit_similarity"]["predicted"] == pytest.approx(1 / 3)
    assert "corrected" not in entries["copy"]
    assert entries["pick"] == {"metric": "choice", "n": 1, "base": 1.0}


def test_correction_statistics():
    metric = CorrectionStatistics()
    assert metric.compute()["time_to_exact_s"] is None
    metric.update(GenerationStats(drafted=4, accepted=3, retracted=1, time_to_exact_s=1.0))
    second = {"drafted": 6, "accepted": 1, "retracted": 4, "unrecoverable": 1}
    metric.update(GenerationStats(**second, time_to_exact_s=3.0))
    measured = metric.compute()
    assert measured["accepted_length"] == 2.0
    assert measured["retraction_rate"] == 0.5
    assert measured["unrecoverable_rate"] == 0.1
    assert measured["time_to_exact_s"] == {"median": 2.0, "q25": 1.5, "q75": 2.5, "n": 2}
    metric.reset()
    assert metric.compute()["accepted_length"] == 0.0
