"""Numbers with their units."""

import math

import pytest

from lit_kvpred.report import formats
from lit_kvpred.report.formats import ABSENT
from lit_kvpred.report.schema import Quartiles


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (2.5e-5, "25.0 µs"),
        (0.0123, "12.3 ms"),
        (0.999, "999 ms"),
        (1.2345, "1.23 s"),
        (119.0, "119 s"),
        (125.4, "2 min 5 s"),
        (3725.0, "1 h 2 min"),
        (math.nan, ABSENT),
        (math.inf, ABSENT),
    ],
)
def test_duration(value, text):
    assert formats.duration(value) == text


@pytest.mark.parametrize(
    ("quartiles", "text"),
    [
        (Quartiles(0.96, 0.9, 1.2, 5), "960 ms (900 to 1,200)"),
        (Quartiles(1.5, math.nan, math.nan, 1), "1.50 s"),
        (Quartiles(math.nan, 1.0, 1.0, 1), ABSENT),
        (None, ABSENT),
    ],
)
def test_spread_is_in_the_unit_of_the_median(quartiles, text):
    assert formats.spread(quartiles) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0333, "0.0333"),
        (1234.5, "1,234"),
        (9.996, "10.00"),
        (1e-4, "0.000100"),
        (1.5e-9, "1.50e-09"),
        (-0.25, "-0.250"),
    ],
)
def test_significant(value, text):
    assert formats.significant(value) == text


def test_other_units():
    assert formats.percent(0.8974) == "89.7 %"
    assert formats.factor(1.938) == "1.94×"  # noqa: RUF001
    assert formats.fixed(0.0949) == "0.095"
    assert formats.count(134515008) == "134,515,008"
    assert formats.compact(134515008) == "134.5 M"
    assert formats.compact(275e9) == "275 G"
    assert formats.compact(12) == "12"
    assert formats.plural(1, "prompt") == "1 prompt"
    assert formats.plural(1600, "prompt") == "1,600 prompts"


@pytest.mark.parametrize("form", ["percent", "factor", "fixed", "count", "compact", "significant"])
def test_what_is_not_finite_is_absent(form):
    assert getattr(formats, form)(math.nan) == ABSENT
    assert getattr(formats, form)(-math.inf) == ABSENT


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0, 1"),
        ([0, 1, 2, 3], "0-3"),
        ([0, 1, 2, 2, 2, 2, 5], "0-2, 2 (3 times), 5"),
        ([0, 0, 1, 1, 2], "0, 0, 1, 1, 2"),
        ([None, 0, 1, 2, "x"], "None, 0-2, x"),
    ],
)
def test_number_list(values, text):
    assert formats.number_list(values) == text
