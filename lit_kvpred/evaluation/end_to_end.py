"""Whole answers timed side by side: base, predicted prompt, and predicted prompt with correction.

All variants answer the same prompts, interleaved in one process after a warm-up round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.memory import PeakMemory
from lit_kvpred.evaluation.timing import Seconds, interleaved_results
from lit_kvpred.evaluation.ttft import to_first_token
from lit_kvpred.generation.generate import GenerationOutput, generate, generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction

BASE = "base"


@dataclass(frozen=True)
class Variant:
    """One way to answer.

    Attributes:
        name: For tables.
        correction: None stays on the predicted prompt.
    """

    name: str
    correction: Correction | None


@torch.inference_mode()
def measure_answers(
    model: KVPredictionModel,
    prompts: Sequence[Tensor],
    variants: Sequence[Variant],
    *,
    new_tokens: int = 64,
) -> dict[str, Any]:
    """Time whole answers to prompts of one length.

    Args:
        model: The joined model, in eval mode.
        prompts: One ``(1, N)`` long per timed round; all of the same length.
        variants: What to compare with the base.
        new_tokens: Tokens of each answer; end-of-sequence tokens don't end it.

    Returns:
        ``prompt_tokens``, ``new_tokens``, ``threads``, ``dtype`` and under ``variants``, by name
        with ``base`` first: ``ttft_s``, ``total_s``, ``time_to_exact_s``, ``tpot_during_s`` (a
        decode step before the prompt is exact) and ``tpot_after_s``, each with quartiles;
        ``peak_bytes`` of process memory (None where the system can't tell); ``flops``;
        ``same_text``, the share of answers that are the base's; ``drafted`` and ``retracted``
        tokens.

    Raises:
        ConfigurationError: If there is no prompt or lengths differ.
    """
    lengths = {prompt.shape[1] for prompt in prompts}
    if len(lengths) != 1:
        raise ConfigurationError(f"prompts of one length are needed, got lengths {sorted(lengths)}")
    settings = GenerationSettings(max_new_tokens=new_tokens, eos_ids=())
    memory = {name: PeakMemory() for name in [BASE, *(v.name for v in variants)]}

    def answering(
        name: str, answer: Callable[[Tensor], GenerationOutput]
    ) -> Callable[[int], GenerationOutput]:
        def run(round_: int) -> GenerationOutput:
            with memory[name]:
                return answer(prompts[round_ % len(prompts)])

        return run

    def corrected(correction: Correction | None) -> Callable[[Tensor], GenerationOutput]:
        return lambda ids: generate(model, ids, settings=settings, correction=correction)

    runs = {
        BASE: answering(BASE, lambda ids: generate_exact(model.adapter, ids, settings=settings))
    } | {v.name: answering(v.name, corrected(v.correction)) for v in variants}
    outputs = interleaved_results(runs, rounds=len(prompts))
    length = lengths.pop()
    return {
        "prompt_tokens": length,
        "new_tokens": new_tokens,
        "threads": torch.get_num_threads(),
        "dtype": str(model.base.dtype).removeprefix("torch."),
        "variants": {name: _record(model, name, outputs, memory[name], length) for name in outputs},
    }


def _record(
    model: KVPredictionModel,
    name: str,
    outputs: Mapping[str, Sequence[GenerationOutput]],
    memory: PeakMemory,
    n_tokens: int,
) -> dict[str, Any]:
    own = [output.stats for output in outputs[name]]
    pairs = zip(outputs[name], outputs[BASE], strict=True)
    exact = [s.time_to_exact_s for s in own if s.time_to_exact_s is not None]
    counted = [_flops(model, n_tokens, output, predicted=name != BASE) for output in outputs[name]]
    return {
        "ttft_s": _quartiles([s.ttft_s for s in own]),
        "total_s": _quartiles([s.total_s for s in own]),
        "time_to_exact_s": _quartiles(exact),
        "tpot_during_s": _quartiles([t for s in own for t in s.draft_step_s]),
        "tpot_after_s": _quartiles([t for s in own for t in s.exact_step_s]),
        "peak_bytes": memory.bytes,
        "flops": statistics.mean(counted),
        "same_text": statistics.mean(a.answers == b.answers for a, b in pairs),
        "drafted": statistics.mean(s.drafted for s in own),
        "retracted": statistics.mean(s.retracted for s in own),
    }


def _quartiles(seconds: Sequence[float]) -> dict[str, float | int] | None:
    return Seconds(tuple(seconds)).as_dict() if seconds else None


def _flops(
    model: KVPredictionModel, n_tokens: int, output: GenerationOutput, *, predicted: bool
) -> int:
    """FLOPs of one whole answer, from what its statistics say was run."""
    base, stats = model.base.config, output.stats
    if not predicted:
        first, drafts = flops.prefill(base, n_tokens), 0
    else:
        first, drafts = to_first_token(model, n_tokens), len(stats.draft_step_s)
    steps = drafts + len(stats.exact_step_s)
    total = first + sum(flops.decode_step(base, n_tokens + 1 + i) for i in range(steps))
    if predicted and stats.time_to_exact_s is not None:
        depth = model.auxiliary.exact_layers
        total += flops.catch_up(base, n_tokens - 1, depth=depth)
        total += flops.riding(base, stats.riding_rows)
        total += flops.verify(base, n_tokens, stats.drafted)
    return total
