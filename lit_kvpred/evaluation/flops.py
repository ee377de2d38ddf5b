"""Floating-point operations of a prompt: as published and as really computed (KVP 5).

A multiplication and an addition count as two. The published numbers are ratios of parameter
counts. The honest ones count every matrix product of the layers that run, attention over the
causal context, the predictor, and the base's own step; they come from running the architecture
without weights under torch's FLOP counter, so that any family is counted as it is built.
"""

from __future__ import annotations

import contextlib
import functools
import json

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lit_kvpred.errors import UnsupportedFamilyError
from lit_kvpred.model.caches import ForwardStopped, RecordingCache
from lit_kvpred.model.configs import keep_layers

_WEIGHT_PRODUCTS = {"aten.mm", "aten.addmm", "aten._grouped_mm"}

# -- honest counts ----------------------------------------------------------------------------


def prefill(config: PreTrainedConfig, n_tokens: int) -> int:
    """FLOPs of an ordinary prefill of ``n_tokens`` with logits of the last row only."""
    layers = _row_flops(_freeze(config), None)
    return (
        n_tokens * layers
        + _attention_flops(config, _n_layers(config), n_tokens)
        + _head_flops(_freeze(config))
    )


def decode_step(config: PreTrainedConfig, context: int) -> int:
    """FLOPs of one decode step whose row sees ``context`` rows, its own included."""
    key = _freeze(config)
    attention = 4 * _attention_width(config) * context * _n_layers(config)
    return _row_flops(key, None) + attention + _head_flops(key)


def tail(base: PreTrainedConfig, n_tokens: int, exact_tail: int, *, depth: int = 0) -> int:
    """FLOPs of the last ``exact_tail`` rows through the layers from ``depth`` on and the head."""
    n_layers = _n_layers(base) - depth
    rows = max(0, n_tokens - exact_tail)
    products = _row_flops(_freeze(base), None) - _lower_row_flops(base, depth)
    attention = _attention_flops(base, n_layers, n_tokens) - _attention_flops(base, n_layers, rows)
    return (n_tokens - rows) * products + attention + _head_flops(_freeze(base))


def kv_prediction(
    base: PreTrainedConfig,
    auxiliary: PreTrainedConfig,
    n_tokens: int,
    *,
    last_layer: int | None,
    predictor_parameters: int,
    exact_tail: int = 1,
) -> int:
    """FLOPs to the first token with rows predicted from a network of its own.

    The auxiliary reads all tokens but the tail, the predictor maps them, the base runs the tail.

    Args:
        base: Configuration of the base.
        auxiliary: Configuration of the auxiliary.
        n_tokens: Prompt tokens, at least 1.
        last_layer: Auxiliary layer whose keys and values are the last ones needed; None where its
            final hidden states are.
        predictor_parameters: Weights and biases of the predictor.
        exact_tail: Rows that the base runs.
    """
    rows = max(0, n_tokens - exact_tail)
    reading = rows * _row_flops(_freeze(auxiliary), last_layer)
    # The last feeding layer ends at its keys and values: it attends to nothing.
    attending = _n_layers(auxiliary) if last_layer is None else last_layer
    reading += _attention_flops(auxiliary, attending, rows)
    return reading + 2 * predictor_parameters * rows + tail(base, n_tokens, exact_tail)


def prefix_prediction(
    base: PreTrainedConfig,
    n_tokens: int,
    *,
    depth: int,
    predictor_parameters: int,
    exact_tail: int = 1,
) -> int:
    """FLOPs to the first token with the base's first ``depth`` layers as auxiliary.

    All tokens pass the shared layers, the tail those above as well; arguments as above.
    """
    rows = max(0, n_tokens - exact_tail)
    reading = n_tokens * _lower_row_flops(base, depth) + _attention_flops(base, depth, n_tokens)
    predicting = 2 * predictor_parameters * rows
    return reading + predicting + tail(base, n_tokens, exact_tail, depth=depth)


def catch_up(base: PreTrainedConfig, rows: int, *, depth: int = 0) -> int:
    """FLOPs of the exact keys and values of ``rows`` prompt rows from layer ``depth`` on."""
    last = _n_layers(base) - 1
    if depth > last:
        return 0
    products = _row_flops(_freeze(base), last) - _lower_row_flops(base, depth)
    return rows * products + _attention_flops(base, last - depth, rows)


def riding(base: PreTrainedConfig, rows: int) -> int:
    """FLOPs of ``rows`` slice rows above `catch_up`: they pass all of the last layer."""
    key = _freeze(base)
    rest = _row_flops(key, None) - _row_flops(key, _n_layers(base) - 1)
    return rows * rest + _attention_flops(base, 1, rows)


def verify(base: PreTrainedConfig, n_tokens: int, drafted: int) -> int:
    """FLOPs of the pass over the last prompt token and ``drafted`` tokens, logits of all."""
    end = n_tokens + drafted
    passed = tail(base, end, drafted + 1)
    return passed + drafted * _head_flops(_freeze(base))


# -- published formulas -----------------------------------------------------------------------


def published_ratio(base_parameters: int, auxiliary_parameters: int) -> float:
    """The published reduction: total parameters of base over auxiliary, nothing else counted."""
    return base_parameters / auxiliary_parameters


def parameter_ratio(
    n_tokens: int, base_parameters: int, auxiliary_parameters: int, predictor_parameters: int
) -> float:
    """Full count by the rule 2P per token: ``N P_B / ((N - 1)(P_A + P_P) + P_B)``."""
    predicted = (n_tokens - 1) * (auxiliary_parameters + predictor_parameters)
    return n_tokens * base_parameters / (predicted + base_parameters)


def random_pruning_ratio(retention: float) -> float:
    """Reduction when a random share of the prompt is kept."""
    return 1 / retention


def static_pruning_ratio(retention: float) -> float:
    """Reduction when a quarter of the layers ranks all tokens and the kept ones are rerun."""
    return 1 / (0.25 + retention)


def lazy_llm_ratio(start: float, end: float) -> float:
    """Reduction of progressive token pruning.

    Full width for 30 % of the depth, a linear fall from ``start`` to ``end`` over 60 %, ``end``
    for the last 10 %.
    """
    return 1 / (0.3 + 0.6 * (start + end) / 2 + 0.1 * end)


# -- counting ---------------------------------------------------------------------------------


def _freeze(config: PreTrainedConfig) -> str:
    return json.dumps({"model_type": config.model_type, **config.to_dict()}, sort_keys=True)


def _n_layers(config: PreTrainedConfig) -> int:
    return config.get_text_config(decoder=True).num_hidden_layers


def _attention_width(config: PreTrainedConfig) -> int:
    text = config.get_text_config(decoder=True)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return text.num_attention_heads * head_dim


def _attention_flops(config: PreTrainedConfig, n_layers: int, n_tokens: int) -> int:
    """Scores and weighted sums over the causal context, ``sum over t of 4 D t`` a layer."""
    return 2 * _attention_width(config) * n_tokens * (n_tokens + 1) * n_layers


def _lower_row_flops(config: PreTrainedConfig, depth: int) -> int:
    return _row_flops(_freeze(keep_layers(config, range(depth))), None) if depth > 0 else 0


@functools.lru_cache(maxsize=32)
def _skeleton(frozen_config: str) -> PreTrainedModel:
    values = json.loads(frozen_config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).eval()


@functools.lru_cache(maxsize=128)
def _row_flops(frozen_config: str, stop_after: int | None) -> int:
    """Weight products of one row through the layers; attention is counted apart."""
    model = _skeleton(frozen_config)
    counter = FlopCounterMode(display=False)
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    try:
        with torch.no_grad(), counter, contextlib.suppress(ForwardStopped):
            model.get_decoder()(ids, cache=RecordingCache(stop_after), use_cache=True)
    except (RuntimeError, NotImplementedError) as error:
        raise UnsupportedFamilyError(
            f"FLOPs of model family '{model.config.model_type}' can't be counted without weights"
        ) from error
    counts = counter.get_flop_counts()["Global"]
    # Products of two activations (attention over the single row) appear as bmm or sdpa.
    return sum(flops for operation, flops in counts.items() if str(operation) in _WEIGHT_PRODUCTS)


@functools.lru_cache(maxsize=32)
def _head_flops(frozen_config: str) -> int:
    head = _skeleton(frozen_config).get_output_embeddings()
    return 2 * head.weight.numel()
