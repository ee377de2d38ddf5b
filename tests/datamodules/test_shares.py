from __future__ import annotations

import pytest

from lit_kvpred.datamodules.shares import (
    EvaluationShare,
    Process,
    batches_per_epoch,
    training_batches,
)


def batches(rows, batch_size=3, seed=0, epoch=0, rank=0, world_size=1):
    process = Process(rank, world_size)
    return training_batches(rows, batch_size, seed=seed, epoch=epoch, process=process)


def test_an_epoch_is_a_shuffle_of_all_rows():
    order = [row for batch in batches(12) for row in batch]
    assert sorted(order) == list(range(12))
    assert order != list(range(12))


def test_the_order_depends_on_seed_and_epoch_alone():
    assert batches(12) == batches(12)
    orders = [batches(12, seed=s, epoch=e) for s in (0, 1) for e in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize(("rows", "world_size"), [(24, 2), (25, 2), (31, 4), (5, 4)])
def test_shares_are_disjoint_and_equally_long(rows, world_size):
    shares = [batches(rows, rank=rank, world_size=world_size) for rank in range(world_size)]
    used = [row for share in shares for batch in share for row in batch]
    assert len(set(used)) == len(used)
    assert {len(share) for share in shares} == {batches_per_epoch(rows, 3, world_size)}
    assert len({tuple(map(len, share)) for share in shares}) == 1


def test_an_incomplete_batch_is_dropped_unless_it_is_the_only_one():
    assert [len(batch) for batch in batches(11)] == [3, 3, 3]
    assert [len(batch) for batch in batches(2)] == [2]
    assert batches(1, world_size=2) == []


@pytest.mark.parametrize("world_size", [1, 3])
def test_evaluation_covers_every_row_once(world_size):
    shares = [EvaluationShare(10, Process(rank, world_size)) for rank in range(world_size)]
    assert sorted(row for share in shares for row in share) == list(range(10))
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]
