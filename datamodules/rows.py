"""Training rows cut from documents, and batches made of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from .token_cache import DocumentTokens

Row = dict[str, Tensor]
"""`input_ids` and `document_ids`, long tensors of one length (at most the sequence length)."""
Batch = dict[str, Tensor]
"""Long tensors (B, T): `input_ids`, `attention_mask` (1 real, 0 right padding), `document_ids`."""


class PackedRows(Dataset[Row]):
    """The documents one after another, cut every `sequence_length` tokens.

    The separator belongs to the document it ends. An incomplete last row is dropped unless it is
    the only one. `document_ids` count the documents of a row from 0.

    Args:
        tokens: All documents.
        documents: Indices of the documents to use, in order.
        sequence_length: Tokens of a row.
    """

    def __init__(self, tokens: DocumentTokens, documents: np.ndarray, sequence_length: int) -> None:
        self._tokens = tokens
        self._documents = documents
        self._length = sequence_length
        self._ends = np.cumsum(tokens.lengths[documents])
        self._total = int(self._ends[-1]) if len(documents) else 0

    def __len__(self) -> int:
        return self._total // self._length or int(self._total > 0)

    def __getitem__(self, row: int) -> Row:
        at = row * self._length
        stop = min(at + self._length, self._total)
        position = int(np.searchsorted(self._ends, at, side="right"))
        pieces = []
        while at < stop:
            document = self._documents[position]
            end = self._ends[position]
            begin = end - self._tokens.lengths[document]
            pieces.append(self._tokens.piece(document, at - begin, min(stop, end) - begin))
            at = min(stop, end)
            position += 1
        return make_row(pieces)


class PaddedRows(Dataset[Row]):
    """Every document on its own, in pieces of at most `sequence_length` tokens, a piece a row.

    A last piece of a single token is left out, having nothing to predict.

    Args:
        tokens: All documents.
        documents: Indices of the documents to use, in order.
        sequence_length: Most tokens of a row.
    """

    def __init__(self, tokens: DocumentTokens, documents: np.ndarray, sequence_length: int) -> None:
        self._tokens = tokens
        self._documents = documents
        self._length = sequence_length
        lengths = tokens.lengths[documents]
        rows = -(-lengths // sequence_length) - (lengths % sequence_length == 1)
        self._ends = np.cumsum(rows)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, row: int) -> Row:
        position = int(np.searchsorted(self._ends, row, side="right"))
        before = self._ends[position - 1] if position else 0
        start = (row - before) * self._length
        document = self._documents[position]
        stop = min(start + self._length, self._tokens.lengths[document])
        return make_row([self._tokens.piece(document, start, stop)])


def make_row(pieces: Sequence[np.ndarray | Sequence[int]]) -> Row:
    """Joins pieces of different documents into a row."""
    lengths = [len(piece) for piece in pieces]
    ids = np.concatenate(pieces).astype(np.int64)
    return {
        "input_ids": torch.from_numpy(ids),
        "document_ids": torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(lengths)),
    }


def collate(rows: list[Row], pad_id: int) -> Batch:
    """Stacks rows into a batch, padded on the right to the longest of them.

    Args:
        rows: B rows.
        pad_id: Token that fills the padding; its document id is -1, its mask 0.

    Returns:
        The batch, (B, T) each.
    """
    documents = pad_sequence([r["document_ids"] for r in rows], batch_first=True, padding_value=-1)
    return {
        "input_ids": pad_sequence(
            [r["input_ids"] for r in rows], batch_first=True, padding_value=pad_id
        ),
        "attention_mask": (documents >= 0).long(),
        "document_ids": documents,
    }
