from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse


def test_defaults_are_those_of_the_paper():
    correction = Correction()
    assert (correction.period, correction.threshold, correction.temperature) == (16, 0.1, 0.6)
    assert correction.policy == "hold"


@pytest.mark.parametrize(
    "extreme",
    [
        {"period": 1},
        {"threshold": 0.0},
        {"threshold": 1.5},
        {"threshold": math.inf},
        {"temperature": 1e-3},
        {"policy": "commit"},
        {"policy": "retract"},
    ],
)
def test_extremes_are_allowed(extreme):
    correction = Correction(**extreme)
    assert {name: getattr(correction, name) for name in extreme} == extreme


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"period": 0}, "period must be a whole number of at least 1, got 0"),
        ({"period": -4}, "period must be a whole number of at least 1, got -4"),
        ({"period": 2.0}, "period must be a whole number of at least 1, got 2.0"),
        ({"period": True}, "period must be a whole number of at least 1, got True"),
        ({"period": "8"}, "period must be a whole number of at least 1, got '8'"),
        ({"threshold": "x"}, "threshold must be a number of at least 0, got 'x'"),
        ({"temperature": None}, "temperature must be a number above 0, got None"),
        ({"tpot_budget": False}, "tpot_budget must be a number above 1, got False"),
        ({"rollback": "false"}, "rollback must be True or False, got 'false'"),
        ({"slice_rows": "x"}, "slice_rows must be a whole number of at least 1, got 'x'"),
        ({"slice_rows": [4]}, r"slice_rows must be a whole number of at least 1, got \[4\]"),
        ({"slice_rows": np.array([4, 5])}, "slice_rows must be a whole number of at least 1, got"),
        ({"slice_rows": 0}, "slice_rows must be a whole number of at least 1, got 0"),
        ({"threshold": -0.1}, "threshold must be a number of at least 0, got -0.1"),
        ({"threshold": math.nan}, "threshold must be a number of at least 0, got nan"),
        ({"temperature": 0.0}, "temperature must be a number above 0, got 0.0"),
        ({"temperature": -1.0}, "temperature must be a number above 0, got -1.0"),
        ({"temperature": math.nan}, "temperature must be a number above 0, got nan"),
        (
            {"draft": "csparse"},
            r"draft must be CSparse\(...\), FSparse\(...\) or None, got 'csparse'",
        ),
        ({"acceptance": "exact"}, "acceptance 'exact' is not one of threshold, lossless"),
        ({"acceptance": "lossless", "policy": "commit"}, "use policy hold or retract"),
        ({"acceptance": "lossless", "rollback": False, "draft": CSparse()}, "leave rollback on"),
        ({"tree_width": 0, "draft": CSparse()}, "tree_width must be a whole number"),
        ({"tree_width": 2}, "are about sparse drafts; give a draft such as"),
        ({"interleave": False}, "are about sparse drafts; give a draft such as"),
        (
            {"tree_width": 2, "kv_rewriting": False, "draft": CSparse()},
            "a tree of drafts needs kv_rewriting, rollback and interleave",
        ),
        ({"policy": "show"}, "policy 'show' is not one of hold, commit, retract"),
    ],
)
def test_values_out_of_range_are_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        Correction(**wrong)
    assert "\n" not in str(error.value)


def test_settings_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Correction().period = 3
