"""A prompt with what counts as a right answer to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_kvpred.evaluation.unit_tests import UnitTests

Scoring = Literal["exact", "normalised", "last_number", "contains", "choice", "unit_tests"]
"""How a completion is judged: by comparison with the accepted answers (see
`lit_kvpred.evaluation.answers`), or by running it (`lit_kvpred.evaluation.unit_tests`)."""


@dataclass(frozen=True)
class PromptExample:
    """One evaluation prompt.

    Attributes:
        task: Name of the task, for example `gsm8k` or `next_line/256`.
        prompt: Text that the model reads.
        answers: Accepted answers; the right continuation of a choice task, a known solution where
            unit tests judge.
        scoring: How a completion is scored.
        choices: Continuations to choose from, with their leading space, for `choice`.
        gold: Index of the right one in `choices`.
        unit_tests: What judges a completion, for `unit_tests`.
        stop: Texts that end the generation; they are no part of the completion.
        stop_after_text: Leading white space is no part of the completion: stop texts count once
            something visible was written.
        max_new_tokens: Most tokens to generate.
    """

    task: str
    prompt: str
    answers: tuple[str, ...]
    scoring: Scoring
    choices: tuple[str, ...] = ()
    gold: int = 0
    unit_tests: UnitTests | None = None
    stop: tuple[str, ...] = ()
    stop_after_text: bool = False
    max_new_tokens: int = 32

    def __post_init__(self) -> None:
        assert self.answers, f"{self.task}: a prompt needs an accepted answer"
        assert self.scoring != "choice" or 0 <= self.gold < len(self.choices)
        assert (self.scoring == "unit_tests") == (self.unit_tests is not None)
