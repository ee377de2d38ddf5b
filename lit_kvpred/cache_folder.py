"""Where the package keeps what it can compute again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$LIT_KVPRED_CACHE``, or ``~/.cache/lit_kvpred`` where it is not set."""
    return Path(os.environ.get("LIT_KVPRED_CACHE") or "~/.cache/lit_kvpred").expanduser()
