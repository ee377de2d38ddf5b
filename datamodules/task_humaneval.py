"""HumanEval: bodies of Python functions, scored by running their unit tests (arXiv 2107.03374)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lit_kvpred.evaluation.unit_tests import UnitTests

from .task_records import Question, RecordTask

_FIELDS = ("prompt", "canonical_solution", "test", "entry_point")


def parse(record: Mapping[str, Any]) -> Question:
    """Makes a question of `prompt`, `canonical_solution`, `test` and `entry_point`.

    The prompt ends behind the docstring of a function, the solution is its body.
    """
    prompt, solution, test, name = (_text(record, field) for field in _FIELDS)
    if "def check(" not in test:
        raise ValueError("test defines no check(candidate)")
    if not name.isidentifier():
        raise ValueError(f"entry_point {name!r} is no name of a function")
    tests = UnitTests(before=prompt, after=f"{test}\ncheck({name})\n")
    return Question(prompt, (solution,), solution, unit_tests=tests)


def _text(record: Mapping[str, Any], field: str) -> str:
    if not isinstance(record[field], str):
        raise TypeError(f"{field} is no text")
    return record[field]


HUMANEVAL = RecordTask(
    name="humaneval",
    hub=("openai/openai_humaneval", None),
    split="test",
    shots_split="test",
    parse=parse,
    scoring="unit_tests",
    # What can only begin behind the function: the first five of the paper (Section 2.3), then a
    # decorator and the end of a Markdown block.
    stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n@", "\n```"),
    max_new_tokens=256,
)
