"""How many of a prompt's last rows the base runs itself: the exact tail."""

from __future__ import annotations

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
    rows = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    fraction = isinstance(value, float) and 0 < value < 1
    if not (rows or fraction):
        raise ConfigurationError(
            f"{name} must be a whole number of at least 1 or a fraction between 0 and 1, "
            f"got {value!r}"
        )


def tail_rows(exact_tail: ExactTail, n_rows: int) -> int:
    """Rows of the tail of a prompt with ``n_rows`` new rows; never more than these.

    A fraction is rounded down and counts `LEAST_ROWS` at least.
    """
    if isinstance(exact_tail, float):
        exact_tail = max(LEAST_ROWS, int(exact_tail * n_rows))
    return min(exact_tail, n_rows)


def tail_behind(exact_tail: ExactTail, predicted_rows: int) -> int:
    """Rows of the shortest tail that goes with ``predicted_rows`` predicted rows, at least one."""
    rows = 1
    while (wanted := tail_rows(exact_tail, predicted_rows + rows)) > rows:
        rows = wanted
    return rows
