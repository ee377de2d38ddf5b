"""Prompts made from the records of a question-answering data set, after solved examples."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_kvpred.errors import DataError
from lit_kvpred.evaluation.prompts import PromptExample, Scoring
from lit_kvpred.evaluation.unit_tests import UnitTests

from .documents import TextFile, read_records, suffix_of
from .sources import load_hub_split

_RECORD_SUFFIXES = (".jsonl", ".json", ".parquet")
_FILE_WORDS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


@dataclass(frozen=True)
class Question:
    """A question as the model reads it.

    Attributes:
        prompt: Text that ends where the answer begins.
        answers: Accepted answers.
        solution: The continuation that a solved example shows, with its leading space.
        choices: Continuations to choose from, for choice tasks.
        gold: Index of the right one.
        unit_tests: What judges a completion, for tasks scored by running it.
    """

    prompt: str
    answers: tuple[str, ...]
    solution: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    unit_tests: UnitTests | None = None


@dataclass(frozen=True)
class RecordTask:
    """A task whose prompts come from records.

    Attributes:
        name: Name of the task.
        hub: Hub data set and configuration.
        split: Split that is evaluated.
        shots_split: Split of the solved examples.
        parse: Makes a question of a record; KeyError, ValueError, TypeError or IndexError where the
            record has another layout.
        scoring: How completions are scored.
        shots: Solved examples before a prompt, unless the user says otherwise.
        separator: Text between examples.
        stop: Texts that end a completion.
        max_new_tokens: Most tokens of a completion, unless the user says otherwise.
    """

    name: str
    hub: tuple[str, str | None]
    split: str
    shots_split: str
    parse: Callable[[Mapping[str, Any]], Question]
    scoring: Scoring = "choice"
    shots: int = 0
    separator: str = "\n\n"
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 32


def choice_question(prompt: str, choices: Sequence[str], gold: int) -> Question:
    """Returns a question answered by one of several continuations."""
    continuations = tuple(f" {choice.strip()}" for choice in choices)
    right = continuations[gold]
    return Question(prompt, (right,), right, continuations, gold)


def question_prompt(question: str) -> str:
    """Returns the prompt that the question-answering tasks share."""
    return f"Question: {question.strip()}\nAnswer:"


def read_instruction(record: Mapping[str, Any]) -> tuple[str, list[str], str]:
    """Takes an instruction apart: question, numbered options, name of the right answer.

    The field `instruction` reads `Please ..: QUESTION`, then `Answer1: .. Answer2: ..`, then
    `Answer format: ..`; the field `answer` names an option or a truth value.
    """
    body = record["instruction"].partition(": ")[2].rpartition("Answer format:")[0]
    question, *options = re.split(r"\s*\b(?:Answer|Solution)\d+:\s*", body)
    return question.strip(), [option.strip() for option in options], record["answer"].strip()


def option_index(name: str) -> int:
    """Returns the index of an option by its numbered name: `answer3` is 2."""
    return int(re.sub(r"\D", "", name)) - 1


def record_examples(
    task: RecordTask,
    data: str | None,
    *,
    limit: int,
    shots: int | None,
    max_new_tokens: int | None,
    seed: int,
) -> list[PromptExample]:
    """Makes the prompts of a task.

    Args:
        task: The task.
        data: File or folder with its records; the hub where not given.
        limit: Most prompts, chosen at random.
        shots: Solved examples before each prompt; the task's own number for None.
        max_new_tokens: Most tokens of a completion; the task's own number for None.
        seed: Seed of the choice of prompts and of solved examples.

    Returns:
        The prompts, in the order of the records.

    Raises:
        DataError: The records are missing, too few or of another layout.
    """
    records = _load(task, data, task.split)
    chosen = sorted(
        _rng(seed, task, "prompts").sample(range(len(records)), min(limit, len(records)))
    )
    before = _solved_examples(task, data, records, set(chosen), seed, _or(shots, task.shots))
    return [
        PromptExample(
            task=task.name,
            prompt=next(before) + question.prompt,
            answers=question.answers,
            scoring=task.scoring,
            choices=question.choices,
            gold=question.gold,
            unit_tests=question.unit_tests,
            stop=task.stop,
            max_new_tokens=_or(max_new_tokens, task.max_new_tokens),
        )
        for question in (records.question(index) for index in chosen)
    ]


class _Records:
    """Records with names for messages; parsed only where asked for."""

    def __init__(
        self, task: RecordTask, records: Sequence[Any], names: Callable[[int], str]
    ) -> None:
        self._task = task
        self._records = records
        self._names = names

    def __len__(self) -> int:
        return len(self._records)

    def question(self, index: int) -> Question:
        try:
            return self._task.parse(self._records[index])
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise DataError(
                f"{self._names(index)} has not the layout of {self._task.name}:"
                f" {type(error).__name__} {error}"
            ) from error


def _solved_examples(
    task: RecordTask,
    data: str | None,
    records: _Records,
    chosen: set[int],
    seed: int,
    shots: int,
) -> Iterator[str]:
    """Yields the text before each prompt, drawn anew for every one."""
    pool, indices = records, [index for index in range(len(records)) if index not in chosen]
    if shots and _lies_apart(task, data):
        pool = _load(task, data, task.shots_split)
        indices = list(range(len(pool)))
    if len(indices) < shots:
        raise DataError(
            f"{task.name}: {shots} solved examples wanted, {len(indices)} records left; lower shots"
            " or limit"
        )
    rng = random.Random(seed)
    while True:
        questions = [pool.question(index) for index in rng.sample(indices, shots)]
        yield "".join(f"{q.prompt}{q.solution}{task.separator}" for q in questions)


def _lies_apart(task: RecordTask, data: str | None) -> bool:
    """Whether solved examples come from other records than the prompts."""
    if data is None:
        return task.shots_split != task.split
    return _find(data, task.shots_split) != _find(data, task.split)


def _load(task: RecordTask, data: str | None, split: str) -> _Records:
    if data is None:
        hub, config = task.hub
        return _Records(task, load_hub_split(hub, config, split), lambda i: f"{hub}, row {i}")
    path = _find(data, split)
    placed = list(read_records(TextFile(path.name, str(path))))
    if not placed:
        raise DataError(f"{path} holds no record")
    return _Records(task, [record for _, record in placed], lambda i: str(placed[i][0]))


def _find(data: str, split: str) -> Path:
    """Returns the file of a split: the path itself, or the one file in a folder that names it."""
    path = Path(data).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    files = sorted(p for p in path.glob("*") if suffix_of(p.name) in _RECORD_SUFFIXES)
    words = _FILE_WORDS[split]
    named = [p for p in files if not set(re.split(r"[^a-z]+", p.stem.lower())).isdisjoint(words)]
    found = named or files
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "no record file"
        raise DataError(
            f"{path} has {names} where one {split} file is needed; name the file itself"
        )
    return found[0]


def _rng(seed: int, task: RecordTask, purpose: str) -> random.Random:
    return random.Random(f"{seed}/{task.name}/{purpose}")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
