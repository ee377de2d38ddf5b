"""One answer in a process of its own, whose private memory may be limited.

`python -m lit_kvpred.evaluation.limited_run` reads a task as JSON from standard input and writes
what it measured to standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from lit_kvpred.errors import ConfigurationError, KVPredictionError
from lit_kvpred.evaluation.memory import PeakPrivateMemory, reserved_bytes
from lit_kvpred.generation.events import Event, TokenEvent, drain
from lit_kvpred.model.streamed_loading import load_base_unmapped, load_streamed_base
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.model import SiriusModel
from lit_kvpred.sirius.sparsity import CSparse

_OUT_OF_MEMORY = (
    "allocate memory",
    "memory allocation",
    "out of memory",
    "start new thread",
    "bad_alloc",
)
_ABOVE_ANY_PROBABILITY = 1.1


@dataclass(frozen=True)
class LimitedRun:
    """What a process does.

    Attributes:
        base: Folder or hub id.
        dtype: Type to compute in.
        prompt: Token ids.
        new_tokens: Tokens of the answer; end-of-sequence tokens don't end it.
        threads: Of torch.
        streamed: Leave the feed-forward weights in their files; otherwise they are all in memory.
        keep: Share of the neurons of a CSparse draft; None lets the dense base write alone.
        period: Tokens from one check of the draft to the next.
        threshold: Least probability of an accepted drafted token.
        limit: Bytes of private memory (``RLIMIT_DATA``) from the end of the imports on; None for
            no limit.
    """

    base: str
    dtype: str
    prompt: list[int]
    new_tokens: int
    threads: int
    streamed: bool
    keep: float | None
    period: int
    threshold: float
    limit: int | None

    def measure(self) -> dict[str, Any]:
        """Run it in a process of its own.

        Returns:
            ``fits``, and where it does not ``error``. Otherwise ``load_s``, ``ttft_s`` and
            ``token_s`` (mean time a token behind the first); ``aal``; ``checks``;
            ``feed_forward_bytes`` of the whole base as its files hold them; ``prompt_bytes``,
            ``gathered_bytes`` and ``decode_bytes``, read for the prompt, to gather the draft's
            weights and for the tokens behind the first; ``answer``, token ids, and
            ``strict_answer``, the one with all drafts rejected; ``used_bytes`` and
            ``reserved_bytes``, peaks of private memory in use and in all.

        Raises:
            ConfigurationError: If the limit is below what Python and torch need by themselves, or
                the system has none.
            KVPredictionError: If something else than memory fails.
        """
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", __name__],
            input=json.dumps(asdict(self)),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode == 0:
            result: dict[str, Any] = json.loads(ended.stdout)
            if "failure" in result:
                raise KVPredictionError(result["failure"])
            return result
        if self.limit is not None and ended.returncode in (-signal.SIGABRT, -signal.SIGSEGV):
            # Native code that gets no memory ends the process.
            said = [line for line in ended.stderr.splitlines() if _tells_shortage(line)]
            name = signal.Signals(-ended.returncode).name
            return {"fits": False, "error": f"{name}: {said[0].strip() if said else 'no reason'}"}
        raise KVPredictionError(
            f"measuring {self.base} in a process of its own failed with status "
            f"{ended.returncode} ({_last_line(ended.stderr)})"
        )


def _tells_shortage(text: str) -> bool:
    return any(words in text for words in _OUT_OF_MEMORY)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _run(task: LimitedRun) -> dict[str, Any]:
    """Inside that process."""
    torch.set_num_threads(task.threads)
    try:
        if task.limit is not None:
            _limit_memory(task.limit)
        return {"fits": True} | _answer(task)
    except Exception as error:
        shortage = _shortage(error)
        if shortage is not None:
            return {"fits": False, "error": shortage}
        if isinstance(error, KVPredictionError):
            return {"failure": str(error)}
        raise


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:
        resource = None  # type: ignore[assignment]
    needed = reserved_bytes()
    if resource is None or needed is None:
        raise ConfigurationError(
            "private memory can be limited on Linux alone; leave out the limit"
        )
    if limit <= needed:
        raise ConfigurationError(
            f"a limit of {limit / 1e6:.0f} MB is less than the {needed / 1e6:.0f} MB that Python "
            "and torch reserve by themselves; raise it"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _shortage(error: BaseException | None) -> str | None:
    """What an error chain says about memory, if that is its reason."""
    while error is not None:
        text = (str(error).splitlines() or [""])[0]
        if isinstance(error, MemoryError) or _tells_shortage(text):
            return text or type(error).__name__
        error = error.__cause__ or error.__context__
    return None


def _answer(task: LimitedRun) -> dict[str, Any]:
    load = load_streamed_base if task.streamed else load_base_unmapped
    draft = None if task.keep is None else CSparse(task.keep)
    with PeakPrivateMemory() as memory:
        start = time.perf_counter()
        model = SiriusModel(load(task.base, dtype=task.dtype))
        loaded = time.perf_counter() - start
        correction = Correction(task.period, task.threshold, draft=draft)
        # Probes and first calls are no part of an answer.
        _measured_answer(model, replace(task, new_tokens=2), correction)
        answered = _measured_answer(model, task, correction)
    if draft is not None:
        strict = Correction(task.period, _ABOVE_ANY_PROBABILITY, draft=draft)
        answered["strict_answer"] = _measured_answer(model, task, strict)["answer"]
    return answered | {
        "load_s": loaded,
        "used_bytes": memory.used,
        "reserved_bytes": memory.reserved,
    }


def _measured_answer(
    model: SiriusModel, task: LimitedRun, correction: Correction
) -> dict[str, Any]:
    streamed = model.streamed
    read: Callable[[], int] = lambda: 0 if streamed is None else streamed.bytes_read  # noqa: E731
    stream = model.stream(
        torch.tensor([task.prompt]),
        correction=correction,
        max_new_tokens=task.new_tokens,
        eos_ids=(),
    )
    before, outside = read(), 0 if streamed is None else streamed.bytes_outside
    after_prompt: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, TokenEvent) and not after_prompt:
            after_prompt.append(read())

    output = drain(stream, watch)
    gathered = 0 if streamed is None else streamed.bytes_outside - outside
    stats = output.stats
    return {
        "ttft_s": stats.ttft_s,
        "token_s": (stats.total_s - stats.ttft_s) / (stats.new_tokens - 1),
        "aal": stats.aal,
        "checks": len(stats.check_s),
        "feed_forward_bytes": 0 if streamed is None else streamed.n_bytes,
        "prompt_bytes": after_prompt[0] - before,
        "gathered_bytes": gathered,
        "decode_bytes": read() - after_prompt[0] - gathered,
        "answer": output.answers[0],
        "strict_answer": None,
    }


if __name__ == "__main__":
    written = os.dup(sys.stdout.fileno())
    # Whatever a library prints belongs to the errors.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    outcome = _run(LimitedRun(**json.load(sys.stdin)))
    with os.fdopen(written, "w") as results:
        json.dump(outcome, results)
