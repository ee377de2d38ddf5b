"""The predictor: affine maps from auxiliary keys and values to the base's (KVP 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lit_kvpred.checks import require_count
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.family import LayerShape
from lit_kvpred.model.features import Features
from lit_kvpred.model.reading import CacheRows


class KVPredictor(nn.Module):
    """Two independent affine maps with bias per predicted layer, one for keys and one for values.

    Heads are merged first, so that maps mix heads freely and the head counts and dims of auxiliary
    and base may differ. Outputs are raw: before key norm, without rotation. The initialisation is
    torch's default for linear layers, as published.

    Args:
        features: What each map reads.
        base_shapes: Row widths of the predicted base layers.
        rank: Width of a linear bottleneck that all maps share, which makes them cheaper; None maps
            from the features themselves.

    Raises:
        ConfigurationError: If the features don't name an input for each predicted layer, or a
            bottleneck can't be shared.
    """

    bottleneck: nn.Linear | None

    def __init__(
        self, features: Features, base_shapes: Sequence[LayerShape], rank: int | None = None
    ) -> None:
        super().__init__()
        if len(features.key_inputs) != len(base_shapes):
            raise ConfigurationError(
                f"features for {len(features.key_inputs)} layers can't predict "
                f"{len(base_shapes)} base layers"
            )
        self.features = features
        widths = dict(features.widths)
        self.rank, self.bottleneck = rank, None
        if rank is not None:
            require_count("rank", rank)
            (name, width), *others = widths.items()
            if others:
                raise ConfigurationError(
                    f"rank {rank} needs features that all maps share; set features to hidden, or "
                    "leave rank out"
                )
            if rank > width:
                raise ConfigurationError(
                    f"rank must be at most {width}, the width of the features, got {rank}"
                )
            self.bottleneck = nn.Linear(width, rank, bias=False)
            widths[name] = rank
        self.keys = nn.ModuleList(
            nn.Linear(widths[name], shape.key_width)
            for name, shape in zip(features.key_inputs, base_shapes, strict=True)
        )
        self.values = nn.ModuleList(
            nn.Linear(widths[name], shape.value_width)
            for name, shape in zip(features.value_inputs, base_shapes, strict=True)
        )

    @property
    def maps(self) -> dict[str, list[tuple[str, nn.Linear]]]:
        """By part (``keys``, ``values``) and predicted layer: the input's name and the map."""
        inputs = {"keys": self.features.key_inputs, "values": self.features.value_inputs}
        stacks = {"keys": self.keys, "values": self.values}
        return {
            part: [(n, cast(nn.Linear, m)) for n, m in zip(inputs[part], stacks[part], strict=True)]
            for part in stacks
        }

    def forward(self, rows: CacheRows) -> tuple[list[Tensor], list[Tensor]]:
        """Predict raw keys and values.

        Args:
            rows: The auxiliary's rows, ``(B, T, width)`` a layer.

        Returns:
            Merged raw keys and merged values per predicted layer, ``(B, T, width)``, in this
            module's dtype.
        """
        maps = self.maps
        if not maps["keys"]:
            return [], []
        dtype = maps["keys"][0][1].weight.dtype
        inputs = {name: x.to(dtype) for name, x in self.features.read(rows).items()}
        if self.bottleneck is not None:
            inputs = {name: self.bottleneck(x) for name, x in inputs.items()}
        return (
            [linear(inputs[name]) for name, linear in maps["keys"]],
            [linear(inputs[name]) for name, linear in maps["values"]],
        )

    @torch.no_grad()
    def set_identity_(self) -> None:
        """Make every map the identity, for exactness checks.

        Raises:
            ConfigurationError: If a map is not square.
        """
        for part, maps in self.maps.items():
            for layer, (_, linear) in enumerate(maps):
                if linear.in_features != linear.out_features:
                    raise ConfigurationError(
                        f"map {layer} of {part} is {linear.in_features} -> "
                        f"{linear.out_features}; only square maps can be the identity"
                    )
                nn.init.eye_(linear.weight)
                nn.init.zeros_(linear.bias)
