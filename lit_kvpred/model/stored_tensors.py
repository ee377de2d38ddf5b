"""Where the tensors of safetensors files lie, and reading single ones without mapping the file.

A mapped file counts as memory of the process as soon as it is touched; what is read into a buffer
of one's own is there once, where it was asked for.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lit_kvpred.errors import BaseModelError, CheckpointError
from lit_kvpred.json_text import parse_json

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH_BYTES = 8
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file.

    Attributes:
        file: The file.
        name: Its name there.
        dtype: As stored.
        shape: As stored.
        offset: Of its first byte in the file.
    """

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def n_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def tensors_of_folder(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder, sharded or not, by name.

    Raises:
        BaseModelError: If files are missing, truncated or not safetensors.
    """
    index = folder / _INDEX
    if (folder / _SINGLE).is_file():
        return tensors_of_file(folder / _SINGLE)
    if not index.is_file():
        raise BaseModelError(
            f"{folder}: neither {_SINGLE} nor {_INDEX} is there; fetch or prepare the model again"
        )
    try:
        shard_of: dict[str, str] = parse_json(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(shard_of.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaseModelError(f"{index} is damaged ({error}); fetch the model again") from error
    found: dict[str, StoredTensor] = {}
    for shard in shards:
        stored = tensors_of_file(folder / shard)
        found |= {name: t for name, t in stored.items() if shard_of.get(name) == shard}
    missing = sorted(shard_of.keys() - found.keys())
    if missing:
        raise BaseModelError(
            f"{folder}: {len(missing)} tensors that {_INDEX} names are in no file, first "
            f"{missing[0]}; fetch the model again"
        )
    return found


def tensors_of_file(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name.

    Raises:
        BaseModelError: If the file is missing, truncated, not safetensors, or holds tensors of a
            type that torch has no plain dtype for.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            size = file.stat().st_size
            if _LENGTH_BYTES + length > size:
                raise ValueError("its header is cut off")
            header: dict[str, Any] = parse_json(opened.read(length).decode("utf-8"))
        header.pop("__metadata__", None)
        start = _LENGTH_BYTES + length
        found = {}
        for name, facts in header.items():
            first, end = facts["data_offsets"]
            stored = StoredTensor(
                file, name, _DTYPES[facts["dtype"]], tuple(facts["shape"]), start + first
            )
            if end - first != stored.n_bytes or start + end > size:
                raise ValueError(f"{name} is cut off")
            found[name] = stored
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaseModelError(
            f"{file} is truncated or no plain safetensors file ({error}); fetch or prepare the "
            "model again"
        ) from error
    return found


@dataclass
class _OpenFile:
    stream: BinaryIO
    stamp: tuple[int, int]


@dataclass
class TensorReader:
    """Reads stored tensors into memory of the caller; for one thread at a time.

    Files stay open from their first use on: one that is replaced meanwhile goes on to be read as it
    was, one that is written to is an error.
    """

    _files: dict[Path, _OpenFile] = field(default_factory=dict)

    def read(self, stored: StoredTensor, target: Tensor) -> None:
        """Fill ``target``, contiguous on the CPU, of the stored shape and dtype.

        Raises:
            CheckpointError: If the file can't be read, is shorter than it was, or has changed.
        """
        assert target.dtype == stored.dtype
        assert tuple(target.shape) == stored.shape
        if stored.n_bytes == 0:
            return
        bits = memoryview(target.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        try:
            opened = self._open(stored.file)
            opened.stream.seek(stored.offset)
            filled = 0
            while filled < len(bits):
                count = opened.stream.readinto(bits[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise OSError(f"it ends within {stored.name}")
                filled += count
            if _stamp(opened.stream) != opened.stamp:
                raise OSError("it was written to since it was opened")
        except OSError as error:
            raise CheckpointError(
                f"weights can't be read from {stored.file} ({error}); fetch or prepare the model "
                "again"
            ) from error

    def open(self, files: set[Path]) -> None:
        """Open files now: later changes of them are seen.

        Raises:
            CheckpointError: If one can't be opened.
        """
        for file in sorted(files):
            try:
                self._open(file)
            except OSError as error:
                raise CheckpointError(f"weights can't be read from {file} ({error})") from error

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        for opened in self._files.values():
            opened.stream.close()
        self._files.clear()

    def _open(self, file: Path) -> _OpenFile:
        if file not in self._files:
            # Unbuffered: bytes go straight into the target.
            stream = file.open("rb", buffering=0)
            self._files[file] = _OpenFile(stream, _stamp(stream))
        return self._files[file]

    def __del__(self) -> None:
        self.close()


def _stamp(stream: BinaryIO) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns
