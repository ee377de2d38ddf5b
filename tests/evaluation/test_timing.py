"""Interleaved timing with a fake clock: exact durations, exact call order."""

import doctest
import gc
import weakref

import numpy as np
import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation import timing
from lit_kvpred.evaluation.timing import Seconds, interleaved_seconds, paired_speedup, speedup


class Machine:
    """A clock that only variants move, and a record of what happened in which order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[str] = []

    def clock(self) -> float:
        return self.now

    def variant(self, name: str, durations: list[float]):
        remaining = iter(durations)

        def run() -> None:
            self.events.append(name)
            self.now += next(remaining)

        return run


def test_variants_take_turns_and_the_order_moves_on():
    machine = Machine()
    variants = {name: machine.variant(name, [1.0] * 4) for name in "ABC"}
    interleaved_seconds(variants, repeats=3, warmup=1, clock=machine.clock)
    assert "".join(machine.events) == "ABC" + "ABC" + "BCA" + "CAB"


def test_each_sample_is_the_time_of_its_own_call_and_warm_up_is_not_counted():
    machine = Machine()
    variants = {
        "base": machine.variant("base", [100.0, 4.0, 8.0, 6.0]),
        "other": machine.variant("other", [50.0, 2.0, 1.0, 3.0]),
    }
    seconds = interleaved_seconds(variants, repeats=3, warmup=1, clock=machine.clock)
    assert list(seconds) == ["base", "other"]
    assert seconds["base"].samples == (4.0, 8.0, 6.0)
    assert seconds["other"].samples == (2.0, 1.0, 3.0)


def test_no_warm_up():
    machine = Machine()
    seconds = interleaved_seconds(
        {"A": machine.variant("A", [7.0])}, repeats=1, warmup=0, clock=machine.clock
    )
    assert seconds["A"].samples == (7.0,)


def test_synchronises_before_the_start_and_before_the_end_of_each_span():
    machine = Machine()

    def clock() -> float:
        machine.events.append("clock")
        return machine.now

    def synchronise() -> None:
        machine.events.append("wait")
        machine.now += 10.0

    seconds = interleaved_seconds(
        {"A": machine.variant("A", [1.0])},
        repeats=1,
        warmup=0,
        clock=clock,
        synchronise=synchronise,
    )
    assert machine.events == ["wait", "clock", "A", "wait", "clock"]
    # What the device still had to do belongs to the call; what came before it does not.
    assert seconds["A"].samples == (11.0,)


def test_results_are_alive_until_the_clock_is_read_and_dropped_afterwards():
    class Cache:
        pass

    alive: list[bool] = []
    last: list[weakref.ref] = []

    def run() -> Cache:
        cache = Cache()
        last.append(weakref.ref(cache))
        return cache

    def clock() -> float:
        alive.append(bool(last) and last[-1]() is not None)
        return 0.0

    interleaved_seconds({"A": run}, repeats=2, warmup=0, clock=clock)
    assert alive == [False, True, False, True]


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_off_while_timing_and_restored_after_an_error(was_enabled):
    seen: list[bool] = []

    def run() -> None:
        seen.append(gc.isenabled())
        if len(seen) == 3:
            raise RuntimeError("out of memory")

    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            interleaved_seconds({"A": run}, repeats=5)
        assert seen == [False, False, False]
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("samples", [(3.0,), (1.0, 4.0), (5.0, 1.0, 2.0, 9.0, 4.0)])
def test_quartiles_are_those_of_numpy(samples):
    seconds = Seconds(samples)
    q25, median, q75 = np.quantile(samples, [0.25, 0.5, 0.75])
    assert seconds.as_dict() == pytest.approx(
        {"median": median, "q25": q25, "q75": q75, "n": len(samples)}
    )


def test_speedup_is_the_ratio_of_medians_and_paired_the_median_of_ratios():
    base = Seconds((10.0, 12.0, 40.0))
    other = Seconds((5.0, 4.0, 20.0))
    assert speedup(base, other) == pytest.approx(12.0 / 5.0)
    assert paired_speedup(base, other) == pytest.approx(2.0)


def test_paired_speedup_needs_samples_of_the_same_rounds():
    with pytest.raises(ValueError, match="got 2 and 1"):
        paired_speedup(Seconds((1.0, 2.0)), Seconds((1.0,)))


def test_seconds_without_samples_are_refused():
    with pytest.raises(ValueError, match="at least one time"):
        Seconds(())


@pytest.mark.parametrize(
    ("variants", "repeats", "warmup", "message"),
    [
        ({}, 5, 1, "at least one variant"),
        ({"A": list}, 0, 1, "repeats is 0"),
        ({"A": list}, 5, -1, "warmup is -1"),
    ],
)
def test_settings_are_checked(variants, repeats, warmup, message):
    with pytest.raises(ConfigurationError, match=message):
        interleaved_seconds(variants, repeats=repeats, warmup=warmup)


def test_synchroniser_waits_for_an_accelerator_and_not_for_the_cpu(monkeypatch):
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert timing.synchroniser("cpu") is None
    wait = timing.synchroniser("cuda:1")
    assert wait is not None
    wait()
    assert waited == [torch.device("cuda", 1)]


def test_examples_in_the_docstrings():
    outcome = doctest.testmod(timing)
    assert outcome.attempted > 0
    assert outcome.failed == 0
