"""Fair wall-clock comparison: variants take turns, so that drift of the machine hits them all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from lit_kvpred.errors import ConfigurationError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Seconds:
    """Wall-clock samples of one variant, in the order in which they were taken.

    Attributes:
        samples: Seconds of each counted run; at least one.
    """

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("Expected argument `samples` to hold at least one time, but got none")

    @property
    def n(self) -> int:
        """Counted runs."""
        return len(self.samples)

    @property
    def median(self) -> float:
        """Median in seconds."""
        return statistics.median(self.samples)

    @property
    def q25(self) -> float:
        """First quartile in seconds, interpolated linearly between samples."""
        return self._quartiles()[0]

    @property
    def q75(self) -> float:
        """Third quartile in seconds, interpolated linearly between samples."""
        return self._quartiles()[2]

    def as_dict(self) -> dict[str, float | int]:
        """`median`, `q25` and `q75` in seconds, and `n`: the form of every result file."""
        return {"median": self.median, "q25": self.q25, "q75": self.q75, "n": self.n}

    def _quartiles(self) -> list[float]:
        if self.n == 1:
            return [self.samples[0]] * 3
        return statistics.quantiles(self.samples, n=4, method="inclusive")


def interleaved_seconds(
    variants: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 5,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    synchronise: Callable[[], object] | None = None,
) -> dict[str, Seconds]:
    """Time callables that take turns: A B C, then B C A, then C A B, and so on.

    The order moves on by one each round, so that no variant is always first or always runs on the
    caches that the same other one left behind. Garbage collection is off meanwhile; results are
    dropped outside the measured span.

    Args:
        variants: Name and callable of each variant.
        repeats: Counted rounds, at least 1.
        warmup: Rounds before that which are run but not counted.
        clock: Returns the time in seconds.
        synchronise: Waits for an asynchronous device, before each start and each end
            (see `synchroniser`).

    Returns:
        For each name, in the order of `variants`, its `repeats` samples.

    Raises:
        ConfigurationError: If there is no variant, no counted round or a negative warm-up.

    Example:
        >>> ticks = iter([0.0, 1.0, 1.0, 4.0])
        >>> seconds = interleaved_seconds(
        ...     {"a": list, "b": dict}, repeats=1, warmup=0, clock=lambda: next(ticks)
        ... )
        >>> speedup(seconds["b"], seconds["a"])
        3.0
    """
    _check_rounds(variants, repeats, warmup)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    with _garbage_collection_off():
        for _ in range(warmup):
            for variant in variants.values():
                _elapsed(variant, clock, synchronise)
        for _, name in _turns(list(variants), repeats):
            samples[name].append(_elapsed(variants[name], clock, synchronise))
    return {name: Seconds(tuple(taken)) for name, taken in samples.items()}


def interleaved_results(
    variants: Mapping[str, Callable[[int], Result]], *, rounds: int, warmup: int = 1
) -> dict[str, list[Result]]:
    """What callables return that time themselves, taking turns as in `interleaved_seconds`.

    Args:
        variants: Name and callable of each variant; it gets the number of the round.
        rounds: Counted rounds, at least 1.
        warmup: Rounds before that whose results are dropped.

    Raises:
        ConfigurationError: If there is no variant, no counted round or a negative warm-up.
    """
    _check_rounds(variants, rounds, warmup)
    results: dict[str, list[Result]] = {name: [] for name in variants}
    with _garbage_collection_off():
        for round_ in range(warmup):
            for variant in variants.values():
                variant(round_)
        for round_, name in _turns(list(variants), rounds):
            results[name].append(variants[name](round_))
    return results


def _turns(names: list[str], rounds: int) -> Iterator[tuple[int, str]]:
    for round_ in range(rounds):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            yield round_, name


def speedup(base: Seconds, other: Seconds) -> float:
    """How many times faster `other` is than `base`: the ratio of their medians."""
    return base.median / other.median


def paired_speedup(base: Seconds, other: Seconds) -> float:
    """Median over the rounds of the ratio within each round; robust to drift across rounds.

    Args:
        base: Samples of the slower variant by convention.
        other: Samples from the same call of `interleaved_seconds`.

    Returns:
        The median ratio; above 1 where `other` is faster.

    Raises:
        ValueError: If the two do not have the same number of samples.
    """
    if base.n != other.n:
        raise ValueError(f"Expected samples of the same rounds, but got {base.n} and {other.n}")
    return statistics.median(
        slow / fast for slow, fast in zip(base.samples, other.samples, strict=True)
    )


def synchroniser(device: torch.device | str) -> Callable[[], object] | None:
    """What `interleaved_seconds` has to call so that `device` has finished, None for the CPU."""
    device = torch.device(device)
    if device.type == "cpu":
        return None
    return partial(torch.accelerator.synchronize, device)


def _elapsed(
    variant: Callable[[], object],
    clock: Callable[[], float],
    synchronise: Callable[[], object] | None,
) -> float:
    if synchronise is not None:
        synchronise()
    start = clock()
    # Kept until the clock has been read: freeing a cache is not part of the work.
    result = variant()
    if synchronise is not None:
        synchronise()
    end = clock()
    del result
    return end - start


def _check_rounds(variants: Mapping[str, object], repeats: int, warmup: int) -> None:
    if not variants:
        raise ConfigurationError("there is nothing to time; name at least one variant")
    if repeats < 1:
        raise ConfigurationError(f"repeats is {repeats}; timing needs at least 1")
    if warmup < 0:
        raise ConfigurationError(f"warmup is {warmup}; use 0 for no warm-up")


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
