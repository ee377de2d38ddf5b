from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.layer_map import (
    check_kept_layers,
    layer_map,
    pruned_layer_map,
    pruned_layers,
)


def _feeding(*groups: tuple[int, int, int]) -> list[int]:
    """``(first, last, share)``: auxiliary layers first..last feed ``share`` base layers each."""
    return [
        j for first, last, share in groups for j in range(first, last + 1) for _ in range(share)
    ]


@pytest.mark.parametrize(
    ("n_base", "n_aux", "published"),
    [
        (28, 20, _feeding((0, 7, 2), (8, 19, 1))),
        (28, 16, _feeding((0, 11, 2), (12, 15, 1))),
        (36, 28, _feeding((0, 7, 2), (8, 27, 1))),
        (36, 20, _feeding((0, 15, 2), (16, 19, 1))),
        (36, 16, _feeding((0, 3, 3), (4, 15, 2))),
    ],
)
def test_canonical_maps_of_the_paper(n_base, n_aux, published):
    assert len(published) == n_base
    assert layer_map(n_base, n_aux) == published


@pytest.mark.parametrize("n_base", [28, 36])
def test_pruned_maps_of_the_paper(n_base):
    three_quarters = pruned_layer_map(pruned_layers(n_base, 0.75), n_base)
    assert three_quarters[:12] == [0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8]
    assert three_quarters == [3 * (i // 4) + min(i % 4, 2) for i in range(n_base)]
    half = pruned_layer_map(pruned_layers(n_base, 0.5), n_base)
    assert half == [i // 2 for i in range(n_base)]
    quarter = pruned_layer_map(pruned_layers(n_base, 0.25), n_base)
    assert quarter == [i // 4 for i in range(n_base)]


@pytest.mark.parametrize(
    ("n_base", "fraction", "kept"),
    [(28, 0.75, 21), (28, 0.5, 14), (28, 0.25, 7), (36, 0.75, 27), (36, 0.5, 18), (36, 0.25, 9)],
)
def test_number_of_kept_layers_of_the_paper(n_base, fraction, kept):
    assert len(pruned_layers(n_base, fraction)) == kept


def test_kept_layers_of_a_depth_that_four_does_not_divide():
    assert pruned_layers(6, 0.75) == [0, 1, 2, 4, 5]
    assert pruned_layers(6, 0.5) == [0, 2, 4]
    assert pruned_layers(6, 0.25) == [0, 4]
    assert pruned_layers(1, 0.25) == [0]


@given(st.integers(1, 80), st.integers(1, 80))
def test_canonical_map_splits_like_numpy(n_base, n_aux):
    if n_aux > n_base:
        with pytest.raises(ConfigurationError, match=f"auxiliary of {n_aux} layers"):
            layer_map(n_base, n_aux)
        return
    groups = np.array_split(np.arange(n_base), n_aux)
    expected = [j for j, group in enumerate(groups) for _ in group]
    assert layer_map(n_base, n_aux) == expected


@given(st.data())
def test_pruned_map_names_the_last_kept_layer_at_or_below(data):
    n_base = data.draw(st.integers(1, 60))
    kept = [0, *sorted(data.draw(st.sets(st.integers(1, n_base))) - {n_base})]
    for i, j in enumerate(pruned_layer_map(kept, n_base)):
        assert kept[j] <= i
        assert j + 1 == len(kept) or kept[j + 1] > i


@pytest.mark.parametrize("n_aux", [0, -1])
def test_an_auxiliary_without_layers_is_refused(n_aux):
    with pytest.raises(ConfigurationError, match="between 1 and"):
        layer_map(4, n_aux)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0, -0.5])
def test_a_fraction_without_rule_is_refused(fraction):
    with pytest.raises(ConfigurationError, match="no published pruning rule"):
        pruned_layers(8, fraction)


@pytest.mark.parametrize("kept", [[], [1, 2], [0, 2, 2], [0, 3, 1], [0, 8], [-1, 0]])
def test_a_bad_list_of_kept_layers_is_refused(kept):
    for check in (check_kept_layers, pruned_layer_map):
        with pytest.raises(ConfigurationError, match="must increase strictly") as error:
            check(kept, 8)
        assert "\n" not in str(error.value)


def test_a_good_list_of_kept_layers_passes():
    check_kept_layers([0], 1)
    check_kept_layers([0, 1, 7], 8)
