"""Rows made on the fly from a stream of documents, for data too large to tokenise beforehand."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, IterableDataset, Subset, get_worker_info
from transformers import PreTrainedTokenizerBase

from lit_kvpred.data_splits import Split
from lit_kvpred.errors import DataError

from .rows import Batch, Row, collate, make_row
from .shares import Process, epoch_seed
from .token_cache import encode

_DOCUMENTS_PER_CALL = 32

Pack = Callable[[Iterable[Sequence[int]], int], Iterator[Row]]
"""(documents' tokens, sequence length) -> rows."""


def packed_rows(documents: Iterable[Sequence[int]], sequence_length: int) -> Iterator[Row]:
    """Yields rows of exactly `sequence_length` tokens; what is left at the end is dropped."""
    pieces: list[Sequence[int]] = []
    room = sequence_length
    for document in documents:
        rest = document
        while len(rest) >= room:
            yield make_row([*pieces, rest[:room]])
            pieces, rest, room = [], rest[room:], sequence_length
        if len(rest):
            pieces.append(rest)
            room -= len(rest)


def padded_rows(documents: Iterable[Sequence[int]], sequence_length: int) -> Iterator[Row]:
    """Yields every document in pieces; a last piece of a single token is left out."""
    for document in documents:
        for start in range(0, len(document), sequence_length):
            piece = document[start : start + sequence_length]
            if len(piece) > 1:
                yield make_row([piece])


class StreamedRows(IterableDataset[Row]):
    """The rows of one split of a stream of documents.

    Args:
        documents: Stream of `name` and `text`; it divides itself among the loader's workers.
        tokenizer: Turns text into ids.
        split_of: Split of a document by its name.
        split: The split to keep.
        pack: How rows are made of documents.
        sequence_length: Most tokens of a row.
    """

    def __init__(
        self,
        documents: Iterable[dict[str, str]],
        *,
        tokenizer: PreTrainedTokenizerBase,
        split_of: Callable[[str], Split],
        split: Split,
        pack: Pack,
        sequence_length: int,
    ) -> None:
        self._documents = documents
        self._tokenizer = tokenizer
        self._split_of = split_of
        self._split = split
        self._pack = pack
        self._sequence_length = sequence_length

    def __iter__(self) -> Iterator[Row]:
        if get_worker_info() is not None:
            # The workers are the parallelism; threads after a fork would be refused with a warning.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        return self._pack(self._token_lists(), self._sequence_length)

    def _token_lists(self) -> Iterator[list[int]]:
        texts = (
            document["text"]
            for document in self._documents
            if self._split_of(document["name"]) == self._split and document["text"].strip()
        )
        while chunk := list(itertools.islice(texts, _DOCUMENTS_PER_CALL)):
            yield from encode(chunk, self._tokenizer)


class StreamedCorpus:
    """Training epochs and evaluation rows of a stream.

    An epoch's order is a pure function of the seed, the epoch, the number of processes and the
    number of workers. Continuing within an epoch reads its beginning again without training on it.

    Args:
        documents: Stream of `name` and `text`.
        rows: Makes the rows of a split of a stream.
        sources: Where the documents come from, as the user named it.
        batch_size: Rows of a batch of one process.
        pad_id: Token that fills padding.
        seed: Seed of the run.
        shuffle_buffer: Documents among which the next one is drawn.
        num_workers: Worker processes; at most one a shard has work.
    """

    def __init__(
        self,
        documents: Any,
        rows: Callable[..., StreamedRows],
        *,
        sources: Sequence[str],
        batch_size: int,
        pad_id: int,
        seed: int,
        shuffle_buffer: int,
        num_workers: int,
    ) -> None:
        self._documents = documents
        self._rows = rows
        self._sources = list(sources)
        self._batch_size = batch_size
        self._collate = partial(collate, pad_id=pad_id)
        self._seed = seed
        self._shuffle_buffer = shuffle_buffer
        self._num_workers = num_workers

    def evaluation_rows(self, split: Split, count: int | None) -> Subset[Row]:
        """Returns the first `count` rows of a split, in the stream's own order."""
        rows = list(itertools.islice(self._rows(self._documents, split=split), count))
        return Subset(rows, range(len(rows)))  # type: ignore[arg-type]

    def epoch(self, epoch: int, skip: int, *, process: Process) -> Iterator[Batch]:
        """Yields one process's batches of an epoch; incomplete batches are dropped.

        Args:
            epoch: Epoch, from 0.
            skip: Batches to leave out at the start.
            process: Rank and world size.

        Yields:
            The batches.

        Raises:
            DataError: The epoch has no complete batch, or a source is malformed.
        """
        batches = iter(self._loader(epoch, process, self._num_workers))
        count = 0
        while (batch := _next_or_none(batches)) is not None:
            count += 1
            if count > skip:
                yield batch
        if count == 0:
            raise DataError(
                f"the stream has fewer than {self._batch_size} training sequences for each of"
                f" {max(1, self._num_workers)} workers; lower batch_size or num_workers"
            )

    def calibration(self, count: int) -> Iterable[Batch]:
        """Returns the first `count` batches of epoch 0 as one process without workers sees them."""
        return list(itertools.islice(self._loader(0, Process(), num_workers=0), count))

    def length(self, process: Process) -> None:
        """Batches of an epoch: unknown."""

    def order_settings(self) -> dict[str, Any]:
        """Returns what the order of a stream depends on, besides the data module's settings."""
        return {
            "sources": self._sources,
            "num_workers": self._num_workers,
            "shuffle_buffer": self._shuffle_buffer,
        }

    def describe(self) -> dict[str, Any]:
        """Returns nothing: a stream's size is not known."""
        return {}

    def _loader(self, epoch: int, process: Process, num_workers: int) -> DataLoader[Batch]:
        shuffled = self._documents.shuffle(
            seed=epoch_seed(self._seed, epoch), buffer_size=self._shuffle_buffer
        )
        share = split_dataset_by_node(shuffled, process.rank, process.world_size)
        return DataLoader(
            self._rows(share, split="train"),
            batch_size=self._batch_size,
            collate_fn=self._collate,
            num_workers=num_workers,
            drop_last=True,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )


def in_step(batches: Iterator[Batch], agree: Callable[[bool], bool]) -> Iterator[Batch]:
    """Ends an epoch for all processes as soon as it ends for one.

    Shares of a stream differ in length; without this the longer ones would wait for ever.

    Args:
        batches: This process's batches.
        agree: Whether all processes say yes; called once a batch by all of them.

    Yields:
        The batches that every process has a counterpart of.
    """
    while True:
        batch = next(batches, None)
        if not agree(batch is not None) or batch is None:
            return
        yield batch


def _next_or_none(batches: Iterator[Batch]) -> Batch | None:
    try:
        return next(batches, None)
    except DataError as error:
        # A worker's error arrives with the worker's whole traceback as its message.
        reason = str(error).strip().splitlines()[-1]
        raise DataError(reason.removeprefix(f"{DataError.__module__}.DataError: ")) from None
