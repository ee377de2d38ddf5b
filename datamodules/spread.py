"""Choosing a few of many, evenly."""

from __future__ import annotations


def spread(available: int, wanted: int | None) -> list[int]:
    """Returns `wanted` indices spread evenly over `range(available)`; all of them for None."""
    if wanted is None or wanted >= available:
        return list(range(available))
    return [index * available // wanted for index in range(wanted)]
