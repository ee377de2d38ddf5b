"""Documents of text files, record files and plain sources: what is one document, and its name.

A document's name decides its split (see `lit_kvpred.data_splits`), so it never depends on where a
source lies on the disk.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lit_kvpred.errors import DataError
from lit_kvpred.json_text import parse_json

_RECORD_LINES = frozenset({".jsonl", ".ndjson"})
_LONG_TEXT = 16_384
_BLOCK = 8_192
_GZIP = ".gz"


class TextFile(NamedTuple):
    """A file of a source.

    Attributes:
        name: Path relative to the root of its source, with forward slashes.
        path: Where the file lies.
    """

    name: str
    path: str


class Document(NamedTuple):
    """A piece of text that is never divided between splits.

    Attributes:
        name: Stable name, the same on every machine.
        text: Its text, not blank.
    """

    name: str
    text: str


def suffix_of(name: str) -> str:
    """Returns the suffix that tells what a file holds, in lower case, whether gzip'ed or not."""
    return Path(name.lower().removesuffix(_GZIP)).suffix


def read_documents(file: TextFile, text_field: str) -> Iterator[Document]:
    """Yields the documents of a file; blank ones are left out.

    Records of `.jsonl`, `.json` (a list of objects) and `.parquet` files are documents named
    `file:id` where they have an `id` field, else `file:line` (or row, from 1). A `.txt` file of
    more than 16,384 characters becomes blocks of about 8,192, cut at blank lines and named
    `file:block`, so that one long file can fill several splits. Every other file is one document.
    All but Parquet files may be gzip'ed, with `.gz` after their suffix.

    Args:
        file: The file to read; text is taken as UTF-8, undecodable bytes are replaced.
        text_field: The field of a record that holds its text.

    Yields:
        The documents in the order of the file.

    Raises:
        DataError: The file cannot be read or is binary, a line is not JSON, or a record lacks the
            text field.
    """
    suffix = suffix_of(file.name)
    if suffix in _RECORD_LINES or suffix in (".json", ".parquet"):
        for place, record in read_records(file):
            text = _text_of(record, text_field, place)
            if text.strip():
                yield Document(f"{file.name}:{record.get('id', place.number)}", text)
        return
    text = _read_text(file)
    if suffix == ".txt" and len(text) > _LONG_TEXT:
        for number, block in enumerate(_blocks(text), 1):
            yield Document(f"{file.name}:{number}", block)
    elif text.strip():
        yield Document(file.name, text)


class Place(NamedTuple):
    """Where a record stands: its file, "line" or "record", and the number from 1."""

    file: str
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


def read_records(file: TextFile) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yields the records of a `.jsonl`, `.json` or `.parquet` file with their places.

    JSON files may be gzip'ed: `.jsonl.gz`, `.json.gz`.

    Raises:
        DataError: The file cannot be read, or something in it is not a record.
    """
    suffix = suffix_of(file.name)
    if suffix == ".parquet":
        yield from _parquet_records(file)
    elif suffix == ".json":
        yield from _list_records(file)
    else:
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                place = Place(file.path, "line", number)
                yield place, _object(_parse(line, place), place)


def _lines(file: TextFile) -> Iterator[str]:
    # newline="\n": other line breaks may stand inside a JSON string.
    with _opened(file, newline="\n") as lines:
        yield from lines


@contextmanager
def _opened(file: TextFile, newline: str | None = None) -> Iterator[TextIO]:
    """Opens a file's text, gzip'ed or not; reading it raises DataError where it is damaged."""
    zipped = file.name.lower().endswith(_GZIP)
    try:
        with (gzip.open if zipped else open)(
            file.path, "rt", encoding="utf-8", errors="replace", newline=newline
        ) as text:
            yield cast(TextIO, text)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{file.path} is damaged or no gzip file, fetch it again: {_first_line(error)}"
        ) from error
    except OSError as error:
        raise DataError(f"{file.path} cannot be read: {error.strerror}") from error


def _list_records(file: TextFile) -> Iterator[tuple[Place, dict[str, Any]]]:
    records = _parse(_read_text(file), file.path)
    if not isinstance(records, list):
        raise DataError(
            f"{file.path} is not a list of JSON objects; write one object a line as .jsonl"
        )
    for number, record in enumerate(records, 1):
        place = Place(file.path, "record", number)
        yield place, _object(record, place)


def _parquet_records(file: TextFile) -> Iterator[tuple[Place, dict[str, Any]]]:
    number = 0
    try:
        for batch in pq.ParquetFile(file.path).iter_batches(batch_size=1024):
            for record in batch.to_pylist():
                number += 1
                yield Place(file.path, "record", number), record
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.path} cannot be read as Parquet: {_first_line(error)}") from error


def _parse(text: str, place: Place | str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{place} is not JSON: {error}") from error


def _object(record: Any, place: Place) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise DataError(f"{place} is a {type(record).__name__}, not a JSON object")
    return record


def _text_of(record: Mapping[str, Any], field: str, place: Place | str) -> str:
    if field not in record:
        raise DataError(
            f"{place} has no field {field!r}; set text_field to one of {sorted(record)}"
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{place}: field {field!r} is a {type(text).__name__}, not text")
    return text


def _read_text(file: TextFile) -> str:
    with _opened(file) as opened:
        text = opened.read()
    if "\0" in text:
        raise DataError(f"{file.path} holds binary data, no UTF-8 text; convert it or leave it out")
    return text


def _blocks(text: str) -> Iterator[str]:
    block = ""
    for paragraph in re.split(r"(?<=\n\n)(?=[^\n])", text):
        block += paragraph
        if len(block) >= _BLOCK:
            yield block
            block = ""
    if block.strip():
        yield block


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
