"""The evaluation callback: TTFT, accuracy of every system, closeness to the base, each epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from rich.progress import track
from typing_extensions import override

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.accuracy import CorrectionStatistics, TaskAccuracy
from lit_kvpred.evaluation.answering import CHECKED, FROZEN, SYSTEMS, Answer, Answerer, System
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.systems import settings_of
from lit_kvpred.evaluation.ttft import measure_ttft
from lit_kvpred.module import KVPredictionModule
from lit_kvpred.report import append_evaluation
from lit_kvpred.sirius.correction import Correction


class KVPredictionEvaluation(Callback):
    """Measures each validation epoch, and on ``validate`` and ``test``, what users will see.

    On a fixed small set of prompts: time to first token of base, KV Prediction and auxiliary
    alone, interleaved; accuracy of the exact base, of predicted and of corrected generation; how
    much of the drafts the correction accepts. With a sparse draft in the correction also accuracy
    of sparse decoding that nothing corrects, of Sirius on exact prompts (both once a run: nothing
    in them is trained), and of Sirius after catch-up. Together with the module's text measures they
    form one line of ``evaluation.jsonl`` in the run folder (the trainer's ``default_root_dir``).

    Nothing runs during the sanity check.

    Args:
        prompts: Data module with ``attach_tokenizer``, ``setup`` and ``examples``; null measures
            no accuracy.
        correction: How drafts are corrected; its ``draft`` adds the sparse systems.
        timing_prompt_tokens: Prompt lengths whose TTFT is measured; empty measures none.
        timing_repeats: Timed rounds per length.
        at_start: Also evaluate before the first training step.
        samples: Completions kept per evaluation for the report.
    """

    def __init__(
        self,
        prompts: LightningDataModule | None = None,
        correction: Correction = Correction(),  # noqa: B008 - frozen
        timing_prompt_tokens: Sequence[int] = (128, 256, 512, 1024),
        timing_repeats: int = 5,
        at_start: bool = True,
        samples: int = 6,
    ) -> None:
        if timing_repeats < 1 or samples < 0:
            raise ConfigurationError(
                f"evaluation needs timing_repeats >= 1 and samples >= 0, got {timing_repeats} "
                f"and {samples}"
            )
        self.prompts, self.correction = prompts, correction
        self.timing_prompt_tokens = list(timing_prompt_tokens)
        self.timing_repeats, self.at_start, self.samples = timing_repeats, at_start, samples
        self._examples: list[PromptExample] = []
        self._frozen: dict[tuple[System, PromptExample], Answer] = {}
        self._started = 0.0

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        self._started = time.monotonic()
        if not isinstance(pl_module, KVPredictionModule):
            raise ConfigurationError(
                "KVPredictionEvaluation measures KVPredictionModule, not "
                f"{type(pl_module).__name__}"
            )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if not self.at_start or trainer.global_step > 0 or trainer.ckpt_path is not None:
            return
        pl_module.quality.reset()
        was_training = pl_module.training
        pl_module.eval()
        for batch in self._validation_batches(trainer):
            pl_module.measure(trainer.strategy.batch_to_device(batch))
        self._evaluate(trainer, pl_module, "fit", epoch=0)
        pl_module.quality.reset()
        pl_module.train(was_training)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        stage = "fit" if trainer.state.fn == "fit" else "validate"
        self._evaluate(trainer, pl_module, stage, epoch=trainer.current_epoch + 1)

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._evaluate(trainer, pl_module, "test", epoch=trainer.current_epoch)

    def _validation_batches(self, trainer: Trainer) -> Any:
        if trainer.datamodule is None:
            raise ConfigurationError(
                "evaluation at the start needs a data module; pass one or set at_start to false"
            )
        loader = trainer.datamodule.val_dataloader()
        limit = trainer.limit_val_batches
        batches = list(loader)
        if isinstance(limit, float):
            limit = max(1, int(limit * len(batches))) if limit > 0 else 0
        return batches[:limit]

    def _evaluate(
        self, trainer: Trainer, module: KVPredictionModule, stage: str, *, epoch: int
    ) -> None:
        record: dict[str, Any] = {
            "stage": stage,
            "epoch": epoch,
            # Outside of a fit the trainer's own counter stays at 0.
            "global_step": max(trainer.global_step, module.trained_steps),
            "tokens_seen": module.tokens_seen,
        }
        record["text"] = module.quality.compute()
        if self.prompts is not None:
            record |= self._answer(trainer, module, self.prompts)
        if self.timing_prompt_tokens:
            record["timing"] = self._time(trainer, module)
        record["wall_s"] = time.monotonic() - self._started
        if trainer.training:
            # Before the first step the module's own logging would count as the first epoch's.
            for logger in trainer.loggers:
                logger.log_metrics(_scalars(record, "val"), step=0)
        else:
            module.log_dict(_scalars(record, "test" if stage == "test" else "val"))
        if trainer.is_global_zero:
            append_evaluation(Path(trainer.default_root_dir), record)
            rank_zero_info(summary(record))

    def _time(self, trainer: Trainer, module: KVPredictionModule) -> list[dict[str, Any]]:
        """Time on one process while the others wait, so that nothing competes for the device."""
        measured: list[dict[str, Any]] = []
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            limit = module.kv_model.adapter.max_positions
            lengths = [n for n in self.timing_prompt_tokens if limit is None or n <= limit]
            measured = measure_ttft(module.kv_model, lengths, repeats=self.timing_repeats)
        trainer.strategy.barrier()
        return trainer.strategy.broadcast(measured)

    def _answer(self, trainer: Trainer, module: KVPredictionModule, prompts: Any) -> dict[str, Any]:
        if not self._examples:
            prompts.attach_tokenizer(module.tokenizer)
            prompts.prepare_data()
            prompts.setup("validate")
            self._examples = prompts.examples
        device = module.device
        accuracy = TaskAccuracy(self._examples).to(device)
        answerer = Answerer(module.kv_model, module.tokenizer, self.correction)
        statistics = {
            system: _statistics(answerer, system).to(device)
            for system in answerer.systems
            if system in CHECKED
        }
        samples: list[dict[str, str]] = []
        shown = track(
            self._examples[trainer.global_rank :: trainer.world_size],
            description="Answering prompts",
            disable=trainer.progress_bar_callback is None or not trainer.is_global_zero,
            transient=True,
        )
        for example in shown:
            texts: dict[System, str] = {}
            for system in answerer.systems:
                answer = self._answer_one(answerer, system, example)
                accuracy.update(system, example, answer.text)
                texts[system] = answer.text
                if system in statistics and answer.stats is not None:
                    statistics[system].update(answer.stats)
            if len(samples) < self.samples:
                samples.append(_sample(example, texts))
        return {
            "accuracy": accuracy.compute(),
            "correction": {
                **settings_of(self.correction),
                "systems": {system: metric.compute() for system, metric in statistics.items()},
            },
            "samples": samples,
        }

    def _answer_one(self, answerer: Answerer, system: System, example: PromptExample) -> Answer:
        """What is not trained answers each prompt once and for all."""
        if system not in FROZEN:
            return answerer.answer(system, example)
        key = (system, example)
        if key not in self._frozen:
            self._frozen[key] = answerer.answer(system, example)
        return self._frozen[key]


def _statistics(answerer: Answerer, system: System) -> CorrectionStatistics:
    variant = answerer.variant(system, new_tokens=1)
    return CorrectionStatistics(variant.correction, variant.density(answerer.model))


_SHOWN = tuple(system for system in SYSTEMS if system != "auxiliary")


def _scalars(record: dict[str, Any], prefix: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for entry in record.get("timing", []):
        values[f"ttft_speedup_{entry['prompt_tokens']}"] = entry["speedup"]
    for task, entry in record.get("accuracy", {}).items():
        for system in SYSTEMS:
            if system in entry:
                values[f"accuracy/{task}/{system}"] = entry[system]
    for system, measured in record.get("correction", {}).get("systems", {}).items():
        for name in ("aal", "effective_density", "retraction_rate"):
            if measured[name] is not None:
                values[f"{name}/{system}"] = measured[name]
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


def summary(record: dict[str, Any]) -> str:
    """One line of an evaluation record for the console."""
    text = record["text"]
    parts = [
        f"step {record['global_step']}: agreement {text['agreement']:.3f}, KL {text['kl']:.3f}"
    ]
    parts += [
        f"TTFT {entry['speedup']:.2f}x at {entry['prompt_tokens']} tokens"
        for entry in record.get("timing", [])[-1:]
    ]
    scores = list(record.get("accuracy", {}).values())
    for system in _SHOWN:
        values = [(s[system], s["n"]) for s in scores if system in s]
        if values:
            mean = sum(v * n for v, n in values) / sum(n for _, n in values)
            parts.append(f"{system.replace('_', ' ')} {mean:.2f}")
    return ", ".join(parts)


def _sample(example: PromptExample, texts: dict[System, str]) -> dict[str, str]:
    shown: dict[str, str] = {name: texts[name] for name in _SHOWN if name in texts}
    return {
        "task": example.task,
        "prompt": example.prompt,
        "answer": example.answers[0],
        **shown,
    }
