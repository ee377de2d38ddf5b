"""The LightningModule that trains auxiliary and predictor against a frozen base."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from rich.progress import track
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from lit_kvpred.calibration_text import Batch, with_own_text
from lit_kvpred.checks import require_count, require_number, require_seed
from lit_kvpred.errors import CheckpointError, ConfigurationError, NonFiniteLossError
from lit_kvpred.evaluation.answering import FROZEN, Answerer
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.quality import TextQuality, compare
from lit_kvpred.losses import Reduction
from lit_kvpred.model.artefact import base_reference, check_base
from lit_kvpred.model.auxiliary import AuxiliaryKind, build_auxiliary
from lit_kvpred.model.exact_tail import ExactTail, require_exact_tail
from lit_kvpred.model.features import FeatureKind
from lit_kvpred.model.kv_prediction import Init, KVPredictionModel
from lit_kvpred.model.least_squares import Weighting
from lit_kvpred.model.loading import load_base, load_tokenizer
from lit_kvpred.model.sequences import Sequences, sequences_of
from lit_kvpred.objective import Objective, Split, training_losses
from lit_kvpred.optimisation import decay_groups, warmup_cosine
from lit_kvpred.random_cuts import RandomCuts
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.unreached import freeze_unreached

# Lightning's own logger, so that its console settings apply.
_log = logging.getLogger("lightning.pytorch")
_FROZEN_PREFIX = "model.base."
# What the trained tensors mean. Everything else may change between a checkpoint and its resumption.
_STRUCTURE = (
    "auxiliary",
    "keep",
    "auxiliary_source",
    "features",
    "layer_map",
    "exact_tail",
    "rank",
)


class KVPredictionModule(LightningModule):
    """Joint fine-tuning of an auxiliary and linear projections (KVP 3).

    Args:
        base: Folder, GGUF file or hub id of the base; it stays frozen.
        base_revision: Hub revision of the base.
        base_dtype: ``auto`` keeps the file's.
        auxiliary: ``prefix`` (the base's own first layers, shared), ``pruned`` (a copy of some of
            its layers) or ``canonical`` (a smaller sibling).
        keep: For ``prefix``: the number of layers or the fraction of them. For ``pruned``: .25, .5
            or .75 by the published rule, or the list of kept layers.
        auxiliary_source: For ``canonical``: folder or hub id.
        features: What the predictor reads: ``kv`` (as published) or ``hidden``; null: ``hidden``
            for a prefix, ``kv`` otherwise.
        exact_tail: Last prompt rows that the base runs itself on the predicted ones: their number,
            or the fraction of the prompt, never fewer than 16 rows.
        rank: For features ``hidden``: width of a bottleneck that all maps share; null for none.
        layer_map: For each base layer the auxiliary layer that feeds it; null: published rule.
        init: ``default`` (as published) or ``least_squares`` (closed form on exact rows).
        ridge: Penalty of the least-squares fit, relative to the mean squared feature; null chooses
            it on every eighth calibration batch.
        calibration_batches: Training batches that the least-squares fit sees.
        generated_batches: Further batches for it, which the base writes itself from the first
            tokens of those.
        calibration_weighting: ``attention`` counts the error of a row by the root of the attention
            that it receives; ``uniform`` counts all rows alike.
        base_weight: Weight of the base's cross-entropy on predicted rows.
        auxiliary_weight: Weight of the auxiliary's own cross-entropy.
        consistency_weight: Weight of the L1 distance of predicted to exact rows.
        consistency_reduction: Over layers: ``mean`` (the paper) or ``sum`` (its public configs).
        distillation_weight: Weight of the KL to the exact base's logits.
        hidden_weight: Weight of the distance of upper layers' hidden states to the exact base's.
        z_loss_weight: Coefficient of the z-loss next to each cross-entropy.
        split: ``all_predicted`` (published) or ``matched`` (rows after a random cut are the
            base's own, as at inference).
        learning_rate: Peak of AdamW's rate.
        minimum_learning_rate: Where the cosine ends, relative to the peak.
        warmup_steps: Optimiser steps of linear warm-up.
        weight_decay: On matrices only.
        betas: AdamW's.
        seed: Of the random cuts.
    """

    def __init__(
        self,
        base: str,
        base_revision: str | None = None,
        base_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        auxiliary: AuxiliaryKind = "pruned",
        keep: int | float | list[int] = 0.5,
        auxiliary_source: str | None = None,
        features: FeatureKind | None = None,
        exact_tail: ExactTail = 1,
        rank: int | None = None,
        layer_map: list[int] | None = None,
        init: Init = "least_squares",
        ridge: float | None = None,
        calibration_batches: int = 16,
        generated_batches: int = 0,
        calibration_weighting: Weighting = "attention",
        base_weight: float = 1.0,
        auxiliary_weight: float = 1.0,
        consistency_weight: float = 1.0,
        consistency_reduction: Reduction = "mean",
        distillation_weight: float = 0.0,
        hidden_weight: float = 0.0,
        z_loss_weight: float = 1e-4,
        split: Split = "all_predicted",
        learning_rate: float = 1e-3,
        minimum_learning_rate: float = 0.1,
        warmup_steps: int = 10,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        seed: int = 0,
    ) -> None:
        _check_optimiser(learning_rate, minimum_learning_rate, warmup_steps, weight_decay, betas)
        super().__init__()
        self.save_hyperparameters(_plain(locals()))
        self.objective = Objective(
            base_weight=base_weight,
            auxiliary_weight=auxiliary_weight,
            consistency_weight=consistency_weight,
            consistency_reduction=consistency_reduction,
            distillation_weight=distillation_weight,
            hidden_weight=hidden_weight,
            z_loss_weight=z_loss_weight,
            split=split,
        )
        require_seed("model.seed", seed)
        require_exact_tail("model.exact_tail", exact_tail)
        if rank is not None:
            require_count("model.rank", rank)
        if ridge is not None:
            require_number("model.ridge", ridge, least=0, below=math.inf)
        least = 1 if init == "least_squares" else 0
        require_count("model.calibration_batches", calibration_batches, least=least)
        require_count("model.generated_batches", generated_batches, least=0)
        if generated_batches > calibration_batches:
            raise ConfigurationError(
                "model.generated_batches must be between 0 and calibration_batches "
                f"({calibration_batches}), whose texts they go on from, got {generated_batches}"
            )
        self._cuts = RandomCuts(exact_tail, seed)
        self.model: KVPredictionModel | None = None
        self.tokenizer: Any = None
        self.batches_seen = 0
        self.tokens_seen = 0
        self.trained_steps = 0
        self.correction = Correction()

    # -- construction -----------------------------------------------------------------------

    def configure_model(self) -> None:
        """Load the base and build auxiliary and predictor; does nothing the second time."""
        if self.model is not None:
            return
        h = self.hparams
        self.tokenizer = load_tokenizer(h.base, revision=h.base_revision)
        base = load_base(h.base, dtype=h.base_dtype, revision=h.base_revision)
        auxiliary = build_auxiliary(
            base,
            h.auxiliary,
            keep=h.keep,
            source=h.auxiliary_source,
            base_tokenizer=self.tokenizer,
        )
        self.model = KVPredictionModel(
            base,
            auxiliary,
            features=h.features,
            init=h.init,
            layer_map=h.layer_map,
            exact_tail=h.exact_tail,
            rank=h.rank,
        )
        if not any(p.requires_grad for p in self.model.parameters()):
            raise ConfigurationError(
                f"model.keep {h.keep} shares all layers of the base, which leaves nothing to "
                "train; keep fewer"
            )
        freeze_unreached(self.model, self.objective)
        self.quality = TextQuality(self.model.adapter.n_layers)

    @property
    def kv_model(self) -> KVPredictionModel:
        """The joined model, once it is configured."""
        if self.model is None:
            raise RuntimeError("call configure_model() first")
        return self.model

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW without decay on 1-D parameters; linear warm-up, then cosine."""
        h = self.hparams
        optimizer = torch.optim.AdamW(
            decay_groups(self.parameters(), h.weight_decay),
            lr=h.learning_rate,
            betas=tuple(h.betas),
            eps=1e-8,
        )
        # Asking for the number of steps opens the training data. Here that would be before a
        # checkpoint is restored, and the data would not continue where it stopped.
        factor = warmup_cosine(
            h.warmup_steps,
            lambda: int(self.trainer.estimated_stepping_batches),
            h.minimum_learning_rate,
        )
        schedule = LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    # -- fitting ----------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Fit the predictor in closed form, unless a checkpoint brings a trained one.

        Raises:
            ConfigurationError: If the training rows are too short to teach anything.
        """
        length = getattr(self.trainer.datamodule, "sequence_length", None)
        matched = self.objective.split == "matched"
        if matched and length is not None and self._cuts.draw(length, 0) is None:
            raise ConfigurationError(
                f"rows of {length} tokens have nothing to compare behind a predicted row and an "
                f"exact tail of {self.hparams.exact_tail}; raise data.sequence_length or lower "
                "model.exact_tail"
            )
        if self.hparams.init == "least_squares" and self.trainer.ckpt_path is None:
            self.fit_predictor(self._calibration_batches())

    def fit_predictor(self, batches: Iterable[Batch]) -> None:
        """Least-squares initialisation from calibration batches, with a progress bar."""
        shown = track(
            batches,
            description="Least squares",
            total=self.hparams.calibration_batches + self.hparams.generated_batches,
            disable=self.trainer.progress_bar_callback is None or not self.trainer.is_global_zero,
        )
        fit = self.kv_model.fit_least_squares(
            shown, ridge=self.hparams.ridge, weighting=self.hparams.calibration_weighting
        )
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for parameter in self.kv_model.predictor.parameters():
                torch.distributed.broadcast(parameter.data, src=0)
        _log.info(
            "Least squares on %d tokens in %.0f s (%.2f times the reading alone), ridge %g, leaves "
            "%.3f of the variance of keys and %.3f of values.",
            fit.tokens,
            fit.seconds,
            fit.seconds / fit.forward_seconds,
            fit.ridge,
            sum(fit.key_error) / len(fit.key_error),
            sum(fit.value_error) / len(fit.value_error),
        )

    def _calibration_batches(self) -> Iterable[Batch]:
        provide = getattr(self.trainer.datamodule, "calibration_dataloader", None)
        if provide is None:
            raise ConfigurationError(
                "init least_squares needs a data module with calibration_dataloader(n_batches); "
                "use TextDataModule or init default"
            )
        h = self.hparams
        batches = provide(h.calibration_batches)
        return with_own_text(batches, h.generated_batches, self.kv_model.adapter, h.seed)

    def on_train_start(self) -> None:
        """Let the configured learning rate and decay win over those of a checkpoint."""
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        rate = self.hparams.learning_rate
        if schedule.base_lrs[0] != rate:
            _log.info(
                "Peak learning rate %g replaces the checkpoint's %g.", rate, schedule.base_lrs[0]
            )
        decays = (self.hparams.weight_decay, 0.0)
        schedule.base_lrs = [rate for _ in schedule.base_lrs]
        for group, decay, factor in zip(
            optimizer.param_groups, decays, schedule.lr_lambdas, strict=True
        ):
            group["initial_lr"], group["weight_decay"] = rate, decay
            group["lr"] = rate * factor(schedule.last_epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step of the objective; logs every term.

        Raises:
            NonFiniteLossError: If the loss is NaN or infinite.
        """
        input_ids, sequences = batch["input_ids"], sequences_of(batch)
        self.kv_model.adapter.require_positions(sequences.position_ids)
        length, matched = input_ids.shape[1], self.objective.split == "matched"
        cut = self._cuts.draw(length, self.batches_seen) if matched else None
        if matched and cut is None:
            losses = {"loss": self._nothing_to_learn(length)}
        else:
            losses = training_losses(self.kv_model, self.objective, input_ids, sequences, cut)
        if not bool(torch.isfinite(losses["loss"])):
            raise self._not_finite("the training loss")
        self.batches_seen += 1
        self.tokens_seen += self._count_tokens(sequences)
        self.log_dict(
            {f"train/{name}": value.detach() for name, value in losses.items()}, prog_bar=False
        )
        self.log("loss", losses["loss"].detach(), prog_bar=True, logger=False)
        self.log("tokens_seen", float(self.tokens_seen))
        self.log("lr", self.optimizers().param_groups[0]["lr"])
        return losses["loss"]

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step that would write NaN into the weights.

        Raises:
            NonFiniteLossError: If a gradient is NaN or infinite.
        """
        gradients = [
            p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not bool(torch.isfinite(norm)):
            raise self._not_finite("a gradient")
        self.log("train/gradient_norm", norm)

    def _nothing_to_learn(self, length: int) -> Tensor:
        """No loss, but with gradients, which other processes may be waiting for."""
        rank_zero_warn(
            f"A batch of {length} tokens has nothing to compare behind a predicted row and an "
            f"exact tail of {self.hparams.exact_tail}; such batches teach nothing. Use longer "
            "sequences or a smaller model.exact_tail."
        )
        trained = [p for p in self.parameters() if p.requires_grad]
        return torch.stack([0.0 * p.float().sum() for p in trained]).sum()

    def _count_tokens(self, sequences: Sequences) -> int:
        count = sequences.real.sum()
        if self.trainer.world_size > 1:
            count = self.trainer.strategy.reduce(count, reduce_op="sum")
        return int(count)

    def _not_finite(self, what: str) -> NonFiniteLossError:
        files = [getattr(c, "file", None) for c in self.trainer.checkpoint_callbacks]
        saved = next((f for f in files if f is not None and f.exists()), None)
        kept = f"the last good checkpoint is {saved}" if saved else "no checkpoint was written yet"
        return NonFiniteLossError(
            f"{what} is not finite at step {self.trainer.global_step}; {kept}; "
            "lower the learning rate or check the data"
        )

    # -- evaluation -------------------------------------------------------------------------

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Compare predicted with exact on rows after the middle of each sequence."""
        self.measure(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """As validation, on the test split."""
        self.measure(batch)

    def measure(self, batch: Batch) -> None:
        """Add a batch to the text quality measures."""
        input_ids, sequences = batch["input_ids"], sequences_of(batch)
        self.quality.update(
            compare(self.kv_model, input_ids, sequences, max(1, input_ids.shape[1] // 2))
        )

    def on_validation_epoch_start(self) -> None:
        """Forget what earlier passes measured."""
        self.quality.reset()

    def on_test_epoch_start(self) -> None:
        """Forget what earlier passes measured."""
        self.quality.reset()

    def on_validation_epoch_end(self) -> None:
        """Log the measures of the epoch."""
        self._log_quality("val")

    def on_test_epoch_end(self) -> None:
        """Log the measures of the test split."""
        self._log_quality("test")

    def predict_step(self, batch: Sequence[PromptExample], batch_idx: int) -> list[dict[str, str]]:
        """Answer prompts; returns task, prompt and the completions that start from predictions."""
        answerer = Answerer(self.kv_model, self.tokenizer, self.correction)
        systems = [s for s in answerer.systems if s not in (*FROZEN, "auxiliary")]
        return [
            {"task": example.task, "prompt": example.prompt}
            | {system: answerer.answer(system, example).text for system in systems}
            for example in batch
        ]

    def _log_quality(self, stage: str) -> None:
        measured = self.quality.compute()
        scalars = {name: value for name, value in measured.items() if isinstance(value, float)}
        layers = [*measured["consistency_keys"], *measured["consistency_values"]]
        scalars["consistency"] = 2 * sum(layers) / len(layers)
        for name, value in scalars.items():
            self.log(f"{stage}/{name}", value, prog_bar=name in ("kl", "agreement"))
        self.log("tokens_seen", float(self.tokens_seen))

    # -- checkpoints ------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Only what is trained: the base is stored by reference."""
        state = super().state_dict(*args, **kwargs)
        return {k: v for k, v in state.items() if not k.startswith(_FROZEN_PREFIX)}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the trained tensors; all of them must be there.

        Raises:
            CheckpointError: If tensors are missing or unknown.
        """
        result = super().load_state_dict(state_dict, strict=False, assign=assign)
        missing = [k for k in result.missing_keys if not k.startswith(_FROZEN_PREFIX)]
        if missing or result.unexpected_keys:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} trained tensors (first: {missing[:1]}) and "
                f"has {len(result.unexpected_keys)} unknown ones (first: "
                f"{result.unexpected_keys[:1]}); it was written for another configuration"
            )
        return result

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the base by reference, the counters and torch's generator state."""
        checkpoint["lit_kvpred"] = {
            "base": base_reference(self.kv_model.base),
            "batches_seen": self.batches_seen,
            "tokens_seen": self.tokens_seen,
            "rng_state": torch.get_rng_state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that checkpoint, base and configuration belong together.

        Raises:
            CheckpointError: If the checkpoint is not ours or was made for another base.
            ConfigurationError: If the configuration would give the tensors another meaning.
        """
        self.configure_model()
        ours = checkpoint.get("lit_kvpred")
        if ours is None:
            raise CheckpointError("the checkpoint was not written by this package")
        check_base(self.kv_model.base, ours["base"], "the checkpoint")
        saved = checkpoint.get("hyper_parameters", {})
        for name in _STRUCTURE:
            if name in saved and saved[name] != self.hparams[name]:
                raise ConfigurationError(
                    f"model.{name} is {self.hparams[name]!r} but the checkpoint was trained with "
                    f"{saved[name]!r}; resume with the same value or start a new run"
                )
        self.trained_steps = checkpoint["global_step"]
        self.batches_seen = ours["batches_seen"]
        self.tokens_seen = ours["tokens_seen"]
        torch.set_rng_state(ours["rng_state"])

    def export(self, folder: str | Path) -> None:
        """Write the artefact (`KVPredictionModel.save_pretrained`)."""
        self.kv_model.save_pretrained(folder)


def _check_optimiser(
    learning_rate: object,
    minimum_learning_rate: object,
    warmup_steps: object,
    weight_decay: object,
    betas: Sequence[object],
) -> None:
    require_number("model.learning_rate", learning_rate, least=0, below=math.inf)
    require_number("model.minimum_learning_rate", minimum_learning_rate, least=0, most=1)
    require_count("model.warmup_steps", warmup_steps, least=0)
    require_number("model.weight_decay", weight_decay, least=0, below=math.inf)
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise ConfigurationError(f"model.betas must be two numbers, got {betas!r}")
    for beta in betas:
        require_number("each of model.betas", beta, least=0, below=1)


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments as plain values that weights-only loading accepts."""
    skipped = ("self", "__class__")
    plain = {k: v for k, v in arguments.items() if k not in skipped}
    plain["betas"] = list(plain["betas"])
    return plain
