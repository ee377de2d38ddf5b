"""A module that learns nothing but remembers the batches it was trained on."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn


class KilledError(Exception):
    pass


class Recorder(LightningModule):
    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.fail_at = fail_at
        self.seen: list[tuple[int, ...]] = []
        self.validated: list[tuple[int, ...]] = []

    def training_step(self, batch, batch_idx):
        if self.fail_at is not None and len(self.seen) == self.fail_at:
            raise KilledError
        self.seen.append(tuple(batch["input_ids"].flatten().tolist()))
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        self.validated.append(tuple(batch["input_ids"].flatten().tolist()))
        self.log("val_loss", float(len(self.seen)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, **options) -> Trainer:
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": "callbacks" in options,
        "num_sanity_val_steps": 0,
        "max_epochs": 2,
    }
    return Trainer(**(defaults | options))
