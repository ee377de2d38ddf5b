"""The next line of a held-out document, after as much of what precedes it as a prompt may hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from lit_kvpred.errors import DataError
from lit_kvpred.evaluation.prompts import PromptExample

from .documents import Document

_SHORTEST_ANSWER = 8
_FILLED = 0.75  # a prompt of fewer tokens would not stand for its length
_COMMENTS = ("#", "//", "/*", "*", "--", ";", "%", "<!--", '"""', "'''")


def next_line_examples(
    documents: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_tokens: Sequence[int],
    limit: int,
    max_new_tokens: int,
    seed: int,
) -> list[PromptExample]:
    """Makes prompts that end with a line, each with the line that follows as its answer.

    A prompt is the longest run of whole lines before the answer that fits, without its last line
    break: tokenizers join a line break with the indentation that follows, so that a prompt cut
    after it would leave the model where no text ever stands. Every length is asked
    about the same lines, so the results of two lengths compare. Answers are neither blank nor a
    comment, have at least 8 characters and fit into `max_new_tokens`. The documents take turns.

    Args:
        documents: Held-out documents.
        tokenizer: The base's tokenizer; its special tokens count.
        prompt_tokens: Most tokens of a prompt, one task for each.
        limit: Most prompts of each length.
        max_new_tokens: Most tokens of a completion.
        seed: Seed of the choice of lines.

    Returns:
        The prompts of tasks `next_line/<tokens>`, all of one length before the next.

    Raises:
        DataError: No held-out document has a long enough run of lines.
    """
    rng = random.Random(f"{seed}/next_line")
    shuffled = rng.sample(documents, len(documents))
    sources = [_points(d, tokenizer, prompt_tokens, max_new_tokens, rng) for d in shuffled]
    points: list[tuple[list[str], str]] = []
    while sources and len(points) < limit:
        source = sources.pop(0)
        if (point := next(source, None)) is not None:
            points.append(point)
            sources.append(source)
    if not points:
        raise DataError(
            f"next_line: none of {len(documents)} held-out documents has a prompt of"
            f" {max(prompt_tokens)} tokens; lower prompt_tokens or name other data"
        )
    return [
        PromptExample(
            task=f"next_line/{length}",
            prompt=prompts[i],
            answers=(answer,),
            scoring="exact",
            stop=("\n",),
            stop_after_text=True,
            max_new_tokens=max_new_tokens,
        )
        for i, length in enumerate(prompt_tokens)
        for prompts, answer in points
    ]


def _points(
    document: Document,
    tokenizer: PreTrainedTokenizerBase,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    rng: random.Random,
) -> Iterator[tuple[list[str], str]]:
    """Yields (a prompt of each length, answer) at a document's usable lines, in random order."""
    lines = [f"{line}\n" for line in document.text.split("\n")]
    counts = [len(ids) for ids in tokenizer(lines, add_special_tokens=False)["input_ids"]]
    before = np.cumsum([0, *counts])
    usable = [
        i
        for i, line in enumerate(lines)
        if before[i] >= _FILLED * max(prompt_tokens)
        and counts[i] <= max_new_tokens
        and _is_answer(line)
    ]
    for i in rng.sample(usable, len(usable)):
        runs = [_longest_run(lines, before, i, length, tokenizer) for length in prompt_tokens]
        prompts = [run for run in runs if run is not None]
        if len(prompts) == len(runs):
            yield prompts, lines[i].removesuffix("\n")


def _longest_run(
    lines: list[str], before: np.ndarray, end: int, length: int, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """Returns the longest run of lines before `end` that fits, if it is nearly as long."""

    def text(start: int) -> str:
        return "".join(lines[start:end]).removesuffix("\n")

    def tokens(start: int) -> int:
        return len(tokenizer(text(start), verbose=False)["input_ids"])

    # Lines tokenised one by one are a close estimate: few steps are left either way.
    start = int(np.searchsorted(before, before[end] - length))
    while start < end and tokens(start) > length:
        start += 1
    while start > 0 and tokens(start - 1) <= length:
        start -= 1
    return text(start) if tokens(start) >= _FILLED * length else None


def _is_answer(line: str) -> bool:
    text = line.strip()
    return len(text) >= _SHORTEST_ANSWER and not text.startswith(_COMMENTS)
