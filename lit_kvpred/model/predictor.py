"""The predictor: affine maps from auxiliary keys and values to the base's (KVP 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.family import LayerShape
from lit_kvpred.model.reading import CacheRows


class KVPredictor(nn.Module):
    """Two independent affine maps with bias per base layer, one for keys and one for values.

    Heads are merged first, so that maps mix heads freely and the head counts and dims of auxiliary
    and base may differ. Inputs and outputs are raw: before key norm, without rotation. The
    initialisation is torch's default for linear layers, as published.

    Args:
        auxiliary_shapes: Row widths of the auxiliary's layers.
        base_shapes: Row widths of the base's layers.
        layer_map: For each base layer the auxiliary layer that feeds it (KVP 2.2).

    Raises:
        ConfigurationError: If the map doesn't name one existing auxiliary layer per base layer.
    """

    def __init__(
        self,
        auxiliary_shapes: Sequence[LayerShape],
        base_shapes: Sequence[LayerShape],
        layer_map: Sequence[int],
    ) -> None:
        super().__init__()
        in_range = all(0 <= j < len(auxiliary_shapes) for j in layer_map)
        if len(layer_map) != len(base_shapes) or not in_range:
            raise ConfigurationError(
                f"layer map {list(layer_map)} must name one of {len(auxiliary_shapes)} auxiliary "
                f"layers for each of {len(base_shapes)} base layers"
            )
        self.layer_map = list(layer_map)
        sources = [auxiliary_shapes[j] for j in layer_map]
        pairs = list(zip(sources, base_shapes, strict=True))
        self.keys = nn.ModuleList(nn.Linear(a.key_width, b.key_width) for a, b in pairs)
        self.values = nn.ModuleList(nn.Linear(a.value_width, b.value_width) for a, b in pairs)

    @property
    def maps(self) -> dict[str, list[nn.Linear]]:
        """The maps by part (``keys``, ``values``), one per base layer."""
        return {
            "keys": [cast(nn.Linear, linear) for linear in self.keys],
            "values": [cast(nn.Linear, linear) for linear in self.values],
        }

    @property
    def last_feeding_layer(self) -> int:
        """The highest auxiliary layer that is needed."""
        return max(self.layer_map)

    def forward(self, rows: CacheRows) -> tuple[list[Tensor], list[Tensor]]:
        """Predict raw keys and values.

        Args:
            rows: The auxiliary's rows, ``(B, T, width)`` a layer.

        Returns:
            Merged raw keys and merged values per base layer, ``(B, T, width)``, in this module's
            dtype.
        """
        keys, values = self.maps["keys"], self.maps["values"]
        dtype = keys[0].weight.dtype
        return (
            [m(rows.raw_keys[j].to(dtype)) for m, j in zip(keys, self.layer_map, strict=True)],
            [m(rows.values[j].to(dtype)) for m, j in zip(values, self.layer_map, strict=True)],
        )

    @torch.no_grad()
    def set_identity_(self) -> None:
        """Make every map the identity, for exactness checks.

        Raises:
            ConfigurationError: If a map is not square.
        """
        for part, maps in self.maps.items():
            for layer, linear in enumerate(maps):
                if linear.in_features != linear.out_features:
                    raise ConfigurationError(
                        f"map of {part} of base layer {layer} is {linear.in_features} -> "
                        f"{linear.out_features}; only square maps can be the identity"
                    )
                nn.init.eye_(linear.weight)
                nn.init.zeros_(linear.bias)
