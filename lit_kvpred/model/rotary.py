"""Taking rotary embedding off cached keys and putting it on again (KVP 2.3, 11).

Predicting rotated keys with a position-free linear map is ill-posed, so that the predictor only
ever sees and makes keys without rotation. The rotation itself is the family's own function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Rotation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(split keys, cos, sin) -> rotated split keys``."""


class RotaryTables:
    """Cosines and sines of one model for given positions, in float32.

    Args:
        tables: One ``(cos, sin)`` pair per layer type, each ``(B or 1, T, rotary_dim)``.
        scaling: Per layer type the factor that the family multiplies into both tables.
        table_of_layer: The layer type whose tables a layer uses; None where keys aren't rotated.
        rotation: The family's rotation.
    """

    def __init__(
        self,
        tables: dict[str, tuple[Tensor, Tensor]],
        scaling: dict[str, float],
        table_of_layer: Sequence[str | None],
        rotation: Rotation,
    ) -> None:
        self._tables, self._scaling = tables, scaling
        self._table_of_layer, self._rotation = table_of_layer, rotation

    def rotate(self, keys: Tensor, layer: int) -> Tensor:
        """Rotate split keys ``(B, heads, T, dim)`` of ``layer``; keeps the dtype."""
        table = self._table_of_layer[layer]
        if table is None:
            return keys
        cos, sin = self._tables[table]
        return self._rotation(keys.float(), cos, sin).to(keys.dtype)

    def unrotate(self, keys: Tensor, layer: int) -> Tensor:
        """Inverse of `rotate`: the transposed rotation, with the family's scaling divided out."""
        table = self._table_of_layer[layer]
        if table is None:
            return keys
        cos, sin = self._tables[table]
        square = self._scaling[table] ** 2
        return self._rotation(keys.float(), cos / square, -sin / square).to(keys.dtype)


def rotary_tables(
    module: nn.Module, position_ids: Tensor, layer_types: Sequence[str]
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, float]]:
    """Tables and scaling factors of a ``rotary_emb`` module, by layer type, in float32."""
    # A float32 carrier: the tables take its dtype, and un-rotating in bfloat16 loses digits.
    carrier = torch.empty(0, device=position_ids.device, dtype=torch.float32)
    by_type = "layer_type" in inspect.signature(module.forward).parameters
    tables, scaling = {}, {}
    for kind in dict.fromkeys(layer_types):
        tables[kind] = module(carrier, position_ids, *((kind,) if by_type else ()))
        name = f"{kind}_attention_scaling" if by_type else "attention_scaling"
        scaling[kind] = float(getattr(module, name, 1.0))
    return tables, scaling


def candidate_rotations(decoder: nn.Module) -> list[Rotation]:
    """Ways in which the decoder's family may rotate keys, most common first; [] if unknown."""
    function = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
    if function is None:
        return []
    rotates_both = next(iter(inspect.signature(function).parameters)) == "q"

    def whole(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Functions that rotate queries along get none: zero heads cost nothing.
        if rotates_both:
            return function(keys[:, :0], keys, cos, sin)[1]
        return function(keys, cos, sin)

    def leading(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Partial rotary where attention itself, not the function, slices the head.
        rotary_dim = cos.shape[-1]
        rotated = whole(keys[..., :rotary_dim], cos, sin)
        return torch.cat([rotated, keys[..., rotary_dim:]], dim=-1)

    return [whole, leading]
