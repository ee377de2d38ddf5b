from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.datamodules.rows import PackedRows, PaddedRows, collate, make_row
from lit_kvpred.datamodules.spread import spread


class Documents:
    """Documents in memory, as `DocumentTokens` gives them."""

    def __init__(self, *documents):
        self.documents = [np.array(d, dtype=np.int32) for d in documents]
        self.lengths = np.array([len(d) for d in documents], dtype=np.int64)

    def piece(self, document, start, stop):
        return self.documents[document][start:stop]


def rows_of(rows):
    return [
        (r["input_ids"].tolist(), r["document_ids"].tolist())
        for r in map(rows.__getitem__, range(len(rows)))
    ]


def test_packed_rows_and_their_document_ids():
    tokens = Documents([1, 2, 0], [3, 0], [4, 5, 6, 7, 8, 0], [9, 0])
    assert rows_of(PackedRows(tokens, np.arange(4), 4)) == [
        ([1, 2, 0, 3], [0, 0, 0, 1]),
        ([0, 4, 5, 6], [0, 1, 1, 1]),
        ([7, 8, 0, 9], [0, 0, 0, 1]),
    ]


def test_packed_rows_use_the_chosen_documents():
    tokens = Documents([1, 0], [2, 0], [3, 0])
    assert rows_of(PackedRows(tokens, np.array([2, 0]), 2)) == [([3, 0], [0, 0]), ([1, 0], [0, 0])]


def test_an_incomplete_only_row_is_kept():
    assert rows_of(PackedRows(Documents([1, 0]), np.arange(1), 9)) == [([1, 0], [0, 0])]
    assert len(PackedRows(Documents([1, 0]), np.arange(0), 9)) == 0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(2, 9))
def test_packed_rows_are_the_token_stream(lengths, sequence_length):
    stream = iter(range(1000))
    documents = [[next(stream) for _ in range(n)] for n in lengths]
    rows = PackedRows(Documents(*documents), np.arange(len(documents)), sequence_length)
    joined = [token for ids, _ in rows_of(rows) for token in ids]
    total = sum(lengths)
    kept = total if total < sequence_length else total - total % sequence_length
    assert joined == list(range(kept))
    owner = [i for i, n in enumerate(lengths) for _ in range(n)]
    for number, (ids, document_ids) in enumerate(rows_of(rows)):
        owners = owner[number * sequence_length :][: len(ids)]
        assert document_ids == [o - owners[0] for o in owners]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(2, 5))
def test_padded_rows_are_pieces_of_documents(lengths, sequence_length):
    stream = iter(range(1000))
    documents = [[next(stream) for _ in range(n)] for n in lengths]
    rows = PaddedRows(Documents(*documents), np.arange(len(documents)), sequence_length)
    pieces = [
        document[i : i + sequence_length]
        for document in documents
        for i in range(0, len(document), sequence_length)
    ]
    assert [ids for ids, _ in rows_of(rows)] == [piece for piece in pieces if len(piece) > 1]
    assert all(set(document_ids) == {0} for _, document_ids in rows_of(rows))


def test_collate_pads_on_the_right():
    batch = collate([make_row([[1, 2], [3]]), make_row([[4]])], pad_id=7)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["document_ids"].tolist() == [[0, 0, 1], [0, -1, -1]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@pytest.mark.parametrize(
    ("available", "wanted", "expected"),
    [
        (10, 5, [0, 2, 4, 6, 8]),
        (3, None, [0, 1, 2]),
        (3, 9, [0, 1, 2]),
        (7, 3, [0, 2, 4]),
        (0, 4, []),
    ],
)
def test_spread(available, wanted, expected):
    assert spread(available, wanted) == expected
