"""`lit-kvpred fit | validate | test | predict`: Lightning's command line on our run folder."""

from __future__ import annotations

import json
import logging
import warnings
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from transformers.utils.logging import disable_progress_bar
from typing_extensions import override

from lit_kvpred.callbacks import KVPredictionEvaluation, LastCheckpoint, RunRecord
from lit_kvpred.cli.arguments import option_value, with_config_paths
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.module import KVPredictionModule
from lit_kvpred.report.atomic import write_atomically
from lit_kvpred.run_folder import RunCSVLogger, RunFolder, read_checkpoint


class SaveRunConfig(SaveConfigCallback):
    """Writes ``config.yaml`` of a fit into the run folder; an earlier one is kept beside it.

    Only once training begins: a fit that is refused, for instance because the checkpoint was
    trained with other settings, leaves the run as it was.
    """

    already_saved: bool

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing has been checked yet."""

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not self.already_saved:
            folder = RunFolder(trainer.default_root_dir)
            if trainer.ckpt_path is not None:
                folder.forget_metrics_from(trainer.global_step)
            folder.keep_earlier_config()
            settings = self.config.clone()
            # Where this fit started is no setting of the run.
            settings["ckpt_path"] = settings["weights_only"] = None
            self.parser.save(settings, folder.config, skip_unset=False)
        self.already_saved = True


class RunProgressBar(RichProgressBar):
    """Lightning's rich bar without the logger's version number: a run has its folder instead."""

    @override
    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics


class KVPredictionCLI(LightningCLI):
    """Lightning's command line with a run folder, our checkpoints, loggers and callbacks."""

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--run",
            type=str,
            default="checkpoints/runs/default",
            help="Folder that takes everything the run leaves behind.",
        )
        parser.add_argument(
            "--save_every",
            type=int,
            default=25,
            help="Optimiser steps between writes of checkpoints/last.ckpt.",
        )
        parser.add_argument(
            "--monitor", type=str, default="val/kl", help="Metric that chooses the best checkpoint."
        )
        parser.add_argument(
            "--monitor_mode", type=str, default="min", help="min or max of the monitored metric."
        )
        parser.link_arguments("run", "trainer.default_root_dir")
        parser.link_arguments("model.base", "data.init_args.tokenizer")
        parser.add_lightning_class_args(KVPredictionEvaluation, "evaluation")

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """As Lightning does, without its warning of arguments that don't come from ``sys.argv``."""
        self.config = parser.parse_args(args)

    @override
    def _parse_ckpt_path(self) -> None:
        """Settings of a checkpoint never replace those of the command line."""

    @override
    def before_instantiate_classes(self) -> None:
        self.folder = RunFolder(self._get(self.config, "run"))
        name = self._get(self.config, "ckpt_path")
        if name is None and self.subcommand == "fit":
            self.folder.refuse_overwriting()
            return
        file = self.folder.find_checkpoint(name or "best")
        read_checkpoint(file)
        self.config[self.subcommand]["ckpt_path"] = str(file)
        self.config[self.subcommand]["weights_only"] = True

    @override
    def after_instantiate_classes(self) -> None:
        """Make the run folder, which a setting out of its range has not left behind."""
        self.folder.prepare()

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        extra: list[Callback] = [
            self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys
        ]
        settings = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        settings["logger"] = self._loggers(settings.get("logger"))
        if settings.get("enable_progress_bar") is not False:
            extra.append(RunProgressBar())
        return self._instantiate_trainer(settings, [*extra, *self._callbacks()])

    def _loggers(self, configured: Any) -> list[Logger]:
        run = self.folder.path
        if configured is None or configured is True:
            return [RunCSVLogger(run), TensorBoardLogger(run, name="", version="tensorboard")]
        if configured is False:
            return [RunCSVLogger(run)]
        others = configured if isinstance(configured, list) else [configured]
        return [RunCSVLogger(run), *others]

    def _callbacks(self) -> list[Callback]:
        mode = self._get(self.config_init, "monitor_mode")
        if mode not in ("min", "max"):
            raise ConfigurationError(f"monitor_mode must be min or max, got '{mode}'")
        best = ModelCheckpoint(
            dirpath=self.folder.checkpoints,
            filename="best-step{step}",
            monitor=self._get(self.config_init, "monitor"),
            mode=mode,
            auto_insert_metric_name=False,
        )
        last = LastCheckpoint(
            self.folder.checkpoints / "last.ckpt", self._get(self.config_init, "save_every")
        )
        return [best, last, RunRecord()]

    def predict(self, model: KVPredictionModule, **kwargs: Any) -> None:
        """Answer the evaluation prompts; answers go to ``predictions.jsonl`` in the run folder."""
        evaluation = self._get(self.config_init, "evaluation")
        if evaluation.prompts is None:
            raise ConfigurationError("predict needs evaluation.prompts in the configuration")
        model.correction = evaluation.correction
        kwargs["datamodule"] = evaluation.prompts
        model.configure_model()
        evaluation.prompts.attach_tokenizer(model.tokenizer)
        batches = self.trainer.predict(model, **kwargs)
        lines = [json.dumps(answer) + "\n" for batch in batches or [] for answer in batch]
        write_atomically({self.folder.path / "predictions.jsonl": "".join(lines)})


def run(words: list[str]) -> None:
    """Run the command with its name and arguments."""
    _quieten()
    words = _with_run_config(words)
    KVPredictionCLI(
        KVPredictionModule,
        LightningDataModule,
        subclass_mode_data=True,
        save_config_callback=SaveRunConfig,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        seed_everything_default=0,
        parser_kwargs={"exit_on_error": False}
        | {name: {"exit_on_error": False} for name in KVPredictionCLI.subcommands()},
        args=with_config_paths(words),
    )


def _with_run_config(words: list[str]) -> list[str]:
    """Without ``--config`` an existing run folder brings its own configuration."""
    folder = option_value(words, "--run")
    given = any(word in ("-c", "--config") or word.startswith("--config=") for word in words)
    if given or any(word in ("-h", "--help") for word in words):
        return words
    config = None if folder is None else RunFolder(folder).config
    if config is not None and config.is_file():
        return [words[0], "--config", str(config), *words[1:]]
    if option_value(words, "--model.base") is not None:
        return words
    if config is None:
        raise ConfigurationError(
            "give --config with a file or a packaged name, or --run with the folder of a run"
        )
    raise ConfigurationError(f"{folder} holds no run (no config.yaml); give --config or another")


def _quieten() -> None:
    """Silence what is intended here: few workers, an eval-mode base, other programs' bars."""
    for message in (
        ".*does not have many workers.*",
        ".*in eval mode at the start of training.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
    ):
        warnings.filterwarnings("ignore", message=message)
    disable_progress_bar()
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: "litlogger" not in record.getMessage()
    )
