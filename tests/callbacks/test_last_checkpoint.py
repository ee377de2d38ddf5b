"""When the last checkpoint is written."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from lit_kvpred.callbacks import LastCheckpoint
from lit_kvpred.errors import ConfigurationError


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Recorder(Callback):
    """Notes after which batches the file holds a newer step."""

    def __init__(self, file) -> None:
        self.file, self.steps = file, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self._note()

    def on_train_end(self, trainer, pl_module) -> None:
        self._note()

    def _note(self) -> None:
        if self.file.exists():
            self.steps.append(torch.load(self.file, weights_only=True)["global_step"])


@pytest.mark.parametrize(
    ("every", "accumulate", "expected"),
    [(2, 1, [2, 2, 4, 4, 5, 5, 6, 6, 8, 8, 10]), (1, 2, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6])],
)
def test_written_every_few_steps_and_at_the_end_of_an_epoch(tmp_path, every, accumulate, expected):
    file = tmp_path / "last.ckpt"
    recorder = Recorder(file)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=2, default_root_dir=tmp_path, logger=False,
        callbacks=[LastCheckpoint(file, every), recorder], accumulate_grad_batches=accumulate,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Line(), DataLoader(torch.ones(5, 1)))
    steps = list(dict.fromkeys(recorder.steps))
    assert steps == list(dict.fromkeys(expected))
    assert recorder.steps[-1] == trainer.global_step


def test_bad_interval_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="every_n_steps"):
        LastCheckpoint(tmp_path / "x", 0)
