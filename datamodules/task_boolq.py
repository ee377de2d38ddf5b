"""BoolQ: yes-or-no questions, with a passage where the record has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .task_records import (
    Question,
    RecordTask,
    choice_question,
    question_prompt,
    read_instruction,
)

_TRUTH = {"false": 0, "true": 1}


def parse(record: Mapping[str, Any]) -> Question:
    """Makes a question of `passage`, `question` and `answer`, or of an instruction."""
    if "instruction" in record:
        question, _, answer = read_instruction(record)
        passage, gold = "", _TRUTH[answer]
    else:
        question, passage = record["question"], f"{record['passage'].strip()}\n"
        gold = int(record["answer"])
    prompt = passage + question_prompt(f"{question.rstrip(' ?')}?")
    return choice_question(prompt, ("no", "yes"), gold)


BOOLQ = RecordTask(
    name="boolq",
    hub=("google/boolq", None),
    split="validation",
    shots_split="train",
    parse=parse,
)
