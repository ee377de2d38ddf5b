"""Text that every machine with this package has: prose and docstrings of what it depends on."""

from __future__ import annotations

import ast
import email
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import Distribution
from pathlib import Path

from .documents import Document, TextFile
from .spread import spread

_PACKAGE = "lit_kvpred"
_LEAST_TEXT = 500
_MODULES_OF_A_PACKAGE = 200


def description_files() -> tuple[TextFile, ...]:
    """Metadata files of all installed distributions, ordered by name."""
    files = {}
    for distribution in metadata.distributions():
        name = _normalised(distribution.metadata["Name"] or "")
        path = next((f for f in distribution.files or () if f.name == "METADATA"), None)
        if name and path is not None:
            files[name] = TextFile(f"{name}/METADATA", str(path.locate()))
    return tuple(files[name] for name in sorted(files))


def read_description(file: TextFile, _text_field: str) -> Iterator[Document]:
    """Yields a distribution's long description where it is more than a line or two."""
    parsed = email.message_from_bytes(Path(file.path).read_bytes())
    text = str(parsed.get_payload() or parsed.get("Description") or "")
    if len(text) >= _LEAST_TEXT:
        yield Document(file.name, text)


def docstring_files() -> tuple[TextFile, ...]:
    """Python modules of the packages that this one requires, at most 200 of each."""
    files: list[TextFile] = []
    for distribution in _required():
        modules = sorted(
            TextFile(path.as_posix(), str(path.locate()))
            for path in distribution.files or ()
            if path.suffix == ".py" and not {"test", "tests"} & set(path.parts)
        )
        files += [modules[i] for i in spread(len(modules), _MODULES_OF_A_PACKAGE)]
    return tuple(files)


def read_docstrings(file: TextFile, _text_field: str) -> Iterator[Document]:
    """Yields the docstrings of a module, joined, where there are more than a line or two."""
    try:
        tree = ast.parse(Path(file.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    text = "\n\n".join(filter(None, found))
    if len(text) >= _LEAST_TEXT:
        yield Document(f"{file.name} (docstrings)", text)


def _required() -> Iterator[Distribution]:
    for requirement in metadata.requires(_PACKAGE) or ():
        if "extra ==" in requirement:
            continue
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert name is not None
        try:
            yield metadata.distribution(name[0])
        except metadata.PackageNotFoundError:
            continue


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
