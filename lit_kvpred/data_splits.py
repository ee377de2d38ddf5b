"""Which standard-library sources are text, and which split each document belongs to.

The demo base is trained on this text and evaluated on it, in different parts of the package; both
must agree on what "held out" means, so the rule is here and nowhere else.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Split = Literal["train", "validation", "test"]

VALIDATION_SHARE = 0.05
TEST_SHARE = 0.05
"""Shares that the demo base never trains on; its evaluation is honest up to these."""

_SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__phello__",
        # Bundled third-party code.
        "_bundled",
        # Generated tables: files that differ in a few numbers would leak between the splits.
        "encodings",
        "pydoc_data",
    }
)


def split_of(name: str, validation_share: float, test_share: float) -> Split:
    """Assigns a document to a split by the hash of its name.

    The assignment depends on the name alone: it is the same in every process and on every machine,
    and adding or removing documents moves none of the others.

    Args:
        name: The document's name, for example its path relative to the root of the collection.
        validation_share: Expected share of validation documents, in [0, 1].
        test_share: Expected share of test documents, in [0, 1].

    Returns:
        `"test"` where the hash, read as a fraction of [0, 1), is below `test_share`,
        `"validation"` where it is below both shares together, `"train"` elsewhere.

    Raises:
        ValueError: A share is negative, or both together exceed 1.
    """
    if validation_share < 0 or test_share < 0 or validation_share + test_share > 1:
        raise ValueError(
            f"shares must be non-negative and sum to at most 1, got validation {validation_share} "
            f"and test {test_share}"
        )
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    # 53 bits: the largest integers below which a float is exact, so the fraction never rounds to 1.
    fraction = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
    if fraction < test_share:
        return "test"
    if fraction < test_share + validation_share:
        return "validation"
    return "train"


def standard_library_files() -> Iterator[tuple[str, Path]]:
    """Yields the running interpreter's own Python sources, ordered by name.

    Tests, bundled packages and generated tables are left out.

    Yields:
        Pairs of the name (path relative to the standard library's root, with forward slashes) and
        the path of the file.
    """
    root = Path(sysconfig.get_path("stdlib"))
    named = ((path.relative_to(root), path) for path in root.rglob("*.py"))
    kept = (
        (name.as_posix(), path) for name, path in named if _SKIPPED_FOLDERS.isdisjoint(name.parts)
    )
    yield from sorted(kept)
