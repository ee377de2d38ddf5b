"""What a run leaves behind besides checkpoints: its facts, the exported artefact, the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from lit_kvpred.evaluation.environment import versions
from lit_kvpred.evaluation.ttft import n_parameters
from lit_kvpred.model.artefact import base_reference
from lit_kvpred.module import KVPredictionModule
from lit_kvpred.report import write_report, write_run_facts

_OBJECTIVE = (
    "base_weight",
    "auxiliary_weight",
    "consistency_weight",
    "distillation_weight",
    "hidden_weight",
    "z_loss_weight",
    "consistency_reduction",
    "split",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
)


class RunRecord(Callback):
    """Writes ``run.json`` at the start, ``artefact/`` and the report at the end of a run.

    The artefact holds the weights of the best checkpoint by validation metric where there is one.
    """

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            write_run_facts(Path(trainer.default_root_dir), run_facts(trainer, pl_module))

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        best = _best_checkpoint(trainer)
        if best is not None:
            state = torch.load(best, map_location="cpu", weights_only=True)["state_dict"]
            pl_module.load_state_dict(state)
        if trainer.is_global_zero:
            run = Path(trainer.default_root_dir)
            pl_module.export(run / "artefact")
            self._report(run)

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, KeyboardInterrupt) and trainer.state.fn == "fit":
            rank_zero_info("Interrupted; the same command with --ckpt_path last goes on from here.")

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "validate" and trainer.is_global_zero:
            self._report(Path(trainer.default_root_dir))

    @override
    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._report(Path(trainer.default_root_dir))

    def _report(self, run: Path) -> None:
        rank_zero_info(f"Report: {write_report(run)}")


def run_facts(trainer: Trainer, module: KVPredictionModule) -> dict[str, Any]:
    """What is trained on what, as plain values."""
    model, hparams = module.kv_model, module.hparams
    base = base_reference(model.base)
    describe = getattr(trainer.datamodule, "describe", dict)
    return {
        "base": {
            **base,
            "family": model.adapter.family,
            "parameters": n_parameters(model.base),
            "layers": model.adapter.n_layers,
            "dtype": str(model.base.dtype).removeprefix("torch."),
        },
        "auxiliary": {
            **model.auxiliary.describe(),
            "parameters": n_parameters(model.auxiliary),
            "layers": model.auxiliary.exact_layers or model.auxiliary.adapter.n_layers,
        },
        "predictor": {
            "parameters": n_parameters(model.predictor),
            "features": model.predictor.features.kind,
            "init": model.init,
            "layer_map": model.predictor.features.layer_map,
            "exact_tail": model.exact_tail,
            "rank": model.predictor.rank,
        },
        "objective": {name: hparams[name] for name in _OBJECTIVE},
        "data": describe(),
        "trainable_parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
        "seed": hparams.seed,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": str(module.device),
        "precision": str(trainer.precision),
    }


def _best_checkpoint(trainer: Trainer) -> str | None:
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor and callback.best_model_path:
            return callback.best_model_path
    return None
