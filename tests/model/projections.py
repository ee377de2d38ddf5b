"""What a decoder's own projections make of hidden states, read and replaced by plain hooks.

An independent view of raw keys and values: nothing of the package is used to get at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Change = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(layer, raw keys, values)``, merged ``(B, T, width)``, to what shall be used instead."""


@contextmanager
def changed_projections(base: PreTrainedModel, change: Change) -> Iterator[None]:
    """Pass every layer's raw keys and values through ``change`` during the forward."""
    handles = []
    for layer, module in enumerate(_layers(base)):
        handles += _attach(base, module, layer, change)
    assert len(handles) >= base.config.num_hidden_layers
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recorded_projections(base: PreTrainedModel) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """Raw keys and values by layer."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def record(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        seen[layer] = (keys, values)
        return keys, values

    with changed_projections(base, record):
        yield seen


@contextmanager
def replaced_projections(
    base: PreTrainedModel, raw_keys: list[Tensor], values: list[Tensor]
) -> Iterator[None]:
    """Use the given rows in place of the first rows that each layer computes."""

    def replace(layer: int, keys: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        rows = raw_keys[layer].shape[1]
        return (
            torch.cat([raw_keys[layer].to(keys.dtype), keys[:, rows:]], dim=1),
            torch.cat([values[layer].to(own.dtype), own[:, rows:]], dim=1),
        )

    with changed_projections(base, replace):
        yield


def _layers(base: PreTrainedModel) -> nn.ModuleList:
    count = base.config.num_hidden_layers
    (stack,) = [
        m
        for name, m in base.named_modules()
        if isinstance(m, nn.ModuleList) and name.rpartition(".")[2] in ("layers", "h")
    ]
    assert len(stack) == count
    return stack


def _attach(base: PreTrainedModel, layer: nn.Module, index: int, change: Change) -> list:
    parts = {name.rpartition(".")[2]: m for name, m in layer.named_modules()}
    if "k_proj" in parts:
        return _attach_separate(parts["k_proj"], parts["v_proj"], index, change)
    if "c_attn" in parts:  # gpt2: queries, keys, values, each of full width
        fused, unpack = parts["c_attn"], lambda out: out.chunk(3, dim=-1)
        pack = lambda parts_: torch.cat(parts_, dim=-1)  # noqa: E731
    elif "qkv_proj" in parts:  # phi3: all queries, then the fewer keys and values
        config = base.config
        head = config.hidden_size // config.num_attention_heads
        widths = [config.hidden_size] + [config.num_key_value_heads * head] * 2
        fused, unpack = parts["qkv_proj"], lambda out: out.split(widths, dim=-1)
        pack = lambda parts_: torch.cat(parts_, dim=-1)  # noqa: E731
    else:  # gpt_neox: query, key and value of the first head, of the second head, ...
        heads = base.config.num_attention_heads
        fused = parts["query_key_value"]

        def unpack(out: Tensor) -> list[Tensor]:
            return [part.flatten(2) for part in out.unflatten(-1, (heads, 3, -1)).unbind(-2)]

        def pack(parts_: list[Tensor]) -> Tensor:
            return torch.stack([p.unflatten(-1, (heads, -1)) for p in parts_], dim=-2).flatten(2)

    def hook(_module: nn.Module, _inputs: tuple, output: Tensor) -> Tensor:
        queries, keys, values = unpack(output)
        return pack([queries, *change(index, keys, values)])

    return [fused.register_forward_hook(hook)]


def _attach_separate(k_proj: nn.Module, v_proj: nn.Module, index: int, change: Change) -> list:
    def both(hidden: Tensor) -> tuple[Tensor, Tensor]:
        keys = nn.functional.linear(hidden, k_proj.weight, k_proj.bias)
        values = nn.functional.linear(hidden, v_proj.weight, v_proj.bias)
        return change(index, keys, values)

    def key_hook(_module: nn.Module, arguments: tuple, _output: Tensor) -> Tensor:
        return both(arguments[0])[0]

    def value_hook(_module: nn.Module, arguments: tuple, _output: Tensor) -> Tensor:
        return both(arguments[0])[1]

    return [k_proj.register_forward_hook(key_hook), v_proj.register_forward_hook(value_hook)]
