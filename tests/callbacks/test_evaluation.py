"""The evaluation callback: when it runs, what it records, what it leaves alone."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_kvpred.callbacks import KVPredictionEvaluation
from lit_kvpred.callbacks.evaluation import _scalars, summary
from lit_kvpred.datamodules import PromptTaskDataModule, TextDataModule
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.answering import Answerer
from lit_kvpred.module import KVPredictionModule
from lit_kvpred.report import read_run
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse
from tests.base_folders import make_base, make_documents, make_problems


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("folders")
    return make_base(root / "base"), make_documents(root / "documents")


@pytest.fixture
def data(folders, tmp_path, monkeypatch) -> TextDataModule:
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path / "cache"))
    return TextDataModule(
        folders[0], [folders[1]], sequence_length=24, batch_size=2, validation_share=0.2,
        validation_sequences=5,
    )  # fmt: skip


def prompts(documents: str) -> PromptTaskDataModule:
    return PromptTaskDataModule(
        data={"next_line": documents}, prompt_tokens=[96], limit=2, max_new_tokens=60,
        validation_share=0.2,
    )  # fmt: skip


def trainer(tmp_path, *callbacks: Callback, **settings) -> Trainer:
    return Trainer(
        accelerator="cpu", devices=1, default_root_dir=tmp_path, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=list(callbacks), **settings,
    )  # fmt: skip


def records(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "evaluation.jsonl").open()]


def test_sanity_check_measures_nothing(folders, data, tmp_path):
    evaluation = KVPredictionEvaluation(timing_prompt_tokens=[8], timing_repeats=1, at_start=False)
    run = trainer(tmp_path, evaluation, max_epochs=1, limit_train_batches=1, num_sanity_val_steps=2)
    run.fit(KVPredictionModule(folders[0], init="default"), datamodule=data)
    assert [(r["global_step"], r["stage"]) for r in records(tmp_path)] == [(1, "fit")]


def test_the_start_is_measured_after_the_least_squares_fit(folders, data, tmp_path):
    evaluation = KVPredictionEvaluation(timing_prompt_tokens=[])
    module = KVPredictionModule(folders[0], calibration_batches=4, learning_rate=0.0)
    run = trainer(tmp_path, evaluation, max_epochs=1, limit_train_batches=1)
    run.fit(module, datamodule=data)
    start, end = records(tmp_path)
    assert (start["global_step"], end["global_step"]) == (0, 1)
    assert start["tokens_seen"] == 0
    # A learning rate of zero changes nothing: both saw the same fitted predictor.
    assert start["text"]["kl"] == pytest.approx(end["text"]["kl"], rel=1e-5)
    assert start["text"]["tokens"] == end["text"]["tokens"] == 5 * 12


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The system of every question that is put, in their order."""
    systems: list[str] = []
    answer = Answerer.answer

    def spy(self, system, example):
        systems.append(system)
        return answer(self, system, example)

    monkeypatch.setattr(Answerer, "answer", spy)
    return systems


def test_the_base_answers_each_prompt_once(folders, data, tmp_path, asked):
    evaluation = KVPredictionEvaluation(prompts(folders[1]), timing_prompt_tokens=[])
    run = trainer(tmp_path, evaluation, max_epochs=2, limit_train_batches=1)
    run.fit(KVPredictionModule(folders[0], init="default"), datamodule=data)
    assert {s: asked.count(s) for s in set(asked)} == {
        "base": 2, "predicted": 6, "corrected": 6, "auxiliary": 6,
    }  # fmt: skip
    assert len({r["accuracy"]["next_line/96"]["base"] for r in records(tmp_path)}) == 1


def test_a_draft_adds_sirius_alone_and_after_catch_up(folders, data, tmp_path, asked):
    correction = Correction(period=4, threshold=0.0, draft=CSparse(0.25))
    evaluation = KVPredictionEvaluation(prompts(folders[1]), correction, timing_prompt_tokens=[])
    run = trainer(tmp_path, evaluation, max_epochs=2, limit_train_batches=1)
    run.fit(KVPredictionModule(folders[0], init="default"), datamodule=data)
    # Two prompts, at the start and after each of two epochs; sparse and Sirius are never trained.
    assert {s: asked.count(s) for s in set(asked)} == {
        "base": 2, "sparse": 2, "sirius": 2,
        "predicted": 6, "corrected": 6, "sirius_catch_up": 6, "auxiliary": 6,
    }  # fmt: skip
    for record in records(tmp_path):
        assert {"sparse", "sirius", "sirius_catch_up"} <= record["accuracy"]["next_line/96"].keys()
        correction = record["correction"]
        assert (correction["draft"], correction["draft_keep"]) == ("csparse", 0.25)
        measured = correction["systems"]
        assert list(measured) == ["corrected", "sirius", "sirius_catch_up"]
        assert measured["sirius"]["aal"] == measured["sirius_catch_up"]["aal"] == 4
        assert measured["sirius"]["rejected_at"] == [0, 0, 0]
        assert measured["sirius"]["effective_density"] < 1
        assert measured["corrected"]["effective_density"] is None
        assert "sirius" in record["samples"][0]
    run_ = read_run(tmp_path)
    assert run_.fit[-1].correction.systems["sirius"].aal == 4
    assert "sirius_catch_up" in run_.fit[-1].accuracy[0].scores


def test_every_system_is_scored_by_unit_tests(folders, data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    problems = PromptTaskDataModule(
        ["humaneval"], data={"humaneval": make_problems(tmp_path)}, max_new_tokens=5
    )
    evaluation = KVPredictionEvaluation(problems, Correction(period=2), timing_prompt_tokens=[])
    run = trainer(tmp_path, evaluation)
    run.validate(KVPredictionModule(folders[0], init="default"), datamodule=data, verbose=False)
    (record,) = records(tmp_path)
    assert record["accuracy"]["humaneval"] == {
        "metric": "unit_tests", "n": 2,
        "base": 0.5, "predicted": 0.5, "corrected": 0.5, "auxiliary": 0.5,
    }  # fmt: skip
    assert read_run(tmp_path).evaluations[-1].accuracy[0].finest[0] == "unit tests"


def test_measures_of_corrections_are_logged_by_system():
    measured = {"aal": 3.0, "effective_density": None, "retraction_rate": 0.5}
    record = {"correction": {"period": 4, "systems": {"corrected": measured}}}
    assert _scalars(record, "val") == {
        "val/aal/corrected": 3.0,
        "val/retraction_rate/corrected": 0.5,
    }


def test_measuring_does_not_disturb_training(folders, data, tmp_path):
    """Same weights with and without evaluation, and the auxiliary back in train mode."""
    ends = []
    for evaluation in (
        None,
        KVPredictionEvaluation(prompts(folders[1]), timing_prompt_tokens=[8], timing_repeats=1),
    ):
        torch.manual_seed(0)
        module = KVPredictionModule(folders[0], init="default", split="matched")
        callbacks = [] if evaluation is None else [evaluation]
        run = trainer(
            tmp_path, *callbacks, max_epochs=1, limit_train_batches=3, val_check_interval=2
        )
        run.fit(module, datamodule=data)
        ends.append({n: p.detach().clone() for n, p in module.named_parameters()})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_prompts_longer_than_the_positions_are_not_timed(folders, data, tmp_path):
    evaluation = KVPredictionEvaluation(timing_prompt_tokens=[16, 4096], timing_repeats=1)
    run = trainer(tmp_path, evaluation)
    run.validate(KVPredictionModule(folders[0], init="default"), datamodule=data, verbose=False)
    assert [t["prompt_tokens"] for t in records(tmp_path)[0]["timing"]] == [16]


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="timing_repeats >= 1"):
        KVPredictionEvaluation(timing_repeats=0)
    with pytest.raises(ConfigurationError, match="not LightningModule"):
        KVPredictionEvaluation().setup(trainer(tmp_path), LightningModule(), "fit")


def test_summary_line():
    record = {
        "global_step": 7,
        "text": {"agreement": 0.5, "kl": 1.25},
        "timing": [{"speedup": 1.5, "prompt_tokens": 8}, {"speedup": 2.0, "prompt_tokens": 64}],
        "accuracy": {"a": {"n": 1, "base": 1.0}, "b": {"n": 3, "base": 0.0, "predicted": 0.5}},
    }
    assert summary(record) == (
        "step 7: agreement 0.500, KL 1.250, TTFT 2.00x at 64 tokens, base 0.25, predicted 0.50"
    )
