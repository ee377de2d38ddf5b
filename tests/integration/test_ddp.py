"""Two CPU processes under Lightning's own flag."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from lit_kvpred.callbacks import KVPredictionEvaluation
from lit_kvpred.datamodules import PromptTaskDataModule, TextDataModule
from lit_kvpred.module import KVPredictionModule

SCRIPT = Path(__file__).with_name("ddp_script.py")


@pytest.fixture(scope="module")
def two_processes(environment, base_folder, documents_folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ddp")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*launcher, str(SCRIPT), base_folder, documents_folder, str(out)],
        env=environment,
        check=True,
        timeout=240,
    )
    return out


@pytest.mark.slow
def test_ddp_trains_with_each_weight_zeroed(two_processes):
    """The script itself asserts equal weights on both processes and counted tokens."""
    digests = json.loads((two_processes / "digests.json").read_text())
    assert len(digests) == 10
    assert len(set(digests.values())) == 10


@pytest.mark.slow
def test_evaluation_of_uneven_shares_equals_one_process(
    two_processes, base_folder, documents_folder, tmp_path
):
    prompts = PromptTaskDataModule(
        data={"next_line": documents_folder}, prompt_tokens=[96], limit=3, max_new_tokens=60,
        validation_share=0.2,
    )  # fmt: skip
    evaluation = KVPredictionEvaluation(prompts, timing_prompt_tokens=[])
    trainer = Trainer(
        accelerator="cpu", devices=1, default_root_dir=tmp_path, logger=False,
        callbacks=[evaluation], enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = TextDataModule(
        base_folder, [documents_folder], sequence_length=32, batch_size=2, validation_share=0.2,
        validation_sequences=5,
    )  # fmt: skip
    module = KVPredictionModule(base_folder, init="default")
    torch.manual_seed(0)
    module.configure_model()
    trainer.validate(module, datamodule=data, verbose=False)
    one = json.loads((tmp_path / "evaluation.jsonl").read_text())
    two = json.loads((two_processes / "evaluation.jsonl").read_text())
    assert two["text"]["tokens"] == one["text"]["tokens"] == 5 * 16
    assert two["text"]["cross_entropy_base"] == pytest.approx(
        one["text"]["cross_entropy_base"], rel=1e-6
    )
    assert two["accuracy"]["next_line/96"]["n"] == one["accuracy"]["next_line/96"]["n"] == 3
    assert two["accuracy"]["next_line/96"]["base"] == one["accuracy"]["next_line/96"]["base"]
    assert two["correction"]["systems"]["corrected"]["time_to_exact_s"]["n"] == 3
    assert [t["prompt_tokens"] for t in two["timing"]] == [16]
