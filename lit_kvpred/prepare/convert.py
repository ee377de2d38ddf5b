"""Any source of a base model -> a plain safetensors folder that loads in a moment."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from safetensors import SafetensorError, safe_open

from lit_kvpred.errors import BaseModelError
from lit_kvpred.json_text import parse_json
from lit_kvpred.model.loading import (
    load_base,
    load_tokenizer,
    locate,
    quiet_transformers,
    read_gguf_summary,
)

RECORD = "preparation.json"
"""File in a prepared folder that says what it was made from."""

_HASHED_SUFFIXES = frozenset({".json", ".jinja", ".model", ".safetensors", ".txt"})


def announce(text: str) -> None:
    """Prints a line of progress on stderr."""
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(text)


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    report: Callable[[str], None] = announce,
) -> Path:
    """Converts a base model to a safetensors folder with tokenizer and generation config.

    The folder appears under its name only when it is complete.

    Args:
        source: A `.gguf` file, a model folder, or a hub id.
        out: Folder to make. It may exist if it is empty, or if it holds exactly this model already.
        dtype: Type of the written weights, or `"auto"` for the source's own.
        revision: Branch, tag or commit of a hub id.
        report: Receives the lines of progress.

    Returns:
        The folder.

    Raises:
        BaseModelError: The source cannot be loaded, the model does not fit into memory, or `out`
            holds something else.
        ConfigurationError: `revision` is given for a local path, or `dtype` is unknown.
    """
    out = Path(out).expanduser()
    path = locate(source, revision=revision)
    digest = _source_digest(path)
    if holds(out, digest, dtype):
        report(f"{out} already holds this model")
        return out
    _require_memory(path, report)
    with staged_folder(out) as stage:
        report(f"reading {path}")
        model = load_base(path, dtype=dtype)
        tokenizer = load_tokenizer(path)
        report(f"writing {out}")
        with quiet_transformers():
            model.save_pretrained(stage)
            tokenizer.save_pretrained(stage)
        write_record(stage, digest, dtype)
    return out


def holds(out: Path, source_sha256: str, dtype: str) -> bool:
    """Says whether a folder was prepared from a given source and is unchanged since.

    Args:
        out: The folder.
        source_sha256: Hash of the source.
        dtype: Type of the written weights, as asked for.

    Returns:
        True where `out` holds exactly that model, False where it is absent or empty.

    Raises:
        BaseModelError: `out` is a file, or holds anything else.
    """
    if not _occupied(out):
        return False
    try:
        record = parse_json((out / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if record is None or record != _record_of(out, source_sha256, dtype):
        raise BaseModelError(
            f"{out} exists and does not hold exactly this model; choose another folder or remove it"
        )
    return True


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """Gives a folder next to `out` that takes `out`'s name on success and vanishes otherwise.

    Args:
        out: The folder to appear; it must not exist, or be empty.

    Yields:
        The folder to write into.

    Raises:
        BaseModelError: `out` is a file, or holds something.
    """
    if _occupied(out):
        raise BaseModelError(f"{out} exists and is not empty; choose another folder or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    stage = out.parent / f".{out.name}.{os.getpid()}.partial"
    stage.mkdir()
    try:
        yield stage
        if out.is_dir():
            out.rmdir()
        stage.rename(out)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_memory(path: Path, report: Callable[[str], None]) -> None:
    parameters = read_gguf_summary(path).parameters if path.is_file() else _stored_elements(path)
    # GGUF blocks are unpacked to float32 whatever type is written in the end.
    needed = 4 * parameters
    available = psutil.virtual_memory().available
    report(f"{parameters / 1e6:.1f} M parameters, about {needed / 1e9:.2f} GB of memory in float32")
    if needed > available:
        raise BaseModelError(
            f"{path}: converting needs about {needed / 1e9:.1f} GB of memory and "
            f"{available / 1e9:.1f} GB is available; use a smaller model or a larger machine"
        )


def _stored_elements(folder: Path) -> int:
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    elements = 1
                    for size in weights.get_slice(name).get_shape():
                        elements *= size
                    total += elements
        except (OSError, SafetensorError) as error:
            raise BaseModelError(f"{file} is truncated or damaged; fetch it again") from error
    return total


def _source_digest(path: Path) -> str:
    if path.is_file():
        return sha256_of(path)
    listing = json.dumps(_file_digests(path), sort_keys=True)
    return hashlib.sha256(listing.encode("utf-8")).hexdigest()


def _file_digests(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.iterdir() if file.suffix in _HASHED_SUFFIXES)
    return {file.name: sha256_of(file) for file in files if file.name != RECORD}


def _occupied(out: Path) -> bool:
    return out.is_file() or (out.is_dir() and any(out.iterdir()))


def _record_of(folder: Path, source_sha256: str, dtype: str) -> dict[str, Any]:
    return {"source_sha256": source_sha256, "dtype": dtype, "files": _file_digests(folder)}


def write_record(folder: Path, source_sha256: str, dtype: str) -> None:
    """Writes down what a complete folder was prepared from, for `holds`."""
    record = _record_of(folder, source_sha256, dtype)
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _remove_abandoned(out: Path) -> None:
    # A process that was killed could not clean up after itself.
    for stage in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        owner = stage.suffixes[-2].lstrip(".")
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(stage, ignore_errors=True)
