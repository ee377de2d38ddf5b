"""PIQA: everyday physical goals, each with two ways to reach it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .task_records import (
    Question,
    RecordTask,
    choice_question,
    option_index,
    question_prompt,
    read_instruction,
)


def parse(record: Mapping[str, Any]) -> Question:
    """Makes a question of `goal`, `sol1`, `sol2` and `label`, or of an instruction."""
    if "instruction" in record:
        goal, solutions, answer = read_instruction(record)
        return choice_question(question_prompt(goal), solutions, option_index(answer))
    solutions = [record["sol1"], record["sol2"]]
    return choice_question(question_prompt(record["goal"]), solutions, int(record["label"]))


PIQA = RecordTask(
    name="piqa",
    hub=("baber/piqa", None),
    split="validation",
    shots_split="train",
    parse=parse,
)
