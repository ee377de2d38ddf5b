"""Rows of a base that were predicted from an auxiliary's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from lit_kvpred.model.family import LayerShape, split_heads
from lit_kvpred.model.reading import CacheRows


class PredictedRows(NamedTuple):
    """Predicted keys and values per predicted base layer, split ``(B, heads, T, dim)``.

    Attributes:
        keys: After the base's key norm and without rotation, as the consistency loss compares them.
        values: As cached.
        exact: Keys and values of the layers below the predicted ones, as the cache holds them.
    """

    keys: list[Tensor]
    values: list[Tensor]
    exact: Sequence[tuple[Tensor, Tensor]] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows T."""
        first = self.exact[0][0] if self.exact else self.keys[0]
        return first.shape[2]

    def after(self, rows: int) -> PredictedRows:
        """The same without the first ``rows`` rows."""
        if rows == 0:
            return self
        return PredictedRows(
            [k[:, :, rows:] for k in self.keys],
            [v[:, :, rows:] for v in self.values],
            [(k[:, :, rows:], v[:, :, rows:]) for k, v in self.exact],
        )

    @classmethod
    def of_exact(cls, rows: CacheRows, shapes: Sequence[LayerShape], first: int) -> PredictedRows:
        """The base's own rows from layer ``first`` on, to compare predicted ones with."""
        layers = range(first, len(shapes))
        values = [split_heads(rows.values[i], shapes[i].heads) for i in layers]
        return cls([rows.keys[i] for i in layers], values, rows.stored[:first])
