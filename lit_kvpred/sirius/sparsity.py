"""Contextual sparsity of feed-forward parts: which neurons a draft keeps (Sirius 2).

Attention, embeddings, norms and head stay dense, and so does everything that is not a draft. The
base is never changed: a sparse base is a shallow copy that shares all but the chosen neurons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_kvpred.checks import require_number
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.feed_forward import FeedForward, feed_forwards
from lit_kvpred.model.shallow import replace_module, shallow_copy


class Sparsity(ABC):
    """Which share of the feed-forward neurons a draft uses, and how they are chosen."""

    keep: float

    @abstractmethod
    def __init__(self, keep: float) -> None: ...

    def __post_init__(self) -> None:
        require_number("sparsity keep", self.keep, above=0, most=1)


@dataclass(frozen=True)
class CSparse(Sparsity):
    """Neurons chosen once a prompt by their share in its activations (Sirius 2.2).

    Attributes:
        keep: Share of the neurons of each layer that a draft uses.

    Raises:
        ConfigurationError: If the share is out of range.
    """

    keep: float = 0.5


@dataclass(frozen=True)
class FSparse(Sparsity):
    """Neurons chosen for each token by the size of their gate's activation (Sirius 2.3).

    What is dropped is multiplied by zero, not skipped: it shows what such a draft would be worth
    and saves no time here.

    Attributes:
        keep: Share of the neurons of each layer that a token uses.

    Raises:
        ConfigurationError: If the share is out of range.
    """

    keep: float = 0.5


DRAFTS: Mapping[str, type[CSparse] | type[FSparse]] = {"csparse": CSparse, "fsparse": FSparse}
"""Kinds of sparsity by their names in commands."""


def kept_neurons(keep: float, neurons: int) -> int:
    """Number of neurons of a layer that are kept, at least one."""
    return max(1, int(neurons * keep))


class NeuronStatistics:
    """Sums over exact tokens of ``z^2 / |z|^2`` for every neuron of every layer, in float32.

    The root of a sum is the statistic of CSparse, and the order is the same without it. Sums of
    slices add up to those of the whole prompt.

    Attributes:
        squares: ``(neurons,)`` a layer, over all prompts of a batch.
        tokens: Tokens counted, a layer.
    """

    def __init__(self, parts: Sequence[FeedForward]) -> None:
        self.parts = list(parts)
        self.squares = [torch.zeros(part.neurons) for part in parts]
        self.tokens = [0] * len(self.parts)

    @contextmanager
    def recording(self, real: Tensor, layers: slice = slice(None)) -> Iterator[None]:
        """Count the tokens that pass ``layers`` in the forwards inside.

        Args:
            real: ``(B, T)`` bool, the rows of a forward to count; further rows are left out.
            layers: Others count nothing.
        """
        handles = []
        for layer in range(*layers.indices(len(self.parts))):
            part = self.parts[layer]

            def add(_: nn.Module, args: tuple[Any, ...], layer: int = layer) -> None:
                self._add(layer, args[0], real)

            leaving: Any = part.module._modules[part.leaving]
            handles.append(leaving.register_forward_pre_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(self, layer: int, z: Tensor, real: Tensor) -> None:
        rows = z.reshape(*real.shape[:1], -1, z.shape[-1])[:, : real.shape[1]][real].float()
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        self.squares[layer] += rows.square().sum(0).to(self.squares[layer])
        self.tokens[layer] += len(rows)

    def choose(self, keep: float) -> list[Tensor]:
        """The neurons of each layer with the largest sums, in ascending order."""
        return [
            sums.topk(kept_neurons(keep, len(sums))).indices.sort().values for sums in self.squares
        ]


def counting(
    statistics: NeuronStatistics | None, real: Tensor, layers: slice = slice(None)
) -> AbstractContextManager[None]:
    """`NeuronStatistics.recording`, or nothing where nobody asks for statistics."""
    return nullcontext() if statistics is None else statistics.recording(real, layers)


class SparseBase:
    """Makes sparse copies of a base.

    Args:
        adapter: The base's adapter.

    Raises:
        UnsupportedFamilyError: If its feed-forward parts are of no ordinary kind.
    """

    def __init__(self, adapter: FamilyAdapter) -> None:
        self.adapter = adapter
        self.parts = feed_forwards(adapter)

    def by_prompt(self, statistics: NeuronStatistics, sparsity: CSparse) -> PreTrainedModel:
        """The base with the neurons that mattered for a prompt alone; their weights are copied."""
        chosen = statistics.choose(sparsity.keep)
        return self._with([part.compact(k) for part, k in zip(self.parts, chosen, strict=True)])

    def by_token(self, sparsity: FSparse) -> PreTrainedModel:
        """The base with the largest gate activations of each token alone.

        Raises:
            UnsupportedFamilyError: If the family's activation is no module.
        """
        return self._with(
            [
                part.with_activation(lambda act: _LargestOnly(act, sparsity.keep))
                for part in self.parts
            ]
        )

    def density(self, sparsity: Sparsity) -> float:
        """Share of the base's parameters that a sparse step uses (Sirius 2.4).

        ``1 - (1 - keep) s`` with s the feed-forward parts' share; for FSparse gates stay dense.
        """
        total = sum(p.numel() for p in self.adapter.model.parameters())
        return 1 - self.unused_parameters(sparsity) / total

    def unused_parameters(self, sparsity: Sparsity) -> float:
        """Parameters of the base that a sparse step has no use for."""
        unused = 0.0
        for part in self.parts:
            share = 1 - kept_neurons(sparsity.keep, part.neurons) / part.neurons
            if isinstance(sparsity, FSparse):
                share *= 2 / 3 if part.gated else 1 / 2
            unused += share * part.parameters
        return unused

    def _with(self, modules: Sequence[nn.Module]) -> PreTrainedModel:
        layers = [
            module if part.module is layer else _with_part(layer, part.module, module)
            for layer, part, module in zip(self.adapter.layers, self.parts, modules, strict=True)
        ]
        model: PreTrainedModel = shallow_copy(self.adapter.model)
        replace_module(model, self.adapter.model, self.adapter.layers, nn.ModuleList(layers))
        return model


def _with_part(layer: nn.Module, module: nn.Module, replacement: nn.Module) -> nn.Module:
    copied: nn.Module = shallow_copy(layer)
    replace_module(copied, layer, module, replacement)
    return copied


class _LargestOnly(nn.Module):
    """An activation whose smallest outputs become zero, token by token."""

    def __init__(self, activation: nn.Module, keep: float) -> None:
        super().__init__()
        self.activation, self.keep = activation, keep

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.activation(x)
        size = activated.abs()
        n_dropped = size.shape[-1] - kept_neurons(self.keep, size.shape[-1])
        if n_dropped == 0:
            return activated
        dropped = size.topk(n_dropped, dim=-1, largest=False).indices
        return activated.scatter(-1, dropped, 0.0)
