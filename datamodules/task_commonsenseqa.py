"""CommonsenseQA: everyday questions with five answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .task_records import Question, RecordTask, choice_question, question_prompt


def parse(record: Mapping[str, Any]) -> Question:
    """Makes a question of the hub's fields or of the original release's nested ones."""
    if isinstance(record["question"], Mapping):
        question = record["question"]["stem"]
        choices = record["question"]["choices"]
        labels = [choice["label"] for choice in choices]
        texts = [choice["text"] for choice in choices]
    else:
        question = record["question"]
        labels, texts = record["choices"]["label"], record["choices"]["text"]
    return choice_question(question_prompt(question), texts, labels.index(record["answerKey"]))


COMMONSENSEQA = RecordTask(
    name="commonsenseqa",
    hub=("tau/commonsense_qa", None),
    split="validation",
    shots_split="train",
    parse=parse,
)
