"""Where the weights of a base's layers wait until they are needed: a file, or the host's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lit_kvpred.model.stored_tensors import StoredTensor, TensorReader

_ALIGNMENT = 64


class WeightPlace(NamedTuple):
    """Shape and compute dtype of one weight."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class SlowTier(ABC):
    """The weights of all layers, somewhere slow. One thread at a time reads from it."""

    @abstractmethod
    def n_bytes(self, layer: int) -> int:
        """Bytes that are read for one layer, in the form in which they are kept."""

    @abstractmethod
    def read(self, layer: int, targets: Sequence[Tensor]) -> None:
        """Fill ``targets``, the weights of ``layer`` on the base's device in its dtype.

        Raises:
            CheckpointError: If they can't be read.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Give back what is held open."""


class FileTier(SlowTier):
    """Weights in safetensors files, read where they lie and converted on the way.

    Args:
        layers: The stored weights of each layer.

    Raises:
        CheckpointError: If a file can't be opened.
    """

    def __init__(self, layers: Sequence[Sequence[StoredTensor]]) -> None:
        self.layers = [list(layer) for layer in layers]
        self._reader = TensorReader()
        self._reader.open({stored.file for layer in layers for stored in layer})
        self._raw: Tensor | None = None

    def n_bytes(self, layer: int) -> int:
        """Bytes of the stored weights of one layer."""
        return sum(stored.n_bytes for stored in self.layers[layer])

    @torch.inference_mode(False)
    def read(self, layer: int, targets: Sequence[Tensor]) -> None:
        """Read one layer, straight into ``targets`` where neither dtype nor device differ."""
        for stored, target in zip(self.layers[layer], targets, strict=True):
            if target.device.type == "cpu" and target.dtype == stored.dtype:
                self._reader.read(stored, target)
                continue
            if self._raw is None:
                size = max(s.n_bytes for weights in self.layers for s in weights)
                pinned = target.device.type != "cpu"
                self._raw = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            raw = self._raw[: stored.n_bytes].view(stored.dtype).view(stored.shape)
            self._reader.read(stored, raw)
            target.copy_(raw)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()


class HostTier(SlowTier):
    """Weights in the host's memory, for a base on an accelerator.

    Args:
        layers: The weights of each layer, copied to pinned memory.
    """

    def __init__(self, layers: Sequence[Sequence[Tensor]]) -> None:
        self.layers = [[_pinned(weight) for weight in layer] for layer in layers]

    def n_bytes(self, layer: int) -> int:
        """Bytes of the weights of one layer."""
        return sum(weight.numel() * weight.element_size() for weight in self.layers[layer])

    def read(self, layer: int, targets: Sequence[Tensor]) -> None:
        """Copy one layer."""
        for weight, target in zip(self.layers[layer], targets, strict=True):
            target.copy_(weight)


def _pinned(weight: Tensor) -> Tensor:
    pinned = torch.empty(
        weight.shape, dtype=weight.dtype, pin_memory=torch.accelerator.is_available()
    )
    return pinned.copy_(weight)


class LayerBuffer:
    """Memory for the weights of any one layer.

    Args:
        layers: Shapes and dtypes of the weights of each layer.
        device: Of the base.

    Attributes:
        layer: Whose weights it holds; None while it holds none, or only a part.
    """

    @torch.inference_mode(False)
    def __init__(self, layers: Sequence[Sequence[WeightPlace]], device: torch.device) -> None:
        self._layers = layers
        size = max(_offsets(places)[-1] for places in layers)
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.layer: int | None = None

    @torch.inference_mode(False)
    def weights(self, layer: int) -> list[Tensor]:
        """Views of the memory as the weights of ``layer``."""
        places = self._layers[layer]
        return [
            self._memory[start : start + _size(place)].view(place.dtype).view(place.shape)
            for place, start in zip(places, _offsets(places)[:-1], strict=True)
        ]


def _size(place: WeightPlace) -> int:
    return torch.Size(place.shape).numel() * place.dtype.itemsize


def _offsets(places: Sequence[WeightPlace]) -> list[int]:
    """Where each weight begins, and where the last one ends.

    As aligned as tensors of their own: results may depend on it.
    """
    offsets = [0]
    for place in places:
        offsets.append(-(-(offsets[-1] + _size(place)) // _ALIGNMENT) * _ALIGNMENT)
    return offsets
