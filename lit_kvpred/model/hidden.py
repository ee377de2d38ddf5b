"""Hidden states on their way through a decoder, read by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lit_kvpred.model.caches import ForwardStopped
from lit_kvpred.model.family import FamilyAdapter


@contextmanager
def hidden_states_entering(
    adapter: FamilyAdapter, layer: int, *, stop: bool = False
) -> Iterator[list[Tensor]]:
    """Collect the hidden states ``(B, T, hidden)`` that enter ``layer`` in the forwards inside.

    Args:
        adapter: The model's adapter.
        layer: From 0; the number of layers means what leaves the decoder, after its final norm.
        stop: Leave the forward there with `ForwardStopped`.
    """
    found: list[Tensor] = []

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])
        if stop:
            raise ForwardStopped

    def leave(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        found.append(output[0])
        if stop:
            raise ForwardStopped

    if layer < adapter.n_layers:
        handle = adapter.layers[layer].register_forward_pre_hook(enter, with_kwargs=True)
    else:
        handle = adapter.decoder.register_forward_hook(leave)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def hidden_states_leaving(adapter: FamilyAdapter, first_layer: int) -> Iterator[dict[int, Tensor]]:
    """Collect by layer the hidden states ``(B, T, hidden)`` that leave it in the forward inside.

    Args:
        adapter: The model's adapter.
        first_layer: Layers below are left out.
    """
    found: dict[int, Tensor] = {}

    def listener(layer: int) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def listen(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            found[layer] = output[0] if isinstance(output, tuple) else output

        return listen

    handles = [
        adapter.layers[layer].register_forward_hook(listener(layer))
        for layer in range(first_layer, adapter.n_layers)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
