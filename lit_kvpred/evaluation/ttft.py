"""Time to first token of the base, of KV Prediction and of the auxiliary alone, side by side.

TTFT is the time from token ids to the first answer token's id on the host. All variants run
interleaved in one process, warmed up at the same shapes.

Two bounds stand beside the measured speed-up. The FLOPs ratio counts arithmetic alone (KVP 5). The
base's step on the last prompt token reads every weight for a single row, which takes its time
whatever the prompt; the *reachable* speed-up counts that step as measured, and all else by
arithmetic at the rate of the base's own prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from lit_kvpred.errors import PromptError, UnsupportedFamilyError
from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.timing import interleaved_seconds, speedup
from lit_kvpred.generation.prefill import exact_prefill
from lit_kvpred.model.caches import GrowingCache, roll_back
from lit_kvpred.model.kv_prediction import KVPredictionModel


@torch.inference_mode()
def measure_ttft(
    model: KVPredictionModel,
    prompt_tokens: Sequence[int],
    *,
    repeats: int = 5,
    batch_size: int = 1,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Measure TTFT at several prompt lengths; entries follow the ``timing`` records of a run.

    Args:
        model: The joined model, timed in eval mode.
        prompt_tokens: Prompt lengths; those beyond the base's positions are an error.
        repeats: Timed rounds of all variants, after one warm-up round.
        batch_size: Prompts at a time.
        seed: Of the random prompts.

    Raises:
        PromptError: If a length exceeds the base's positions.
    """
    was_training = model.training
    model.eval()
    try:
        return [_measure(model, n, repeats, batch_size, seed) for n in prompt_tokens]
    finally:
        model.train(was_training)


def _measure(
    model: KVPredictionModel, n_tokens: int, repeats: int, batch_size: int, seed: int
) -> dict[str, Any]:
    limit = model.adapter.max_positions
    if limit is not None and n_tokens > limit:
        raise PromptError(
            f"can't time a prompt of {n_tokens} tokens: the base has {limit} positions; "
            "leave that length out"
        )
    generator = torch.Generator().manual_seed(seed)
    vocabulary = min(m.get_input_embeddings().num_embeddings for m in _networks(model))
    ids = torch.randint(0, vocabulary, (batch_size, n_tokens), generator=generator)
    ids = ids.to(model.base.device)
    auxiliary = model.auxiliary.adapter
    prompt = exact_prefill(model.adapter, ids[:, :-1]).cache if n_tokens > 1 else GrowingCache()
    variants: dict[str, Callable[[], object]] = {
        "base": lambda: _first_token(exact_prefill(model.adapter, ids).logits),
        "kv_prediction": lambda: _first_token(model.prefill(ids).logits),
        "auxiliary": lambda: _first_token(exact_prefill(auxiliary, ids).logits),
        "decode_step": lambda: _last_token_step(model, ids, prompt),
    }
    synchronise = torch.cuda.synchronize if ids.is_cuda else None
    seconds = interleaved_seconds(variants, repeats=repeats, synchronise=synchronise)
    gain = speedup(seconds["base"], seconds["kv_prediction"])
    counted = count_flops(model, n_tokens)
    reachable = None
    if counted is not None:
        reachable = reachable_speedup(
            seconds["base"].median, seconds["decode_step"].median, counted
        )
    return {
        "prompt_tokens": n_tokens,
        "batch_size": batch_size,
        "threads": torch.get_num_threads(),
        "dtype": str(model.base.dtype).removeprefix("torch."),
        **{name: measured.as_dict() for name, measured in seconds.items()},
        "speedup": gain,
        "flops": counted,
        "speedup_over_ratio": None if counted is None else gain / counted["ratio"],
        "reachable_speedup": reachable,
        "speedup_over_reachable": None if reachable is None else gain / reachable,
    }


def reachable_speedup(base: float, decode_step: float, counted: Mapping[str, float]) -> float:
    """Speed-up if all but the base's last-token step ran at the rate of the base's prefill.

    Args:
        base: Seconds of the base's prefill.
        decode_step: Measured seconds of the base's step on the last prompt token.
        counted: From `count_flops`.
    """
    others = counted["kv_prediction"] - counted["decode_step"]
    return base / (base * others / counted["base"] + decode_step)


def count_flops(model: KVPredictionModel, n_tokens: int) -> dict[str, float] | None:
    """Honest and published FLOPs of a prompt; None for families that can't be counted."""
    base, auxiliary = model.base.config, model.auxiliary.model.config
    try:
        base_flops = flops.prefill(base, n_tokens)
        predicted = flops.kv_prediction(
            base,
            auxiliary,
            n_tokens,
            layer_map=model.predictor.layer_map,
            predictor_parameters=n_parameters(model.predictor),
        )
    except UnsupportedFamilyError:
        return None
    return {
        "base": base_flops,
        "kv_prediction": predicted,
        "decode_step": flops.decode_step(base, n_tokens),
        "ratio": base_flops / predicted,
        "published_ratio": flops.published_ratio(
            n_parameters(model.base), n_parameters(model.auxiliary.model)
        ),
    }


def n_parameters(module: torch.nn.Module) -> int:
    """Parameters of a module, tied ones once."""
    return sum(p.numel() for p in module.parameters())


def _networks(model: KVPredictionModel) -> tuple[Any, Any]:
    return model.base, model.auxiliary.model


def _last_token_step(model: KVPredictionModel, ids: Tensor, prompt: Cache) -> list[int]:
    logits = model.base(ids[:, -1:], cache=prompt, use_cache=True, logits_to_keep=1).logits
    roll_back(prompt, 1)
    return _first_token(logits[:, -1])


def _first_token(logits: Tensor) -> list[int]:
    return logits.argmax(-1).tolist()
