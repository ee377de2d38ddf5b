"""GSM8K: grade-school mathematics, scored by the last number of the completion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .task_records import Question, RecordTask, question_prompt

_CALCULATOR_NOTE = re.compile(r"<<.*?>>")


def parse(record: Mapping[str, Any]) -> Question:
    """Makes a question of `question` and `answer`, whose last line is `#### NUMBER`."""
    solution = _CALCULATOR_NOTE.sub("", record["answer"])
    number = solution.split("####")[1].strip()
    return Question(question_prompt(record["question"]), (number,), f" {solution}")


GSM8K = RecordTask(
    name="gsm8k",
    hub=("openai/gsm8k", "main"),
    split="test",
    shots_split="train",
    parse=parse,
    scoring="last_number",
    shots=5,
    stop=("Question:",),
    max_new_tokens=256,
)
