"""How much attention each row of a text receives: errors in such rows cost most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.sequences import Sequences


class ReceivedAttention:
    """Sums of attention weights over queries, of the layers that were run.

    Args:
        sequences: Of the forward.
    """

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences
        self._by_layer: dict[int, Tensor] = {}

    def add(self, layer: int, weights: Tensor) -> None:
        """Count the weights ``(B, heads, T, T)`` of a layer."""
        by_query = weights.float().mean(1)
        padding = ~self._sequences.real[:, :, None]
        self._by_layer[layer] = by_query.masked_fill(padding, 0.0).sum(1)

    def mean(self) -> Tensor | None:
        """``(B, T)`` float32, mean over heads and layers; None where no layer told its weights.

        The mean over the real rows of a document is 1: each of its queries has 1 to give.
        """
        if not self._by_layer:
            return None
        return torch.stack(list(self._by_layer.values())).mean(0)


@contextmanager
def attention_received(
    adapter: FamilyAdapter, sequences: Sequences, first_layer: int
) -> Iterator[ReceivedAttention]:
    """Measure attention in one forward of the model over whole sequences.

    The model computes attention step by step meanwhile, since fused kernels keep weights to
    themselves.

    Args:
        adapter: The model's adapter.
        sequences: Of the forward.
        first_layer: Layers below don't count.
    """
    received = ReceivedAttention(sequences)
    square = (*sequences.real.shape, sequences.real.shape[1])

    def listener(layer: int) -> Any:
        def listen(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            for part in output if isinstance(output, tuple) else ():
                fits = isinstance(part, Tensor) and part.ndim == 4
                if fits and (part.shape[0], *part.shape[2:]) == square:
                    received.add(layer, part)

        return listen

    handles = [
        module.register_forward_hook(listener(layer))
        for layer in range(first_layer, adapter.n_layers)
        for module in adapter.layers[layer].modules()
    ]
    implementation = adapter.model.config._attn_implementation
    if implementation != "eager":
        adapter.model.set_attn_implementation("eager")
    try:
        yield received
    finally:
        for handle in handles:
            handle.remove()
        if implementation != "eager":
            adapter.model.set_attn_implementation(implementation)
