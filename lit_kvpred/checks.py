"""Checks of numbers that users set; what is wrong is said in one line, with the setting's name."""

from __future__ import annotations

import math
from numbers import Integral, Real

from lit_kvpred.errors import ConfigurationError


def require_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises:
        ConfigurationError: Naming the setting ``name`` and its value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(
            f"{name} must be a whole number of at least {least}, got {value!r}"
        )


def require_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse what is no number, NaN included, or lies out of range.

    Args:
        name: The setting, for the message.
        value: What it was set to.
        least: Smallest value allowed.
        most: Largest value allowed.
        above: The value must be larger than this.
        below: The value must be smaller than this.

    Raises:
        ConfigurationError: Naming the setting, its range and its value.
    """
    number = _as_float(value)
    if (
        least <= number <= most
        and (above is None or number > above)
        and (below is None or number < below)
    ):
        return
    bounds = {"of at least": least, "above": above, "below": below, "at most": most}
    words = [
        f"{word} {bound:g}"
        for word, bound in bounds.items()
        if bound is not None and abs(bound) < math.inf
    ]
    wanted = " ".join(["a number", *([" and ".join(words)] if words else [])])
    raise ConfigurationError(f"{name} must be {wanted}, got {value!r}")


def _as_float(value: object) -> float:
    """NaN for what is no number, or one that no float can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def require_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ConfigurationError: Naming the setting ``name`` and its value.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r}")


def require_seed(name: str, value: object) -> None:
    """Refuse what torch's generators don't take: whole numbers of up to 64 bits.

    Raises:
        ConfigurationError: Naming the setting ``name`` and its value.
    """
    if (
        not isinstance(value, Integral)
        or isinstance(value, bool)
        or not -(2**63) <= int(value) < 2**64
    ):
        raise ConfigurationError(f"{name} must be a whole number of at most 64 bits, got {value!r}")
