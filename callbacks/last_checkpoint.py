"""Keeping `last.ckpt` so fresh that a killed run loses little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lit_kvpred.errors import ConfigurationError


class LastCheckpoint(Checkpoint):
    """Overwrites one file every few optimiser steps and at the end of each epoch.

    Args:
        file: The checkpoint; it is replaced only when the new one is complete.
        every_n_steps: Optimiser steps between two writes.

    Raises:
        ConfigurationError: If ``every_n_steps`` is not positive.
    """

    def __init__(self, file: str | Path, every_n_steps: int = 25) -> None:
        if every_n_steps < 1:
            raise ConfigurationError(f"every_n_steps must be at least 1, got {every_n_steps}")
        self.file, self.every_n_steps = Path(file), every_n_steps
        self._saved_step = -1

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # The last batch of an epoch is saved after its validation: a run killed in between would
        # otherwise resume behind the validation and never do it.
        due = trainer.global_step % self.every_n_steps == 0 and not trainer.is_last_batch
        # With gradient accumulation several batches share a step: the first one after it counts.
        if due and trainer.global_step > 0 and trainer.global_step != self._saved_step:
            self._save(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._save(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"saved_step": self._saved_step}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved_step = state_dict["saved_step"]

    def _save(self, trainer: Trainer) -> None:
        self._saved_step = trainer.global_step
        trainer.save_checkpoint(self.file, weights_only=False)
