"""The artefact of a run holds the best weights, not the last."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_kvpred import KVPredictionModel
from lit_kvpred.callbacks import KVPredictionEvaluation, RunRecord
from lit_kvpred.datamodules import TextDataModule
from lit_kvpred.module import KVPredictionModule
from tests.base_folders import make_base, make_documents


def test_artefact_is_the_best_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path / "cache"))
    base, documents = make_base(tmp_path / "base"), make_documents(tmp_path / "documents")
    data = TextDataModule(
        base, [documents], sequence_length=24, batch_size=2, validation_share=0.2,
        validation_sequences=4,
    )  # fmt: skip
    run = tmp_path / "run"
    best = ModelCheckpoint(run / "checkpoints", filename="best", monitor="val/kl")
    trainer = Trainer(
        accelerator="cpu", devices=1, default_root_dir=run, logger=False, max_epochs=2,
        limit_train_batches=1, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[best, KVPredictionEvaluation(timing_prompt_tokens=[]), RunRecord()],
    )  # fmt: skip
    # So large a rate makes the second epoch worse than the first.
    module = KVPredictionModule(base, learning_rate=0.3, warmup_steps=0, minimum_learning_rate=1.0)
    trainer.fit(module, datamodule=data)
    fit = [json.loads(line) for line in (run / "evaluation.jsonl").open()]
    kls = {r["global_step"]: r["text"]["kl"] for r in fit}
    assert kls[1] != pytest.approx(kls[2])
    state = torch.load(best.best_model_path, weights_only=True)
    assert state["global_step"] == min((1, 2), key=kls.__getitem__)
    artefact = KVPredictionModel.from_pretrained(run / "artefact")
    for name, tensor in artefact.predictor.state_dict().items():
        assert torch.equal(tensor, state["state_dict"][f"model.predictor.{name}"]), name
    facts = json.loads((run / "run.json").read_text())
    assert facts["base"]["fingerprint"] == state["lit_kvpred"]["base"]["fingerprint"]
    assert facts["data"]["tokens"]["train"] > 0
    assert (run / "report.html").is_file()
