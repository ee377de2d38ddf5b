"""ARC: school science questions with about four answers, in an easy and a hard set."""

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
    """Makes a question of the hub's fields or of an instruction."""
    if "instruction" in record:
        question, options, answer = read_instruction(record)
        return choice_question(question_prompt(question), options, option_index(answer))
    choices = record["choices"]
    gold = choices["label"].index(record["answerKey"])
    return choice_question(question_prompt(record["question"]), choices["text"], gold)


ARC_EASY = RecordTask(
    name="arc_easy",
    hub=("allenai/ai2_arc", "ARC-Easy"),
    split="test",
    shots_split="train",
    parse=parse,
)
ARC_CHALLENGE = RecordTask(
    name="arc_challenge",
    hub=("allenai/ai2_arc", "ARC-Challenge"),
    split="test",
    shots_split="train",
    parse=parse,
)
