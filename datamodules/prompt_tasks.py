"""Evaluation prompts with known answers, from local files or the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from lit_kvpred.data_splits import TEST_SHARE, VALIDATION_SHARE, split_of
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.unit_tests import require_permission
from lit_kvpred.model.loading import load_tokenizer

from .sources import resolve_source
from .task_arc import ARC_CHALLENGE, ARC_EASY
from .task_boolq import BOOLQ
from .task_commonsenseqa import COMMONSENSEQA
from .task_gsm8k import GSM8K
from .task_humaneval import HUMANEVAL
from .task_next_line import next_line_examples
from .task_piqa import PIQA
from .task_records import RecordTask, record_examples
from .task_triviaqa import TRIVIAQA

_NEXT_LINE = "next_line"
_RECORD_TASKS: Mapping[str, RecordTask] = {
    task.name: task
    for task in (GSM8K, ARC_EASY, ARC_CHALLENGE, PIQA, BOOLQ, COMMONSENSEQA, TRIVIAQA, HUMANEVAL)
}
_NEXT_LINE_TOKENS = 32


class PromptTaskDataModule(LightningDataModule):
    """Prompts of one or several tasks; batches are lists of `PromptExample`.

    Args:
        tasks: Names among `next_line`, `gsm8k`, `arc_easy`, `arc_challenge`, `piqa`, `boolq`,
            `commonsenseqa`, `triviaqa` and `humaneval`. The last runs what a model wrote, if the
            environment variable HF_ALLOW_CODE_EVAL is 1.
        tokenizer: Folder, `.gguf` file or hub id of the tokenizer that measures the prompts of
            `next_line`; `attach_tokenizer` takes a loaded one instead.
        data: A file or folder for a task. Tasks without one are downloaded from the hub;
            `next_line` takes a source of the text data module, `stdlib` where not given.
        limit: Most prompts of a task (of a prompt length, for `next_line`).
        prompt_tokens: Most tokens of the prompts of `next_line`, one task for each.
        max_new_tokens: Most tokens of a completion; the task's own number when not given.
        shots: Solved examples before a prompt; the task's own number when not given.
        seed: Seed of the choice of prompts and of solved examples.
        batch_size: Prompts of a batch.
        text_field: The field that holds the text, where `next_line` reads records.
        validation_share: As in the text data module, so that `next_line` asks about held-out text.
        test_share: As in the text data module.

    Raises:
        ConfigurationError: A task is unknown, a number out of range, or a task would run code that
            the user has not allowed to run.
    """

    def __init__(
        self,
        tasks: Sequence[str] = (_NEXT_LINE,),
        tokenizer: str | None = None,
        data: dict[str, str] | None = None,
        limit: int = 16,
        prompt_tokens: Sequence[int] = (128, 256, 512),
        max_new_tokens: int | None = None,
        shots: int | None = None,
        seed: int = 1234,
        batch_size: int = 1,
        text_field: str = "text",
        validation_share: float = VALIDATION_SHARE,
        test_share: float = TEST_SHARE,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.tasks = list(tasks)
        self.tokenizer_source = tokenizer
        self.data = dict(data or {})
        self.limit = limit
        self.prompt_tokens = list(prompt_tokens)
        self.max_new_tokens = max_new_tokens
        self.shots = shots
        self.seed = seed
        self.batch_size = batch_size
        self.text_field = text_field
        self.validation_share = validation_share
        self.test_share = test_share
        self._check_arguments()
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._examples: list[PromptExample] | None = None

    @property
    def examples(self) -> list[PromptExample]:
        """The prompts of all tasks, made on first use."""
        if self._examples is None:
            self._examples = [example for task in self.tasks for example in self._make(task)]
        return self._examples

    def attach_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Takes the base's loaded tokenizer."""
        self._tokenizer = tokenizer

    def setup(self, stage: str | None = None) -> None:
        """Makes the prompts, once; the same ones for every stage.

        Raises:
            DataError: A task's data is missing or of another layout.
            ConfigurationError: `next_line` has no tokenizer.
        """
        _ = self.examples

    def val_dataloader(self) -> DataLoader[PromptExample]:
        """Returns the prompts in lists of `batch_size`."""
        return DataLoader(self.examples, batch_size=self.batch_size, collate_fn=list)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader[PromptExample]:
        """Returns the prompts in lists of `batch_size`."""
        return self.val_dataloader()

    def predict_dataloader(self) -> DataLoader[PromptExample]:
        """Returns the prompts in lists of `batch_size`."""
        return self.val_dataloader()

    def transfer_batch_to_device(
        self,
        batch: list[PromptExample],
        device: torch.device,
        dataloader_idx: int,
    ) -> list[PromptExample]:
        """Returns the prompts as they are: Lightning would try to rebuild frozen dataclasses."""
        return batch

    def _make(self, task: str) -> list[PromptExample]:
        if task == _NEXT_LINE:
            return self._next_line()
        return record_examples(
            _RECORD_TASKS[task],
            self.data.get(task),
            limit=self.limit,
            shots=self.shots,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
        )

    def _next_line(self) -> list[PromptExample]:
        if self._tokenizer is None:
            if self.tokenizer_source is None:
                raise ConfigurationError("next_line measures prompts in tokens; set tokenizer")
            self._tokenizer = load_tokenizer(self.tokenizer_source)
        source = resolve_source(self.data.get(_NEXT_LINE, "stdlib"))
        held_out = [
            document
            for document in source.documents(self.text_field)
            if split_of(document.name, self.validation_share, self.test_share) != "train"
        ]
        return next_line_examples(
            held_out,
            self._tokenizer,
            prompt_tokens=self.prompt_tokens,
            limit=self.limit,
            max_new_tokens=self.max_new_tokens or _NEXT_LINE_TOKENS,
            seed=self.seed,
        )

    def _check_arguments(self) -> None:
        known = (_NEXT_LINE, *_RECORD_TASKS)
        for task in (*self.tasks, *self.data):
            if task not in known:
                raise ConfigurationError(f"unknown task {task!r}; known are {', '.join(known)}")
        if not self.tasks:
            raise ConfigurationError("tasks is empty; name at least one, for example next_line")
        if any(_runs_code(task) for task in self.tasks):
            require_permission()
        if not self.prompt_tokens or min(self.prompt_tokens) < 1:
            raise ConfigurationError(
                f"prompt_tokens must be positive numbers, got {self.prompt_tokens}"
            )
        for name, minimum in {"limit": 1, "max_new_tokens": 1, "shots": 0, "batch_size": 1}.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigurationError(f"{name} must be at least {minimum}, got {value}")


def _runs_code(task: str) -> bool:
    return task in _RECORD_TASKS and _RECORD_TASKS[task].scoring == "unit_tests"
