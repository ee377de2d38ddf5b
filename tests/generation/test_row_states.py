from __future__ import annotations

import pytest

from lit_kvpred.generation.row_states import RowState, RowStates


def _counts(states: RowStates) -> dict[str, int]:
    return {state.name: states.count(state) for state in RowState if state != RowState.SPARSE}


def test_rows_computed_from_nothing_are_exact():
    states = RowStates(3)
    states.append_computed(4)
    states.append_computed(1)
    assert states.n_rows == 5
    assert _counts(states) == {"EXACT": 15, "PREDICTED": 0, "STALE": 0}
    states.assert_exact()


def test_rows_computed_behind_predicted_ones_are_stale():
    states = RowStates(2)
    states.append_computed(1)
    states.append_predicted(3)
    states.append_computed(1)
    states.append_computed(2)
    assert states.n_rows == 7
    assert _counts(states) == {"EXACT": 2, "PREDICTED": 6, "STALE": 6}


def test_rows_behind_stale_ones_are_stale():
    states = RowStates(1)
    states.append_predicted(1)
    states.append_computed(1)
    states.roll_back(2)
    states.append_computed(1)
    assert _counts(states) == {"EXACT": 1, "PREDICTED": 0, "STALE": 0}
    states.append_predicted(0)
    states.append_computed(1)
    assert _counts(states) == {"EXACT": 2, "PREDICTED": 0, "STALE": 0}


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        (0, {"EXACT": 1, "PREDICTED": 2, "STALE": 1}),
        (1, {"EXACT": 1, "PREDICTED": 2, "STALE": 0}),
        (2, {"EXACT": 1, "PREDICTED": 1, "STALE": 0}),
        (4, {"EXACT": 0, "PREDICTED": 0, "STALE": 0}),
    ],
)
def test_rolling_back_drops_the_last_rows(rows, left):
    states = RowStates(1)
    states.append_computed(1)
    states.append_predicted(2)
    states.append_computed(1)
    states.roll_back(rows)
    assert states.n_rows == 4 - rows
    assert _counts(states) == left


@pytest.mark.parametrize("state", [RowState.PREDICTED, RowState.STALE])
def test_rows_that_are_not_exact_are_named(state):
    states = RowStates(2)
    states.append_predicted(1)
    if state == RowState.STALE:
        states.append_computed(1)
    with pytest.raises(AssertionError, match=f"'{state.name}': 2"):
        states.assert_exact()


def test_rows_of_a_sparse_draft_are_not_exact_and_make_later_ones_stale():
    states = RowStates(2)
    states.append_computed(2)
    states.append_sparse(3)
    assert states.count(RowState.SPARSE) == 6
    with pytest.raises(AssertionError, match="'SPARSE': 6"):
        states.assert_exact()
    states.append_computed(1)
    assert states.count(RowState.STALE) == 2
    states.roll_back(4)
    states.assert_exact()


def test_leading_rows_can_be_dropped():
    states = RowStates.of_prompt(1, 6, 2, known=1)
    states.drop_first(2)
    assert states.n_rows == 4
    assert _counts(states) == {"EXACT": 0, "PREDICTED": 1, "STALE": 3}
