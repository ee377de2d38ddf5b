"""Run by two processes: each loss weight zeroed in turn, then an evaluation with uneven prompts.

usage: torchrun --nproc_per_node 2 ddp_script.py BASE DOCUMENTS OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from lit_kvpred.callbacks import KVPredictionEvaluation
from lit_kvpred.datamodules import PromptTaskDataModule, TextDataModule
from lit_kvpred.module import KVPredictionModule

WEIGHTS = ("base_weight", "auxiliary_weight", "consistency_weight", "distillation_weight")


def data(base: str, documents: str) -> TextDataModule:
    return TextDataModule(
        base,
        [documents],
        sequence_length=32,
        batch_size=2,
        validation_share=0.2,
        validation_sequences=5,
    )


def trainer(out: Path, **settings) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        default_root_dir=out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )


def main(base: str, documents: str, out: str) -> None:
    torch.set_num_threads(1)
    folder = Path(out)
    digests: dict[str, float] = {}
    for zeroed in (None, *WEIGHTS):
        for split in ("all_predicted", "matched"):
            weights = {w: 0.0 if w == zeroed else 1.0 for w in WEIGHTS}
            module = KVPredictionModule(base, calibration_batches=1, split=split, **weights)
            run = trainer(folder, max_steps=2, limit_val_batches=0)
            run.fit(module, datamodule=data(base, documents))
            total = torch.stack([p.detach().double().sum() for p in module.parameters()]).sum()
            both = [torch.zeros_like(total) for _ in range(2)]
            torch.distributed.all_gather(both, total)
            assert both[0] == both[1], (zeroed, split, both)
            assert module.tokens_seen == 2 * 2 * 2 * 32
            digests[f"{zeroed}/{split}"] = float(total)
    prompts = PromptTaskDataModule(
        data={"next_line": documents}, prompt_tokens=[96], limit=3, max_new_tokens=60,
        validation_share=0.2,
    )  # fmt: skip
    evaluation = KVPredictionEvaluation(prompts, timing_prompt_tokens=[16], timing_repeats=1)
    module = KVPredictionModule(base, init="default")
    torch.manual_seed(0)
    run = trainer(folder, callbacks=[evaluation])
    run.validate(module, datamodule=data(base, documents), verbose=False)
    if run.is_global_zero:
        (folder / "digests.json").write_text(json.dumps(digests))


if __name__ == "__main__":
    main(*sys.argv[1:])
