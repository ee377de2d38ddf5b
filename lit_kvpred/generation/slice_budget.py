"""How many exact prompt rows should ride on a decode step, from times measured on this machine.

A step with few rows costs hardly more than one without on machines that wait for weights, and
nearly as much as a prefill of these rows on machines that compute. The best number therefore comes
from a measured curve, taken once and kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_kvpred.cache_folder import cache_folder
from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.catch_up import CatchUp
from lit_kvpred.generation.prefill import predicted_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.generation.row_states import RowStates
from lit_kvpred.generation.stopping import StopRule
from lit_kvpred.json_text import parse_json
from lit_kvpred.model.streamed import streamed_of

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel

SLICES = (8, 16, 32, 64, 128, 256)
"""Numbers of rows that are measured; together they fit a prompt of 512 tokens."""
_PASSES = 3


def slice_rows_within(model: KVPredictionModel, tpot_budget: float) -> int | None:
    """The number of rows with the least time a row among those within the budget.

    Args:
        model: The joined model.
        tpot_budget: Longest step with a slice, relative to one without; above 1.

    Returns:
        Rows a step; None where not even the smallest slice fits the budget.
    """
    return cheapest_rows(step_seconds(model), tpot_budget)


def cheapest_rows(seconds: Mapping[int, float], tpot_budget: float) -> int | None:
    """Choose from step times by number of riding rows; ``seconds[0]`` is the plain step."""
    plain = seconds[0]
    allowed = [m for m in seconds if m > 0 and seconds[m] <= tpot_budget * plain]
    return min(allowed, key=lambda m: (seconds[m] - plain) / m, default=None)


def step_seconds(
    model: KVPredictionModel, *, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Median seconds of a decode step by number of riding rows, 0 included.

    Measured once for a model, dtype, device and number of threads; later calls read the file.
    """
    file = cache_folder() / "step_seconds" / f"{_key(model)}.json"
    seconds = _read(file)
    if seconds is not None:
        return seconds
    seconds = _measure(model, clock)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(seconds))
    except OSError:
        pass  # Measured again next time; nothing else depends on the file.
    return seconds


def _read(file: Path) -> dict[int, float] | None:
    try:
        seconds = {int(rows): float(s) for rows, s in parse_json(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return seconds if 0 in seconds else None


@torch.inference_mode()
def _measure(model: KVPredictionModel, clock: Callable[[], float]) -> dict[int, float]:
    samples: dict[int, list[float]] = {0: []}
    length = 1 + sum(SLICES)
    limit = model.adapter.max_positions
    if limit is not None:
        length = min(length, limit - _PASSES * len(SLICES))
    vocabulary = model.adapter.model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (1, max(2, length)), generator=generator)
    ids = ids.to(model.base.device)
    for measured_pass in range(1 + _PASSES):
        catch_up = _started(model, ids)
        for rows in SLICES:
            if rows > catch_up.remaining:
                break
            for m in (0, rows):
                taken = _timed_step(catch_up, m, clock)
                if measured_pass > 0:
                    samples.setdefault(m, []).append(taken)
    return {rows: statistics.median(taken) for rows, taken in samples.items() if taken}


def _started(model: KVPredictionModel, ids: Tensor) -> CatchUp:
    prompt = describe_prompt(model.adapter, ids, None)
    first = predicted_prefill(model, prompt)
    states = RowStates.of_prompt(1, prompt.n_rows, first.predicted_rows)
    rule = StopRule([], 10**9)
    answer = AnswerState(model.adapter, first.cache, prompt.sequences.real, states, rule)
    answer.append(first.logits.argmax(-1))
    return CatchUp(answer, prompt, model.auxiliary.cut, first.hidden)


def _timed_step(catch_up: CatchUp, rows: int, clock: Callable[[], float]) -> float:
    start = clock()
    logits = catch_up.ride(rows) if rows else catch_up.answer.step()
    # The token on the host: asynchronous devices have finished then.
    catch_up.answer.append(logits.argmax(-1))
    return clock() - start


def _key(model: KVPredictionModel) -> str:
    base = model.base
    facts = [
        base.config.to_json_string(use_diff=False),
        model.auxiliary.describe(),
        str(base.dtype),
        str(base.device),
        streamed_of(base) is not None,
        torch.get_num_threads(),
        platform.machine(),
        platform.node(),
    ]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]
