"""What the predictor reads: which features feed which predicted key and value (KVP 2.1, 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.family import FamilyAdapter, LayerShape
from lit_kvpred.model.reading import CacheRows

FeatureKind = Literal["kv", "hidden"]


class Features(ABC):
    """Features by name, and the name that each predicted map reads.

    Attributes:
        kind: As configured.
        widths: Width of each feature, by name.
        key_inputs: For each predicted base layer the feature behind its keys.
        value_inputs: The same for its values.
        last_layer: Highest auxiliary layer whose keys and values are needed.
        reads_hidden: Whether the reader's final hidden states are needed.
        layer_map: For each predicted base layer the auxiliary layer that feeds it; None where all
            read the same.
    """

    kind: FeatureKind
    widths: Mapping[str, int]
    key_inputs: Sequence[str]
    value_inputs: Sequence[str]
    last_layer: int
    reads_hidden: bool
    layer_map: list[int] | None = None

    @abstractmethod
    def read(self, rows: CacheRows) -> dict[str, Tensor]:
        """Features of each row, ``(B, T, width)`` by name."""


class KeyValueFeatures(Features):
    """Keys for keys and values for values of one auxiliary layer each, as published.

    Args:
        auxiliary_shapes: Row widths of the auxiliary's layers.
        layer_map: For each predicted base layer the auxiliary layer that feeds it.

    Raises:
        ConfigurationError: If the map names a layer that the auxiliary doesn't have.
    """

    kind: FeatureKind = "kv"
    reads_hidden = False

    def __init__(self, auxiliary_shapes: Sequence[LayerShape], layer_map: Sequence[int]) -> None:
        if not layer_map or not all(0 <= j < len(auxiliary_shapes) for j in layer_map):
            raise ConfigurationError(
                f"layer map {list(layer_map)} must name one of {len(auxiliary_shapes)} auxiliary "
                "layers for each predicted base layer"
            )
        self.layer_map = list(layer_map)
        self.layers = list(dict.fromkeys(layer_map))
        self.key_inputs = [f"keys.{j}" for j in layer_map]
        self.value_inputs = [f"values.{j}" for j in layer_map]
        self.widths = {f"keys.{j}": auxiliary_shapes[j].key_width for j in self.layers} | {
            f"values.{j}": auxiliary_shapes[j].value_width for j in self.layers
        }
        self.last_layer = max(layer_map)

    def read(self, rows: CacheRows) -> dict[str, Tensor]:
        """Raw keys and values of the layers in the map."""
        return {f"keys.{j}": rows.raw_keys[j] for j in self.layers} | {
            f"values.{j}": rows.values[j] for j in self.layers
        }


class HiddenFeatures(Features):
    """The reader's last hidden states, of a row and of the row before, with its last layer's rows.

    One input for all maps. Base layers above look at the token before (what follows a token seen
    earlier, for one), which no map of a single row can know. Hidden states are divided by their
    root mean square: like a norm without weight, which the linear map behind it brings.

    Args:
        hidden_width: Of the reader's hidden states.
        shape: Row widths of the reader's last layer.
        last_layer: Index of that layer.
        n_predicted: Number of predicted base layers.
    """

    kind: FeatureKind = "hidden"
    reads_hidden = True

    def __init__(
        self, hidden_width: int, shape: LayerShape, last_layer: int, n_predicted: int
    ) -> None:
        self.widths = {"hidden": 2 * hidden_width + shape.key_width + shape.value_width}
        self.key_inputs = self.value_inputs = ["hidden"] * n_predicted
        self.last_layer = last_layer

    def read(self, rows: CacheRows) -> dict[str, Tensor]:
        """The joined features; zeros before a document's first row."""
        assert rows.hidden is not None
        assert rows.sequences is not None
        hidden = rows.hidden.float()
        hidden = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
        previous = rows.sequences.previous_rows()[..., None]
        before = hidden.gather(1, previous.clamp(min=0).expand_as(hidden))
        # Masked, not multiplied: at padding hidden states may be anything, NaN included.
        before = before.masked_fill(previous < 0, 0.0)
        last = self.last_layer
        parts = [hidden, before, rows.raw_keys[last].float(), rows.values[last].float()]
        return {"hidden": torch.cat(parts, dim=-1)}


def hidden_features(
    reader: FamilyAdapter,
    shapes: Sequence[LayerShape],
    n_predicted: int,
    layer_map: Sequence[int] | None,
) -> HiddenFeatures:
    """Hidden features of a reader whose layers have ``shapes``.

    Raises:
        ConfigurationError: If a layer map is given, which these features can't follow.
    """
    if layer_map is not None:
        raise ConfigurationError("features 'hidden' read one layer; leave out layer_map")
    return HiddenFeatures(reader.config.hidden_size, shapes[-1], len(shapes) - 1, n_predicted)
