"""Files that are either wholly the new ones or wholly the old ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lit_kvpred.errors import ConfigurationError


def write_atomically(contents: Mapping[Path, str]) -> None:
    """Write UTF-8 files so that earlier versions survive a full disk.

    All texts reach the disk under temporary names before the first one takes its place.

    Args:
        contents: Text of each file.

    Raises:
        ConfigurationError: If a file cannot be written; none of the files has then changed, unless
            it is the final renaming that fails.
    """
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    path = Path()
    try:
        for path, text in contents.items():
            with temporary[path].open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path in contents:
            temporary[path].replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror or error};"
            " free some space or make the folder writable"
        ) from error
    finally:
        for leftover in temporary.values():
            leftover.unlink(missing_ok=True)
