"""Numbers that users set."""

import math

import numpy as np
import pytest

from lit_kvpred.checks import require_count, require_flag, require_number, require_seed
from lit_kvpred.errors import ConfigurationError


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None, math.nan])
def test_counts_are_whole_numbers_of_at_least_their_minimum(value):
    with pytest.raises(
        ConfigurationError, match=f"^n must be a whole .* at least 1, got {value!r}$"
    ):
        require_count("n", value)


def test_counts_in_range_pass():
    require_count("n", 1)
    require_count("n", 0, least=0)
    require_count("n", 10**9, least=7)


@pytest.mark.parametrize(
    ("bounds", "fit", "wrong", "wanted"),
    [
        ({}, [-1, 0.0, math.inf], [math.nan, "1", None, True, 10**400], "a number"),
        ({"least": 0}, [0, 2.5, math.inf], [-1e-9, math.nan], "a number of at least 0"),
        ({"above": 0}, [1e-9], [0, -1, math.nan], "a number above 0"),
        ({"least": 0, "below": 1}, [0, 0.9], [1, -0.1], "a number of at least 0 and below 1"),
        ({"above": 0, "most": 1}, [1, 0.1], [0, 1.1], "a number above 0 and at most 1"),
        ({"least": 0, "below": math.inf}, [0, 1e300], [math.inf], "a number of at least 0"),
    ],
)
def test_numbers_lie_within_their_bounds(bounds, fit, wrong, wanted):
    for value in fit:
        require_number("x", value, **bounds)
    for value in wrong:
        with pytest.raises(ConfigurationError) as error:
            require_number("x", value, **bounds)
        assert str(error.value) == f"x must be {wanted}, got {value!r}"


def test_numbers_of_numpy_are_numbers():
    require_number("x", np.float32(0.5), above=0, most=1)
    with pytest.raises(ConfigurationError, match=r"^x must be a number above 0, got "):
        require_number("x", np.float32("nan"), above=0)


def test_flags_are_true_or_false():
    require_flag("x", True)
    require_flag("x", False)
    for value in (1, 0.0, None, "true", np.bool_(True)):
        with pytest.raises(ConfigurationError) as error:
            require_flag("x", value)
        assert str(error.value) == f"x must be True or False, got {value!r}"


def test_seeds_are_what_torch_takes():
    for value in (0, -(2**63), 2**64 - 1, np.int64(7)):
        require_seed("seed", value)
    for value in (2**64, -(2**63) - 1, 1.0, True, "1"):
        with pytest.raises(ConfigurationError, match=r"^seed must be a whole number of at most 64"):
            require_seed("seed", value)
