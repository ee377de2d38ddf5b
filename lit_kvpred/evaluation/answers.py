"""Scores of completions in [0, 1]: compared with accepted answers, or run with their unit tests."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from torchmetrics.functional.text import edit_distance

from .prompts import PromptExample
from .unit_tests import passes

# A minus belongs to the number unless it stands between two: "5-3" ends in 3.
_NUMBER = re.compile(r"(?:(?<![\w.])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Returns the text in lower case, without ASCII punctuation, single-spaced and stripped."""
    return " ".join(text.lower().translate(_WITHOUT_PUNCTUATION).split())


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the prediction is an accepted answer, surrounding whitespace aside."""
    return prediction.strip() in {answer.strip() for answer in answers}


def normalised_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the prediction is an accepted answer, case, punctuation and spacing aside."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def last_number_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the last number of the prediction equals that of an accepted answer.

    Numbers are compared by value: "1,200.0" is 1200. Without a number nothing matches.
    """
    number = _last_number(prediction)
    return number is not None and number in {_last_number(answer) for answer in answers}


def contains_answer(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the normalised prediction contains the whole words of an accepted answer."""
    words = f" {normalise(prediction)} "
    normalised = (normalise(answer) for answer in answers)
    return any(f" {answer} " in words for answer in normalised if answer)


def edit_similarity(a: str, b: str) -> float:
    """Returns 1 minus the Levenshtein distance over the longer length; 1 for two empty texts."""
    longest = max(len(a), len(b))
    return 1.0 - float(edit_distance(a, b)) / longest if longest else 1.0


def cut_at_stop(completion: str, stop: Sequence[str]) -> str:
    """Returns the completion up to the first place where one of the stop texts begins."""
    places = [place for text in stop if (place := completion.find(text)) >= 0]
    return completion[: min(places)] if places else completion


def completed_text(example: PromptExample, completion: str) -> str:
    """Returns what of a completion counts: up to the first stop text, as the example asks for."""
    text = completion.lstrip() if example.stop_after_text else completion
    return cut_at_stop(text, example.stop)


_MATCHES: dict[str, Callable[[str, Iterable[str]], bool]] = {
    "exact": exact_match,
    "normalised": normalised_match,
    "last_number": last_number_match,
    "contains": contains_answer,
    "choice": exact_match,
}


def score(example: PromptExample, completion: str) -> float:
    """Scores a completion as the example asks for.

    Args:
        example: The prompt and its accepted answers.
        completion: What was generated after the prompt; for `choice` the continuation chosen.

    Returns:
        1.0 for a right answer, 0.0 for a wrong one.

    Raises:
        ConfigurationError: Unit tests judge, and the user has not allowed them to run.
    """
    text = completed_text(example, completion)
    if example.unit_tests is not None:
        return float(passes(example.unit_tests, text))
    return float(_MATCHES[example.scoring](text, example.answers))


def _last_number(text: str) -> Decimal | None:
    numbers = _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None
