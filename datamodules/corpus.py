"""Tokenised documents divided into splits, rows and epochs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from lit_kvpred.data_splits import Split
from lit_kvpred.errors import DataError

from .rows import Batch, PackedRows, PaddedRows, Row, collate
from .shares import Process, batches_per_epoch, training_batches
from .spread import spread
from .token_cache import DocumentTokens

Rows = PackedRows | PaddedRows | ConcatDataset[Row]

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Corpus(Protocol):
    """What the text data module needs to know of its data, tokenised beforehand or streamed."""

    def epoch(self, epoch: int, skip: int, *, process: Process) -> Iterator[Batch]:
        """Yields one process's batches of an epoch, but for the first `skip`."""

    def length(self, process: Process) -> int | None:
        """Returns the batches of an epoch of one process; None when not known beforehand."""

    def evaluation_rows(self, split: Split, count: int | None) -> Subset[Row]:
        """Returns `count` fixed rows of a split; all of them for None."""

    def calibration(self, count: int) -> Iterable[Batch]:
        """Returns `count` training batches in a fixed order, the same for every process."""

    def order_settings(self) -> dict[str, Any]:
        """Returns what the order of batches depends on in one kind of corpus only."""

    def describe(self) -> dict[str, Any]:
        """Returns sizes as plain values."""


class TokenisedCorpus:
    """Documents tokenised beforehand.

    Args:
        tokens: All documents.
        row_type: How rows are made of documents.
        split_of: Split of a document by its name.
        sequence_length: Most tokens of a row.
        batch_size: Rows of a batch of one process.
        pad_id: Token that fills padding.
        seed: Seed of the run.
        num_workers: Worker processes of a training loader.
        balance_sources: Each source contributes as many rows of a split as the smallest one.
        max_training_tokens: Keep about this many training tokens, evenly spread.
    """

    def __init__(
        self,
        tokens: DocumentTokens,
        *,
        row_type: type[PackedRows] | type[PaddedRows],
        split_of: Callable[[str], Split],
        sequence_length: int,
        batch_size: int,
        pad_id: int,
        seed: int,
        num_workers: int,
        balance_sources: bool,
        max_training_tokens: int | None,
    ) -> None:
        self._tokens = tokens
        splits = np.array([split_of(name) for name in tokens.names])
        self._documents = {split: np.flatnonzero(splits == split) for split in SPLITS}

        def rows_of(documents: np.ndarray) -> PackedRows | PaddedRows:
            return row_type(tokens, documents, sequence_length)

        self._rows: dict[Split, Rows] = {
            split: _balanced(documents, tokens.sources, rows_of)
            if balance_sources
            else rows_of(documents)
            for split, documents in self._documents.items()
        }
        wanted = max_training_tokens and max(1, max_training_tokens // sequence_length)
        self._training = Subset(
            self._rows["train"], spread(len(self._rows["train"]), wanted or None)
        )
        self._batch_size = batch_size
        self._collate = partial(collate, pad_id=pad_id)
        self._seed = seed
        self._num_workers = num_workers

    def epoch(self, epoch: int, skip: int, *, process: Process) -> Iterator[Batch]:
        """Yields one process's batches of an epoch, but for the first `skip`."""
        batches = self._order(epoch, process)[skip:]
        return iter(self._loader(batches, self._num_workers))

    def length(self, process: Process) -> int:
        """Returns the batches of an epoch of one process.

        Raises:
            DataError: There are fewer training rows than processes.
        """
        if len(self._training) < process.world_size:
            raise DataError(
                f"{len(self._training)} training sequences are too few for {process.world_size}"
                " process(es); add documents, or lower sequence_length or the held-out shares"
            )
        return batches_per_epoch(len(self._training), self._batch_size, process.world_size)

    def evaluation_rows(self, split: Split, count: int | None) -> Subset[Row]:
        """Returns `count` rows spread evenly over a split; all of them for None."""
        rows = self._rows[split]
        return Subset(rows, spread(len(rows), count))

    def calibration(self, count: int) -> Iterable[Batch]:
        """Returns the first `count` batches of epoch 0 of a run of one process."""
        return self._loader(self._order(0, Process())[:count], num_workers=0)

    def order_settings(self) -> dict[str, Any]:
        """Returns a summary of the training documents' names and lengths.

        It survives another machine, another path or a new time stamp, and changes with the data.
        """
        documents = self._documents["train"]
        digest = hashlib.sha256("\n".join(self._tokens.names[i] for i in documents).encode())
        digest.update(self._tokens.lengths[documents].tobytes())
        return {"sources": f"{len(documents)} documents of hash {digest.hexdigest()[:16]}"}

    def describe(self) -> dict[str, Any]:
        """Returns documents, tokens and sequences of every split."""
        lengths = self._tokens.lengths
        sequences = {split: len(rows) for split, rows in self._rows.items()}
        return {
            "documents": {split: len(documents) for split, documents in self._documents.items()},
            "tokens": {
                s: int(lengths[documents].sum()) for s, documents in self._documents.items()
            },
            "sequences": sequences | {"train": len(self._training)},
        }

    def _order(self, epoch: int, process: Process) -> list[list[int]]:
        return training_batches(
            len(self._training), self._batch_size, seed=self._seed, epoch=epoch, process=process
        )

    def _loader(self, batches: list[list[int]], num_workers: int) -> DataLoader[Batch]:
        return DataLoader(
            self._training,
            batch_sampler=batches,
            collate_fn=self._collate,
            num_workers=num_workers,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )


def _balanced(
    documents: np.ndarray,
    sources: np.ndarray,
    rows_of: Callable[[np.ndarray], PackedRows | PaddedRows],
) -> Rows:
    """As many rows of each source that has any as of the smallest one, evenly spread."""
    present = np.unique(sources[documents])
    parts = [rows_of(documents[sources[documents] == source]) for source in present]
    if not parts:
        return rows_of(documents)
    smallest = min(map(len, parts))
    return ConcatDataset([Subset(part, spread(len(part), smallest)) for part in parts])
