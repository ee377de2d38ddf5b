"""Cuts of the matched split."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.model.exact_tail import tail_rows
from lit_kvpred.random_cuts import RandomCuts


def test_cuts_depend_on_seed_and_batch_only():
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        drawn.append([RandomCuts(1, seed).draw(32, batch) for batch in range(40)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert min(drawn[0]) >= 8
    assert max(drawn[0]) <= 24
    assert len(set(drawn[0])) > 8


def test_a_long_tail_moves_cuts_to_the_left():
    cuts = RandomCuts(20, 2**63)
    assert {cuts.draw(32, batch) for batch in range(60)} == {8, 9, 10, 11}
    assert cuts.draw(22, 0) == 1
    assert cuts.draw(21, 0) is None


@given(
    length=st.integers(1, 300),
    batch=st.integers(0, 2**40),
    seed=st.integers(-(2**63), 2**64 - 1),
    tail=st.integers(1, 300) | st.floats(0.01, 0.99),
)
def test_something_is_left_to_compare(length, batch, seed, tail):
    cut = RandomCuts(tail, seed).draw(length, batch)
    rows = length - 1
    if cut is None:
        assert rows - tail_rows(tail, rows) < 1
    else:
        assert 1 <= cut <= length * 3 // 4
        assert cut + tail_rows(tail, rows) <= rows


@pytest.mark.parametrize("length", [0, 1, 2])
def test_rows_too_short_have_no_cut(length):
    assert RandomCuts(1).draw(length, 0) is None
