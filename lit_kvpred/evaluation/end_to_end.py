"""Whole answers timed side by side: base, predicted prompt, and predicted prompt with correction.

All variants answer the same prompts, interleaved in one process after a warm-up round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.memory import PeakMemory
from lit_kvpred.evaluation.systems import BASE, Variant
from lit_kvpred.evaluation.timing import Seconds, interleaved_results
from lit_kvpred.evaluation.ttft import to_first_token
from lit_kvpred.generation.generate import GenerationOutput
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.metrics import average_advance_length
from lit_kvpred.sirius.sparsity import CSparse, Sparsity


@torch.inference_mode()
def measure_answers(
    model: KVPredictionModel,
    prompts: Sequence[Tensor],
    variants: Sequence[Variant],
    *,
    new_tokens: int = 64,
) -> list[dict[str, Any]]:
    """Time whole answers to prompts of one length.

    Args:
        model: The joined model, in eval mode.
        prompts: One ``(1, N)`` long per timed round; all of the same length.
        variants: What to compare with the base.
        new_tokens: Tokens of each answer; end-of-sequence tokens don't end it.

    Returns:
        A record for ``base`` and for each variant: ``system``, ``slice_rows``, ``prompt_tokens``,
        ``new_tokens``, ``batch_size``, ``threads``, ``dtype``; ``ttft_s``, ``total_s``,
        ``time_to_exact_s``, ``tpot_s`` (all dense decode steps), ``tpot_during_s`` (those before
        the prompt is exact) and ``tpot_after_s``, ``token_s`` (whatever comes after the first
        token, a token), ``sparse_step_s`` and ``check_s`` of sparse drafts, each with quartiles or
        None; ``ttft_ratio``, ``token_ratio`` and ``total_ratio``, quartiles of the ratio to the
        base's time in the same round; ``density`` and ``aal`` of sparse drafts; ``peak_mb`` of
        process memory (None where the system can't tell); ``flops`` (``prefill``, ``total`` and
        ``bound_speedup`` of the first token); ``same_text``, the share of answers that are the
        base's; ``drafted`` and ``retracted`` tokens.

    Raises:
        ConfigurationError: If there is no prompt or lengths differ.
    """
    lengths = {prompt.shape[1] for prompt in prompts}
    if len(lengths) != 1:
        raise ConfigurationError(f"prompts of one length are needed, got lengths {sorted(lengths)}")
    settings = GenerationSettings(max_new_tokens=new_tokens, eos_ids=())
    systems = [Variant(BASE, None), *variants]
    memory = [PeakMemory() for _ in systems]

    def answering(number: int) -> Callable[[int], GenerationOutput]:
        def run(round_: int) -> GenerationOutput:
            ids = prompts[round_ % len(prompts)]
            with memory[number]:
                return systems[number].answer(model, ids, settings=settings)

        return run

    runs = {str(number): answering(number) for number in range(len(systems))}
    outputs = list(interleaved_results(runs, rounds=len(prompts)).values())
    (length,) = lengths
    shared = {
        "prompt_tokens": length,
        "new_tokens": new_tokens,
        "batch_size": 1,
        "threads": torch.get_num_threads(),
        "dtype": str(model.base.dtype).removeprefix("torch."),
    }
    return [
        {"system": variant.system, "slice_rows": variant.slice_rows}
        | shared
        | _measures(model, variant, own, outputs[0], used, length)
        for variant, own, used in zip(systems, outputs, memory, strict=True)
    ]


def _measures(
    model: KVPredictionModel,
    variant: Variant,
    outputs: Sequence[GenerationOutput],
    references: Sequence[GenerationOutput],
    memory: PeakMemory,
    n_tokens: int,
) -> dict[str, Any]:
    own = [output.stats for output in outputs]
    base = [output.stats for output in references]
    exact = [s.time_to_exact_s for s in own if s.time_to_exact_s is not None]
    steps = [[*s.draft_step_s, *s.exact_step_s] for s in own]
    predicted = not variant.exact_prompt
    draft = variant.draft
    width = 1 if variant.correction is None else variant.correction.tree_width
    first = (
        to_first_token(model, n_tokens) if predicted else flops.prefill(model.base.config, n_tokens)
    )
    rest = statistics.mean(
        _flops_after_first(model, n_tokens, s, predicted, draft, width) for s in own
    )
    return {
        "ttft_s": _quartiles([s.ttft_s for s in own]),
        "ttft_ratio": _quartiles([a.ttft_s / b.ttft_s for a, b in zip(own, base, strict=True)]),
        "total_s": _quartiles([s.total_s for s in own]),
        "total_ratio": _quartiles([a.total_s / b.total_s for a, b in zip(own, base, strict=True)]),
        "time_to_exact_s": _quartiles(exact),
        "tpot_s": _quartiles([t for taken in steps for t in taken]),
        "tpot_during_s": _quartiles([t for s in own for t in s.draft_step_s]),
        "tpot_after_s": _quartiles([t for s in own for t in s.exact_step_s]),
        "token_s": _quartiles([(s.total_s - s.ttft_s) / (s.new_tokens - 1) for s in own]),
        "token_ratio": _quartiles(
            [
                (a.total_s - a.ttft_s) / (b.total_s - b.ttft_s)
                for a, b in zip(own, base, strict=True)
            ]
        ),
        "sparse_step_s": _quartiles([t for s in own for t in s.sparse_step_s]),
        "check_s": _quartiles([t for s in own for t in s.check_s]),
        "aal": _mean_advance(own),
        "density": variant.density(model),
        "peak_mb": None if memory.bytes is None else memory.bytes / 1e6,
        "flops": {
            "prefill": first,
            "total": first + rest,
            "bound_speedup": flops.prefill(model.base.config, n_tokens) / first,
        },
        "same_text": statistics.mean(
            a.answers == b.answers for a, b in zip(outputs, references, strict=True)
        ),
        "drafted": statistics.mean(s.drafted for s in own),
        "retracted": statistics.mean(s.retracted for s in own),
    }


def _quartiles(values: Sequence[float]) -> dict[str, float | int] | None:
    return Seconds(tuple(values)).as_dict() if values else None


def _flops_after_first(
    model: KVPredictionModel,
    n_tokens: int,
    stats: GenerationStats,
    predicted: bool,
    draft: Sparsity | None,
    width: int,
) -> int:
    """FLOPs of one answer behind its first token, from what its statistics say was run."""
    base = model.base.config
    checks = len(stats.check_s)
    # The first step of a tree runs its root alone; all its nodes are judged.
    sparse = checks + (len(stats.sparse_step_s) - checks) * width
    judged = len(stats.sparse_step_s) * width
    steps = len(stats.draft_step_s) + len(stats.exact_step_s) + sparse
    total = sum(flops.decode_step(base, n_tokens + 1 + i) for i in range(steps))
    if predicted and stats.time_to_exact_s is not None:
        depth = model.auxiliary.exact_layers
        total += flops.catch_up(base, n_tokens - 1, depth=depth)
        total += flops.riding(base, stats.riding_rows)
        total += flops.verify(base, n_tokens, 1 + len(stats.draft_step_s))
        if isinstance(draft, CSparse):
            # Neurons of the last layer are counted, so that its rows pass all of it.
            total += flops.riding(base, n_tokens - 1 - stats.riding_rows)
    if isinstance(draft, CSparse):
        total -= round(2 * sparse * model.sparse_base.unused_parameters(draft))
    if checks:
        total += flops.verify(base, n_tokens, judged) + (checks - 1) * flops.verify(
            base, n_tokens, 0
        )
    return total


def _mean_advance(stats: Sequence[GenerationStats]) -> float | None:
    advances = [advance for s in stats for advance in s.advances]
    return average_advance_length(advances) if advances else None
