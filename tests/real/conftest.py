from __future__ import annotations

import os
from pathlib import Path

import pytest

from lit_kvpred.model.loading import load_base, load_tokenizer

_DEFAULT = Path(__file__).parents[2] / "checkpoints/models/smollm2-135m"
FOLDER = Path(os.environ.get("LIT_KVPRED_REAL_MODEL", _DEFAULT))


@pytest.fixture(scope="session")
def real_folder() -> str:
    if not (FOLDER / "config.json").is_file():
        pytest.skip(f"no real model at {FOLDER}; run: lit-kvpred prepare smollm2-135m {FOLDER}")
    return str(FOLDER)


@pytest.fixture(scope="session")
def real_base(real_folder):
    return load_base(real_folder, dtype="float32")


@pytest.fixture(scope="session")
def real_tokenizer(real_folder):
    return load_tokenizer(real_folder)
