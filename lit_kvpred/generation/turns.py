"""Threads that use one base take turns.

Forwards are steered by hooks on modules that everyone who uses the base shares. So only one of them
computes at a time; between two events of a stream the others have their turn.
"""

from __future__ import annotations

from collections.abc import Generator
from threading import Lock, RLock
from typing import TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from lit_kvpred.generation.events import Event

Output = TypeVar("Output")

# Beside the modules, which are copied and pickled, as locks can't be.
_LOCKS: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()
_REGISTRY = Lock()


def turn_on(base: nn.Module) -> RLock:
    """What to hold, in a ``with`` statement, while ``base`` computes; others wait for it."""
    with _REGISTRY:
        return _LOCKS.setdefault(base, RLock())


def in_turns(
    base: nn.Module, events: Generator[Event, None, Output]
) -> Generator[Event, None, Output]:
    """The same events, computed while no other thread computes on ``base``."""
    turn = turn_on(base)
    try:
        while True:
            with turn:
                try:
                    event = next(events)
                except StopIteration as end:
                    return end.value
            yield event
    finally:
        with turn:
            events.close()
