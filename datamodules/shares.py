"""Which rows a process reads, and in which order: pure functions of seed, epoch and rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import DistributedSampler


class Process(NamedTuple):
    """One of the processes that train together."""

    rank: int = 0
    world_size: int = 1


def epoch_seed(seed: int, epoch: int) -> int:
    """Returns a 32-bit seed that differs for every pair of seed and epoch."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:4], "big")


def training_batches(
    rows: int, batch_size: int, *, seed: int, epoch: int, process: Process
) -> list[list[int]]:
    """Returns one process's batches of an epoch.

    The rows are shuffled for all processes alike and dealt out in turn, so the shares are disjoint
    and equally long; up to `world_size - 1` rows are left over. An incomplete last batch is dropped
    unless it is the only one.

    Args:
        rows: Rows of the training split.
        batch_size: Rows of a batch of one process.
        seed: Seed of the run.
        epoch: Epoch, from 0.
        process: Rank and world size.

    Returns:
        Row indices, batch by batch.
    """
    generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
    order = torch.randperm(rows, generator=generator).tolist()
    share = order[process.rank :: process.world_size]
    share = share[: rows // process.world_size]
    count = batches_per_epoch(rows, batch_size, process.world_size)
    return [share[i * batch_size : (i + 1) * batch_size] for i in range(count)]


def batches_per_epoch(rows: int, batch_size: int, world_size: int) -> int:
    """Returns how many batches every process has in an epoch."""
    share = rows // world_size
    return share // batch_size or int(share > 0)


class EvaluationShare(DistributedSampler[int]):
    """Every world_size-th row: over all processes each row exactly once, none repeated.

    Being a `DistributedSampler`, it is left in place by Lightning whatever
    `use_distributed_sampler` says.

    Args:
        rows: Rows of the split.
        process: Rank and world size.
    """

    def __init__(self, rows: int, process: Process) -> None:
        super().__init__(range(rows), process.world_size, process.rank, shuffle=False)  # type: ignore[arg-type]
        self._indices = range(process.rank, rows, process.world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
