"""Where training text comes from: this installation, files, folders, globs and the hub."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from datasets import Features, IterableDataset, Value

from lit_kvpred.data_splits import standard_library_files
from lit_kvpred.errors import DataError

from .documents import Document, TextFile, read_documents, suffix_of
from .installed_text import description_files, docstring_files, read_description, read_docstrings

DOCUMENT_FEATURES = Features({"name": Value("string"), "text": Value("string")})

DocumentReader = Callable[[TextFile, str], Iterator[Document]]
"""A file and the field of a record that holds its text, to the file's documents."""

_HUB_PREFIX = "hub:"
# Settings and lock files are JSON too, so a folder contributes no .json files.
_FOLDER_SUFFIXES = frozenset(
    (
        *(".txt", ".md", ".rst", ".tex", ".html", ".xml", ".jsonl", ".ndjson", ".parquet"),
        *(".py", ".pyi", ".c", ".cc", ".cpp", ".h", ".hpp", ".rs", ".go", ".java", ".kt", ".scala"),
        *(".js", ".ts", ".tsx", ".css", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".swift", ".sh"),
        *(".sql", ".toml", ".yaml", ".yml"),
    )
)


@dataclass(frozen=True)
class FileSource:
    """Files of this machine, in a fixed order.

    Attributes:
        files: Their names and places.
        read: Yields the documents of one.
    """

    files: tuple[TextFile, ...]
    read: DocumentReader = read_documents

    @property
    def places(self) -> list[str]:
        """Returns where the files are, a few of them by name."""
        named = [str(file.path) for file in self.files[:3]]
        more = len(self.files) - len(named)
        return named + ([f"{more} more files"] if more else [])

    def documents(self, text_field: str) -> Iterator[Document]:
        """Yields the documents of all files."""
        for file in self.files:
            yield from self.read(file, text_field)

    def stream(self, text_field: str) -> IterableDataset:
        """Returns the documents as a stream with one shard a file."""
        return IterableDataset.from_generator(
            _documents_of_shards,
            features=DOCUMENT_FEATURES,
            gen_kwargs={
                "files": [tuple(file) for file in self.files],
                "text_field": text_field,
                "read": self.read,
            },
        )

    def identity(self) -> list[Any]:
        """Returns plain values that change when a file is added, removed or written to."""
        stats = [Path(file.path).stat() for file in self.files]
        return [self.read.__name__] + [
            [file.name, str(Path(file.path).resolve()), stat.st_size, stat.st_mtime_ns]
            for file, stat in zip(self.files, stats, strict=True)
        ]


@dataclass(frozen=True)
class HubSource:
    """The train split of a data set of the Hugging Face hub."""

    path: str
    config: str | None = None

    @property
    def places(self) -> list[str]:
        """Returns the data set's name."""
        return [self.path]

    def documents(self, text_field: str) -> Iterator[Document]:
        """Yields the rows that have text, named by their `id` or the hash of their text."""
        for row in load_hub_split(self.path, self.config, "train"):
            document = _hub_document(row, path=self.path, text_field=text_field)
            if document["text"].strip():
                yield Document(**document)

    def stream(self, text_field: str) -> IterableDataset:
        """Returns the rows as a stream of documents."""
        rows = load_hub_split(self.path, self.config, "train", streaming=True)
        return rows.map(
            partial(_hub_document, path=self.path, text_field=text_field),
            remove_columns=rows.column_names,
            features=DOCUMENT_FEATURES,
        )

    def identity(self) -> list[Any]:
        """Returns plain values that change with the downloaded data."""
        data = load_hub_split(self.path, self.config, "train")
        return [self.path, self.config, data._fingerprint, len(data)]


Source = FileSource | HubSource


def resolve_source(source: str) -> Source:
    """Finds what a source string names.

    Args:
        source: `stdlib` for the running interpreter's own sources (without tests and bundled
            packages); `package_descriptions` for the prose that installed packages come with;
            `package_docstrings` for the docstrings of those that this one requires; `hub:NAME` or
            `hub:NAME:CONFIG` for the train split of a hub data set; else a file, a folder (its
            text, code, `.jsonl` and `.parquet` files) or a glob. Text and records may be gzip'ed.

    Returns:
        The source, its files ordered by name.

    Raises:
        DataError: Nothing of that name exists, or the folder or glob holds no usable file.
    """
    if source in _INSTALLED:
        return _INSTALLED[source]()
    if source.startswith(_HUB_PREFIX):
        name, _, config = source.removeprefix(_HUB_PREFIX).partition(":")
        return HubSource(name, config or None)
    path = Path(source).expanduser()
    if path.is_file():
        return FileSource((TextFile(path.name, str(path)),))
    if path.is_dir():
        return FileSource(_folder_files(path))
    if glob.has_magic(source):
        return FileSource(_glob_files(path))
    raise DataError(
        f"source {source!r} is no file, folder or glob; a hub data set is written {_HUB_PREFIX}NAME"
    )


def concatenated_stream(sources: Sequence[Source], text_field: str) -> IterableDataset:
    """Returns the documents of all sources as one stream of `name` and `text`."""
    return datasets.concatenate_datasets([source.stream(text_field) for source in sources])


def load_hub_split(path: str, config: str | None, split: str, *, streaming: bool = False) -> Any:
    """Loads one split of a hub data set.

    Raises:
        DataError: The data set, its configuration or the split is unknown or out of reach.
    """
    try:
        return datasets.load_dataset(path, config, split=split, streaming=streaming)
    except Exception as error:  # whatever the hub client, its transport and the readers raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        name = path if config is None else f"{path}:{config}"
        raise DataError(
            f"hub data set {name!r} (split {split}) cannot be loaded, use a local file: {reason}"
        ) from error


def _standard_library() -> FileSource:
    return FileSource(tuple(TextFile(n, str(p)) for n, p in standard_library_files()))


_INSTALLED: dict[str, Callable[[], FileSource]] = {
    "stdlib": _standard_library,
    "package_descriptions": lambda: FileSource(description_files(), read_description),
    "package_docstrings": lambda: FileSource(docstring_files(), read_docstrings),
}


def _documents_of_shards(
    files: list[tuple[str, str]], text_field: str, read: DocumentReader
) -> Iterator[dict[str, str]]:
    for file in files:
        for document in read(TextFile(*file), text_field):
            yield document._asdict()


def _hub_document(row: Mapping[str, Any], *, path: str, text_field: str) -> dict[str, str]:
    if not isinstance(row.get(text_field), str):
        raise DataError(
            f"hub data set {path!r} has no text field {text_field!r}; set text_field to one of"
            f" {sorted(row)}"
        )
    text = row[text_field]
    key = row.get("id", hashlib.sha256(text.encode()).hexdigest()[:16])
    return {"name": f"{path}:{key}", "text": text}


def _folder_files(folder: Path) -> tuple[TextFile, ...]:
    named = ((path.relative_to(folder), path) for path in folder.rglob("*"))
    files = sorted(
        TextFile(name.as_posix(), str(path))
        for name, path in named
        if suffix_of(path.name) in _FOLDER_SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in name.parts)
    )
    if not files:
        raise DataError(f"folder {folder} holds no text, code, .jsonl or .parquet file")
    return tuple(files)


def _glob_files(pattern: Path) -> tuple[TextFile, ...]:
    parts = pattern.parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    root = Path(*parts[:fixed])
    files = sorted(
        TextFile(path.relative_to(root).as_posix(), str(path))
        for path in root.glob(str(Path(*parts[fixed:])))
        if path.is_file()
    )
    if not files:
        raise DataError(f"glob {str(pattern)!r} matches no file")
    return tuple(files)
