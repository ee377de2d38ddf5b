"""Time to first token of the base, of KV Prediction and of the auxiliary alone, side by side.

TTFT is the time from token ids to the first answer token's id on the host. All variants run
interleaved in one process, warmed up at the same shapes.

Two bounds stand beside the measured speed-up. The FLOPs ratio counts arithmetic alone (KVP 5). The
base's run of the last prompt rows, the tail, reads every weight for hardly any row, which takes its
time whatever the prompt; the *reachable* speed-up counts the tail as measured, and all else by
arithmetic at the rate of the base's own prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_kvpred.errors import PromptError, UnsupportedFamilyError
from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.timing import interleaved_seconds, speedup
from lit_kvpred.generation.prefill import Prefill, exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.model.auxiliary import NetworkAuxiliary
from lit_kvpred.model.caches import GrowingCache, drop_rows
from lit_kvpred.model.exact_tail import ExactTail, tail_rows
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.prefix import PrefixAuxiliary


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
    variants: dict[str, Callable[[], object]] = {
        "base": lambda: _first_token(_exact(model.adapter, ids).logits),
        "kv_prediction": lambda: _first_token(model.prefill(ids).logits),
        "tail": _tail_run(model, ids),
    }
    if isinstance(model.auxiliary, NetworkAuxiliary):
        auxiliary = model.auxiliary.adapter
        variants["auxiliary"] = lambda: _first_token(_exact(auxiliary, ids).logits)
    synchronise = torch.cuda.synchronize if ids.is_cuda else None
    seconds = interleaved_seconds(variants, repeats=repeats, synchronise=synchronise)
    gain = speedup(seconds["base"], seconds["kv_prediction"])
    counted = count_flops(model, n_tokens)
    reachable = None
    if counted is not None:
        reachable = reachable_speedup(seconds["base"].median, seconds["tail"].median, counted)
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


def reachable_speedup(base: float, tail: float, counted: Mapping[str, float]) -> float:
    """Speed-up if all but the tail ran at the rate of the base's prefill.

    Args:
        base: Seconds of the base's prefill.
        tail: Measured seconds of the base's run of the last prompt rows.
        counted: From `count_flops`.
    """
    others = counted["kv_prediction"] - counted["tail"]
    return base / (base * others / counted["base"] + tail)


def count_flops(model: KVPredictionModel, n_tokens: int) -> dict[str, float] | None:
    """Honest and published FLOPs of a prompt; None for families that can't be counted."""
    base = model.base.config
    try:
        base_flops = flops.prefill(base, n_tokens)
        predicted = to_first_token(model, n_tokens)
    except UnsupportedFamilyError:
        return None
    counted: dict[str, float] = {
        "base": base_flops,
        "kv_prediction": predicted,
        "tail": flops.tail(
            base,
            n_tokens,
            tail_rows(model.exact_tail, n_tokens),
            depth=model.auxiliary.exact_layers,
        ),
        "ratio": base_flops / predicted,
    }
    if isinstance(model.auxiliary, NetworkAuxiliary):
        counted["published_ratio"] = flops.published_ratio(
            n_parameters(model.base), n_parameters(model.auxiliary.model)
        )
    return counted


def to_first_token(
    model: KVPredictionModel, n_tokens: int, exact_tail: ExactTail | None = None
) -> int:
    """Honest FLOPs of a predicted prefill.

    Args:
        model: The joined model.
        n_tokens: Length of the prompt.
        exact_tail: Instead of the model's own.

    Raises:
        UnsupportedFamilyError: If the family can't be counted without weights.
    """
    base, auxiliary = model.base.config, model.auxiliary
    parameters = n_parameters(model.predictor)
    tail = tail_rows(model.exact_tail if exact_tail is None else exact_tail, n_tokens)
    if isinstance(auxiliary, PrefixAuxiliary):
        return flops.prefix_prediction(
            base,
            n_tokens,
            depth=auxiliary.exact_layers,
            predictor_parameters=parameters,
            exact_tail=tail,
        )
    features = model.predictor.features
    return flops.kv_prediction(
        base,
        auxiliary.model.config,
        n_tokens,
        last_layer=None if features.reads_hidden else features.last_layer,
        predictor_parameters=parameters,
        exact_tail=tail,
    )


def n_parameters(module: torch.nn.Module) -> int:
    """Parameters of a module, tied ones once."""
    return sum(p.numel() for p in module.parameters())


def _networks(model: KVPredictionModel) -> list[Any]:
    if isinstance(model.auxiliary, NetworkAuxiliary):
        return [model.base, model.auxiliary.model]
    return [model.base]


def _tail_run(model: KVPredictionModel, ids: Tensor) -> Callable[[], object]:
    """The base's run of the last rows alone, on an exact prompt."""
    before = ids.shape[1] - tail_rows(model.exact_tail, ids.shape[1])
    cache = _exact(model.adapter, ids[:, :before]).cache if before else GrowingCache()
    positions = torch.arange(before, ids.shape[1], device=ids.device).expand(len(ids), -1)
    cut = model.auxiliary.cut
    if cut is not None:
        hidden = cut.run_lower(ids[:, before:], cache, position_ids=positions)

        def run_upper() -> list[int]:
            logits = cut.run_upper(hidden, cache, logits_to_keep=1, position_ids=positions)
            drop_rows(cache.layers[cut.depth :], before)
            return _first_token(logits[:, -1])

        return run_upper

    def run() -> list[int]:
        logits = model.base(
            ids[:, before:], position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        ).logits
        drop_rows(cache.layers, before)
        return _first_token(logits[:, -1])

    return run


def _exact(adapter: FamilyAdapter, ids: Tensor) -> Prefill:
    return exact_prefill(adapter, describe_prompt(adapter, ids, None))


def _first_token(logits: Tensor) -> list[int]:
    return logits.argmax(-1).tolist()
