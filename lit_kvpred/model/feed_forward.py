"""The feed-forward part of a decoder layer as neurons that can be counted, chosen and left out.

A neuron is one component of what enters the part's last linear map: ``z = act(x Wg) * (x Wu)`` with
a gate, ``act(x W1)`` without one. Families differ in names and in whether gate and up projection
are one matrix; a probe proves that leaving out neurons means what it should.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lit_kvpred.errors import UnsupportedFamilyError
from lit_kvpred.model.family import FamilyAdapter, find_layers
from lit_kvpred.model.presence import weights_present
from lit_kvpred.model.shallow import shallow_copy

_ACTIVATIONS = ("act_fn", "act", "activation_fn", "gelu_impl", "activation")
_PROBE_ROWS = 3
_FOUND: WeakKeyDictionary[FamilyAdapter, list[FeedForward]] = WeakKeyDictionary()


@dataclass(frozen=True)
class FeedForward:
    """Where the neurons of one layer are.

    Attributes:
        module: The module whose forward computes them.
        entering: Names of the linear maps from hidden states to neurons (gate and up projection).
        leaving: Name of the linear map from neurons to hidden states.
        activation: Name of the activation module, None where there is no such module.
        neurons: Their number.
    """

    module: nn.Module
    entering: tuple[str, ...]
    leaving: str
    activation: str | None
    neurons: int

    @property
    def gated(self) -> bool:
        """Whether a gate's activation multiplies an up projection."""
        width = sum(_sizes(_child(self.module, name))[1] for name in self.entering)
        return width == 2 * self.neurons

    @property
    def parameters(self) -> int:
        """Parameters of the linear maps."""
        return sum(p.numel() for linear in self.linears for p in linear.parameters())

    @property
    def linears(self) -> list[nn.Module]:
        """The linear maps, the leaving one last."""
        return [_child(self.module, name) for name in (*self.entering, self.leaving)]

    @torch.no_grad()
    def compact(self, kept: Tensor) -> nn.Module:
        """A copy with the neurons ``kept`` ``(k,)`` long alone; their weights are gathered.

        Everything else is shared with the module, whose weights stay as they are.
        """
        small = shallow_copy(self.module)
        for name in self.entering:
            linear = _child(self.module, name)
            parts = _sizes(linear)[1] // self.neurons
            rows = torch.cat([kept + part * self.neurons for part in range(parts)])
            small._modules[name] = _selected(linear, rows, outputs=True)
        leaving = _child(self.module, self.leaving)
        small._modules[self.leaving] = _selected(leaving, kept, outputs=False)
        return small

    def with_activation(self, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """A copy whose activation is wrapped.

        Raises:
            UnsupportedFamilyError: If the family has no activation module.
        """
        if self.activation is None:
            raise UnsupportedFamilyError(
                "the activation of this family's feed-forward part is no module, so that neurons "
                "can't be chosen per token; use CSparse"
            )
        changed = shallow_copy(self.module)
        changed._modules[self.activation] = wrap(_child(self.module, self.activation))
        return changed


def feed_forwards(adapter: FamilyAdapter) -> list[FeedForward]:
    """The feed-forward part of every layer.

    Raises:
        UnsupportedFamilyError: If a layer has none of an ordinary kind (mixtures of experts, for
            one), or leaving out neurons of it doesn't mean what it should.
    """
    if adapter not in _FOUND:
        found = locate_feed_forwards(adapter.model)
        _probe(adapter, found[0])
        _FOUND[adapter] = found
    return _FOUND[adapter]


def locate_feed_forwards(model: PreTrainedModel) -> list[FeedForward]:
    """The feed-forward part of every layer, by names and shapes alone: no weight is read.

    Raises:
        UnsupportedFamilyError: If a layer has none of an ordinary kind.
    """
    return [_find(model, layer) for layer in find_layers(model)]


def _find(model: PreTrainedModel, layer: nn.Module) -> FeedForward:
    config = model.config.get_text_config(decoder=True)
    hidden = config.hidden_size
    for name, module in layer.named_modules():
        if "attn" in name or "attention" in name:
            continue
        linears = {n: m for n, m in module.named_children() if isinstance(m, nn.Linear | Conv1D)}
        for leaving, last in linears.items():
            neurons, out = _sizes(last)
            entering = tuple(
                n
                for n, m in linears.items()
                if n != leaving
                and _sizes(m)[0] == hidden
                and _sizes(m)[1] in (neurons, 2 * neurons)
            )
            width = sum(_sizes(linears[n])[1] for n in entering)
            if out == hidden and width in (neurons, 2 * neurons) and leaving == list(linears)[-1]:
                activation = next((a for a in _ACTIVATIONS if a in module._modules), None)
                return FeedForward(module, entering, leaving, activation, neurons)
    raise UnsupportedFamilyError(
        f"model family '{config.model_type}' has no feed-forward part of an ordinary kind in every "
        "layer; leave out the sparse draft"
    )


def _child(module: nn.Module, name: str) -> Any:
    return module._modules[name]


def _sizes(linear: Any) -> tuple[int, int]:
    """Input and output width."""
    first, second = linear.weight.shape
    return (first, second) if isinstance(linear, Conv1D) else (second, first)


def _selected(linear: Any, index: Tensor, *, outputs: bool) -> nn.Module:
    """A copy of a linear map with some of its outputs or inputs alone."""
    small = copy.copy(linear)
    axis = 0 if outputs != isinstance(linear, Conv1D) else 1
    with weights_present(linear):
        held = linear.weight.detach()
        weight = held.index_select(axis, index.to(held.device)).contiguous()
    small._parameters = dict(linear._parameters)
    small._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
    if outputs and linear.bias is not None:
        bias = linear.bias.detach()[index.to(linear.bias.device)]
        small._parameters["bias"] = nn.Parameter(bias, requires_grad=False)
    if isinstance(small, Conv1D):
        small.nf = _sizes(small)[1]
    else:
        small.in_features, small.out_features = _sizes(small)
    return small


@torch.no_grad()
def _probe(adapter: FamilyAdapter, part: FeedForward) -> None:
    """All neurons in another order are the whole; without half of them, so are both halves."""
    if part.module in list(adapter.layers):
        return  # The maps stand in the layer itself, whose forward holds attention as well.
    weight: Tensor = _child(part.module, part.leaving).weight
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, _PROBE_ROWS, adapter.config.hidden_size, generator=generator).to(weight)
    order = torch.arange(part.neurons).flip(0)
    try:
        whole, found = part.module(x), part.compact(order)(x)
    except TypeError as error:
        raise UnsupportedFamilyError(
            f"the feed-forward part of model family '{adapter.family}' takes more than hidden "
            "states; leave out the sparse draft"
        ) from error
    if not torch.allclose(found, whole, atol=1e-3 * float(whole.abs().max()), rtol=1e-3):
        raise UnsupportedFamilyError(
            f"neurons of model family '{adapter.family}' can't be told apart; leave out the sparse "
            "draft"
        )
