"""Documents as tokens: computed once, kept in an Arrow file, read back without copying."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from lit_kvpred.errors import ConfigurationError, DataError

from .documents import Document
from .sources import Source

_FORMAT = 2  # a change of what the files hold must change their names
_SCHEMA = pa.schema({"name": pa.string(), "source": pa.int32(), "input_ids": pa.list_(pa.int32())})
_DOCUMENTS_PER_CHUNK = 256

NumberedDocument = tuple[int, Document]
"""The number of a document's source, and the document."""


class DocumentTokens:
    """Token ids of documents, each ended by the separator; memory-mapped where read from a file.

    Attributes:
        names: The documents' names.
        sources: (documents,) int32, number of the source that each came from.
        lengths: (documents,) int64, tokens of each document including its separator.
    """

    def __init__(self, dataset: Dataset) -> None:
        table = dataset.data
        self.names: list[str] = table.column("name").to_pylist()
        self.sources = table.column("source").to_numpy()
        chunks = table.column("input_ids").chunks
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        offsets = [chunk.offsets.to_numpy().astype(np.int64) for chunk in chunks]
        self._chunk = np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
        self._start = np.concatenate([o[:-1] for o in offsets] or [np.zeros(0, np.int64)])
        self.lengths = np.concatenate([np.diff(o) for o in offsets] or [np.zeros(0, np.int64)])

    def piece(self, document: int, start: int, stop: int) -> np.ndarray:
        """Returns tokens [start, stop) of a document as an int32 view."""
        begin = self._start[document]
        return self._values[self._chunk[document]][begin + start : begin + stop]


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a hash of what the tokenizer does to text, wherever it was loaded from."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        content: dict[str, Any] = {
            "class": type(tokenizer).__name__,
            "vocab": tokenizer.get_vocab(),
        }
    else:
        content = json.loads(backend.to_str())
        # Left behind by earlier calls with padding=True or truncation=True.
        content |= {"padding": None, "truncation": None}
    content["specials"] = [tokenizer.eos_token_id, tokenizer.bos_token_id]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def separator_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the token that ends every document: EOS, or BOS where there is no EOS.

    Raises:
        ConfigurationError: The tokenizer has neither.
    """
    for token in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        if token is not None:
            return int(token)
    raise ConfigurationError(
        f"tokenizer {tokenizer.name_or_path!r} has no EOS or BOS token to separate documents with"
    )


def load_document_tokens(
    sources: Sequence[Source],
    tokenizer: PreTrainedTokenizerBase,
    *,
    text_field: str,
    limit_documents: int | None,
    cache_dir: Path,
) -> DocumentTokens:
    """Returns the tokens of all documents, from the cache where the same were tokenised before.

    The cache file is named by a hash of the tokenizer, of the sources' files (names, sizes and
    times of change) and of the settings. It appears under that name only when it is complete.

    Args:
        sources: Where the documents come from.
        tokenizer: Turns text into ids, without special tokens; the separator is appended.
        text_field: The field of a record that holds its text.
        limit_documents: Keep this many, the first in the order of the sources.
        cache_dir: Folder of the cache.

    Returns:
        The documents' tokens.

    Raises:
        DataError: There is no document, a source is malformed, or the cache cannot be written.
    """
    key = {
        "format": _FORMAT,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "sources": [source.identity() for source in sources],
        "text_field": text_field,
        "limit_documents": limit_documents,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_dir / "tokens" / f"{digest}.arrow"
    if path.exists():
        # A file damaged from outside is replaced, not trusted.
        with contextlib.suppress(pa.ArrowException, OSError):
            return DocumentTokens(Dataset.from_file(str(path)))
    documents = (
        (number, document)
        for number, source in enumerate(sources)
        for document in source.documents(text_field)
    )
    first = next(documents, None)
    if first is None:
        places = ", ".join(place for source in sources for place in source.places)
        raise DataError(f"no document with text in {places}; name other sources")
    found = itertools.chain([first], documents)
    try:
        _write(path, itertools.islice(found, limit_documents), tokenizer)
    except OSError as error:
        raise DataError(
            f"the token cache in {cache_dir} cannot be written ({error.strerror}); set cache_dir"
        ) from error
    return DocumentTokens(Dataset.from_file(str(path)))


def encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Returns each text's ids without special tokens, ended by the separator."""
    separator = separator_id(tokenizer)
    # verbose=False: documents longer than the model's positions are cut into sequences later.
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return [[*ids, separator] for ids in encoded]


def _write(
    path: Path, documents: Iterator[NumberedDocument], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Writes under another name first: a crash leaves nothing that looks like a cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="building-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write_stream(file, documents, tokenizer)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _write_stream(
    file: Any, documents: Iterator[NumberedDocument], tokenizer: PreTrainedTokenizerBase
) -> None:
    with (
        pa.ipc.new_stream(file, _SCHEMA) as writer,
        tqdm(desc="tokenising", unit=" documents", leave=False, disable=None) as progress,
    ):
        while chunk := list(itertools.islice(documents, _DOCUMENTS_PER_CHUNK)):
            ids = encode([document.text for _, document in chunk], tokenizer)
            names = [document.name for _, document in chunk]
            numbers = [number for number, _ in chunk]
            writer.write_batch(pa.record_batch([names, numbers, ids], schema=_SCHEMA))
            progress.update(len(chunk))
