from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.datamodules.rows import PackedRows, PaddedRows
from lit_kvpred.datamodules.shares import Process
from lit_kvpred.datamodules.sources import resolve_source
from lit_kvpred.datamodules.streaming import (
    StreamedCorpus,
    StreamedRows,
    in_step,
    packed_rows,
    padded_rows,
)
from lit_kvpred.errors import DataError

from .test_rows import Documents, rows_of

ALONE = Process()
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def plain(rows):
    return [(row["input_ids"].tolist(), row["document_ids"].tolist()) for row in rows]


@given(LENGTHS, st.integers(2, 9))
def test_packed_rows_equal_those_of_tokenised_documents(lengths, sequence_length):
    numbers = itertools.count()
    documents = [list(itertools.islice(numbers, n)) for n in lengths]
    if sum(lengths) >= sequence_length:
        tokenised = PackedRows(Documents(*documents), np.arange(len(lengths)), sequence_length)
        assert plain(packed_rows(documents, sequence_length)) == rows_of(tokenised)


@given(LENGTHS, st.integers(2, 5))
def test_padded_rows_equal_those_of_tokenised_documents(lengths, sequence_length):
    documents = [list(range(n)) for n in lengths]
    tokenised = PaddedRows(Documents(*documents), np.arange(len(lengths)), sequence_length)
    assert plain(padded_rows(documents, sequence_length)) == rows_of(tokenised)


@pytest.fixture
def corpus(documents, byte_tokenizer):
    def build(num_workers=0, batch_size=1, folder=documents, text_field="text"):
        def rows(stream, split):
            return StreamedRows(
                stream,
                tokenizer=byte_tokenizer,
                split_of=lambda name: "train" if name < "doc32" else "validation",
                split=split,
                pack=padded_rows,
                sequence_length=64,
            )

        return StreamedCorpus(
            resolve_source(str(folder)).stream(text_field),
            rows,
            sources=[str(folder)],
            batch_size=batch_size,
            pad_id=0,
            seed=3,
            shuffle_buffer=5,
            num_workers=num_workers,
        )

    return build


def read(corpus, epoch=0, skip=0, process=ALONE):
    return [
        tuple(batch["input_ids"].flatten().tolist())
        for batch in corpus.epoch(epoch, skip, process=process)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_is_a_shuffle_of_the_training_documents(
    corpus, num_workers, documents, byte_tokenizer
):
    texts = [path.read_text() for path in sorted(documents.iterdir())[:32]]
    expected = [(*byte_tokenizer.encode(t), byte_tokenizer.eos_token_id) for t in texts]
    stream = corpus(num_workers)
    first = read(stream)
    assert sorted(first) == sorted(expected)
    assert first != expected
    assert read(stream) == first
    assert read(stream, epoch=1) != first
    assert sorted(read(stream, epoch=1)) == sorted(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_opened_later_is_the_rest_of_it(corpus, num_workers):
    stream = corpus(num_workers, batch_size=3)
    whole = read(stream)
    assert [read(stream, skip=k) for k in (1, 4)] == [whole[1:], whole[4:]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_an_epoch(corpus, num_workers, world_size):
    stream = corpus(num_workers)
    shares = [read(stream, process=Process(r, world_size)) for r in range(world_size)]
    joined = [batch for share in shares for batch in share]
    assert sorted(joined) == sorted(read(stream))
    assert len(set(joined)) == len(joined)


def test_evaluation_rows_are_the_first_of_their_split(corpus, documents, byte_tokenizer):
    rows = corpus().evaluation_rows("validation", 3)
    texts = [path.read_text() for path in sorted(documents.iterdir())[32:35]]
    assert len(rows) == 3
    assert [byte_tokenizer.decode(r["input_ids"][:-1]) for r in rows] == texts


def test_calibration_reads_what_a_single_process_reads_first(corpus):
    batches = corpus(num_workers=2, batch_size=2).calibration(3)
    assert [tuple(b["input_ids"].flatten().tolist()) for b in batches] == read(
        corpus(batch_size=2)
    )[:3]


def test_too_few_sequences_for_a_batch(corpus):
    with pytest.raises(DataError, match="fewer than 99 training sequences for each of 1 workers"):
        read(corpus(batch_size=99))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_malformed_record_is_named_in_one_line(corpus, tmp_path, num_workers):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    with pytest.raises(DataError) as caught:
        read(corpus(num_workers, folder=path))
    assert str(caught.value).startswith(f"{path}, line 1 has no field 'text'")
    assert "\n" not in str(caught.value)


def test_all_processes_end_with_the_shortest():
    def agree(here):
        asked.append(here)
        return here and len(asked) < 3

    asked: list[bool] = []
    assert list(in_step(iter("abcd"), agree)) == ["a", "b"]
    assert asked == [True, True, True]
    asked.clear()
    assert list(in_step(iter("a"), agree)) == ["a"]
    assert asked == [True, False]
