"""How many of a prompt's last rows the base runs itself: the exact tail."""

from __future__ import annotations

from numbers import Integral, Real

from lit_kvpred.errors import ConfigurationError

ExactTail = int | float
"""A number of rows, or the fraction of the prompt's rows that are new."""

LEAST_ROWS = 16
"""Of a tail given as a fraction: fewer rows read every weight as well and save hardly any time."""


def require_exact_tail(name: str, value: object) -> None:
    """Refuse what is neither a number of rows nor a fraction of them.

    Raises:
        ConfigurationError: Naming the setting ``name`` and its value.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        valid = int(value) >= 1
    else:
        valid = isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < 1
    if not valid:
        raise ConfigurationError(
            f"{name} must be a whole number of at least 1 or a fraction between 0 and 1, "
            f"got {value!r}"
        )


def tail_rows(exact_tail: ExactTail, n_rows: int) -> int:
    """Rows of the tail of a prompt with ``n_rows`` new rows; never more than these.

    A fraction is rounded down and counts `LEAST_ROWS` at least.
    """
    wanted = exact_tail
    if not isinstance(exact_tail, Integral):
        wanted = max(LEAST_ROWS, int(exact_tail * n_rows))
    return min(int(wanted), n_rows)


def tail_behind(exact_tail: ExactTail, predicted_rows: int) -> int:
    """Rows of the shortest tail that goes with ``predicted_rows`` predicted rows, at least one."""
    rows = 1
    while (wanted := tail_rows(exact_tail, predicted_rows + rows)) > rows:
        rows = wanted
    return rows
