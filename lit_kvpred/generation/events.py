"""What happens while an answer is being written, in the order it happens."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True)
class TokenEvent:
    """A token is shown.

    Attributes:
        row: Batch entry.
        token: Token id.
        exact: Whether it is known to be the exact base's.
    """

    row: int
    token: int
    exact: bool


@dataclass(frozen=True)
class RetractionEvent:
    """The last ``count`` shown tokens of batch entry ``row`` are taken back."""

    row: int
    count: int


@dataclass(frozen=True)
class ExactEvent:
    """From here on cache and text are the exact base's."""


Event = TokenEvent | RetractionEvent | ExactEvent

Output = TypeVar("Output")


def drain(
    events: Generator[Event, None, Output], handle: Callable[[Event], None] | None = None
) -> Output:
    """Run a stream to its end, handing each event to ``handle``; returns the stream's value."""
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            return end.value
        if handle is not None:
            handle(event)
