"""Threads on one base: each gets the answers that it would get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from lit_kvpred import Correction, CSparse, KVPredictionModel, SiriusModel, build_auxiliary
from lit_kvpred.errors import PromptError
from lit_kvpred.generation.events import Event
from lit_kvpred.generation.turns import in_turns, turn_on
from tests.tiny_models import random_ids, tiny_model

THREADS = 4


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
def test_threads_answer_as_if_alone(kind):
    base = tiny_model("llama")
    model = KVPredictionModel(base, build_auxiliary(base, kind, keep=0.5), exact_tail=2)
    sirius = SiriusModel(base)
    sparse = Correction(period=3, draft=CSparse(0.5))
    ways = [
        lambda ids: model.generate(ids, max_new_tokens=12, correction=Correction(period=4)),
        lambda ids: model.generate(
            ids, max_new_tokens=12, correction=Correction(policy="retract", slice_rows=2)
        ),
        lambda ids: model.generate(ids, max_new_tokens=12, correction=sparse),
        lambda ids: sirius.generate(ids, max_new_tokens=12, correction=sparse),
    ]
    prompts = [random_ids(1, n) for n in (5, 9, 14, 23)]
    alone = [way(ids).answers for way, ids in zip(ways, prompts, strict=True)]
    start = Barrier(THREADS)

    def work(place: int) -> list[list[list[int]]]:
        start.wait()
        return [ways[place](prompts[place]).answers for _ in range(5)]

    with ThreadPoolExecutor(THREADS) as threads:
        together = list(threads.map(work, range(THREADS)))
    assert together == [[answers] * 5 for answers in alone]


def test_a_turn_ends_with_each_event_and_with_the_stream():
    base = torch.nn.Linear(1, 1)
    closed: list[bool] = []

    def events():
        try:
            yield Event
            yield Event
        finally:
            closed.append(True)

    def take() -> bool:
        free = turn_on(base).acquire(timeout=1)
        if free:
            turn_on(base).release()
        return free

    def is_free() -> bool:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(take).result()

    stream = in_turns(base, events())
    next(stream)
    assert is_free()
    stream.close()
    assert closed
    with turn_on(base):
        assert not is_free()


def test_a_failed_prompt_leaves_the_turn_to_others():
    base = tiny_model("llama")
    model = KVPredictionModel(base, build_auxiliary(base, "prefix", keep=0.5))
    with pytest.raises(PromptError):
        model.generate(torch.zeros(1, 0, dtype=torch.long))
    with ThreadPoolExecutor(1) as thread:
        output = thread.submit(lambda: model.generate(random_ids(1, 4), max_new_tokens=2)).result()
    assert len(output.answers[0]) == 2
