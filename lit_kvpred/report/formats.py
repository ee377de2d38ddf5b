"""Numbers as a reader wants them: rounded, with their unit, and a dash where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lit_kvpred.report.schema import Quartiles

ABSENT = "–"  # noqa: RUF001  an en dash, as typeset tables have it
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits, without an exponent where it can be read without."""
    if not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -6 < exponent < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def fixed(value: float, decimals: int = 3) -> str:
    """`value` with so many decimals, so that a column lines up."""
    return f"{value:.{decimals}f}" if math.isfinite(value) else ABSENT


def percent(value: float) -> str:
    """A share as a percentage."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else ABSENT


def factor(value: float) -> str:
    """A ratio with its multiplication sign."""
    return f"{value:.2f}×" if math.isfinite(value) else ABSENT  # noqa: RUF001


def count(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}" if math.isfinite(value) else ABSENT


def compact(value: float) -> str:
    """A large count with a decimal prefix: 134.5 M."""
    if not math.isfinite(value):
        return ABSENT
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g}"


def duration(value: float) -> str:
    """Seconds in the unit that suits their size."""
    if not math.isfinite(value):
        return ABSENT
    if abs(value) < 120:
        scale, unit = _second_unit(value)
        return f"{significant(value * scale)} {unit}"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def spread(seconds: Quartiles | None) -> str:
    """Median and, in brackets and in the same unit, the quartiles."""
    if seconds is None or not math.isfinite(seconds.median):
        return ABSENT
    scale, unit = _second_unit(seconds.median)
    median = f"{significant(seconds.median * scale)} {unit}"
    if not (math.isfinite(seconds.q25) and math.isfinite(seconds.q75)):
        return median
    low, high = significant(seconds.q25 * scale), significant(seconds.q75 * scale)
    return f"{median} ({low} to {high})"


def number_list(values: Sequence[object]) -> str:
    """Numbers in a line, long runs shortened: 0-14, 16, 17 (8 times)."""
    parts: list[str] = []
    rest = list(values)
    while rest:
        rising = _run_length(rest, 1)
        equal = _run_length(rest, 0)
        if rising > 2:
            parts.append(f"{rest[0]}-{rest[rising - 1]}")
        elif equal > 2:
            parts.append(f"{rest[0]} ({equal} times)")
        else:
            parts.append(str(rest[0]))
        rest = rest[rising if rising > 2 else equal if equal > 2 else 1 :]
    return ", ".join(parts)


def _run_length(values: Sequence[object], step: int) -> int:
    length = 1
    while length < len(values):
        value = values[length - 1]
        if not isinstance(value, int) or values[length] != value + step:
            break
        length += 1
    return length


def plural(amount: float, noun: str) -> str:
    """A count and its noun: 1 prompt, 16 prompts."""
    return f"{count(amount)} {noun}" if amount == 1 else f"{count(amount)} {noun}s"


def _second_unit(value: float) -> tuple[float, str]:
    if 0 < abs(value) < 1e-3:
        return 1e6, "µs"
    return (1e3, "ms") if 0 < abs(value) < 1 else (1.0, "s")
