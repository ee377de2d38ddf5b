"""TriviaQA without its documents, prompted as in the KV Prediction paper (Section 6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .task_records import Question, RecordTask, question_prompt


def parse(record: Mapping[str, Any]) -> Question:
    """Makes a question of the hub's fields or of `question` and `golden_answers`."""
    if "golden_answers" in record:
        aliases = list(record["golden_answers"])
    else:
        answer = record["answer"]
        aliases = [*answer["aliases"], answer["value"]]
    accepted = tuple(dict.fromkeys(aliases))
    return Question(question_prompt(record["question"]), accepted, f" {accepted[0]}")


TRIVIAQA = RecordTask(
    name="triviaqa",
    hub=("mandarjoshi/trivia_qa", "rc.nocontext"),
    split="validation",
    shots_split="train",
    parse=parse,
    scoring="normalised",
    shots=1,
    separator="\n",
    stop=("\n", ".", ","),
    max_new_tokens=24,
)
