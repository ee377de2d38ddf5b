"""What each cache row is worth: exact, predicted or stale (DESIGN: correction and catch-up)."""

from __future__ import annotations

from enum import IntEnum

import torch


class RowState(IntEnum):
    """Provenance of a cache row."""

    EXACT = 0
    """The base computed it from exact context."""
    PREDICTED = 1
    """The predictor made it."""
    STALE = 2
    """The base computed it while some earlier row was not exact."""
    SPARSE = 3
    """A sparse draft computed it."""


class RowStates:
    """States of all rows of a batch's cache, ``(B, rows)``, kept next to the cache itself."""

    def __init__(self, batch_size: int) -> None:
        self._states = torch.empty(batch_size, 0, dtype=torch.int8)

    @classmethod
    def of_prompt(cls, batch_size: int, rows: int, predicted: int, known: int = 0) -> RowStates:
        """States after a prefill of ``rows``: ``known`` ones, ``predicted`` ones, and the rest."""
        states = cls(batch_size)
        states.append_computed(known)
        states.append_predicted(predicted)
        states.append_computed(rows - known - predicted)
        return states

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._states.shape[1]

    def append_predicted(self, rows: int) -> None:
        """``rows`` predicted rows were written."""
        self._append(rows, RowState.PREDICTED)

    def append_computed(self, rows: int) -> None:
        """The base computed ``rows`` rows: exact if all rows before them are, stale otherwise."""
        exact = bool((self._states == RowState.EXACT).all())
        self._append(rows, RowState.EXACT if exact else RowState.STALE)

    def append_sparse(self, rows: int) -> None:
        """A sparse draft computed ``rows`` rows."""
        self._append(rows, RowState.SPARSE)

    def mark_exact(self, rows: slice) -> None:
        """The base computed ``rows`` again from exact context.

        Raises:
            AssertionError: If a row before them is not exact.
        """
        assert bool((self._states[:, : rows.start] == RowState.EXACT).all()), (
            f"rows {rows.start} to {rows.stop} were computed behind rows that are not exact"
        )
        self._states[:, rows] = RowState.EXACT

    def roll_back(self, rows: int) -> None:
        """The last ``rows`` rows were dropped."""
        self._states = self._states[:, : self.n_rows - rows]

    def drop_first(self, rows: int) -> None:
        """The first ``rows`` rows were dropped."""
        self._states = self._states[:, rows:]

    def count(self, state: RowState) -> int:
        """Number of rows of one state, over the whole batch."""
        return int((self._states == state).sum())

    def assert_exact(self) -> None:
        """Raise AssertionError unless every row is exact."""
        wrong = {s.name: self.count(s) for s in RowState if s != RowState.EXACT and self.count(s)}
        assert not wrong, f"rows that are not exact after reconciliation: {wrong}"

    def _append(self, rows: int, state: RowState) -> None:
        new = torch.full((len(self._states), rows), int(state), dtype=torch.int8)
        self._states = torch.cat([self._states, new], dim=1)
