from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lit_kvpred.model.loading import load_base, load_tokenizer

FOLDER = Path(
    os.environ.get("LIT_KVPRED_REAL_MODEL", Path(__file__).parents[2] / "checkpoints/models/smollm2-135m")
)  # fmt: skip


@pytest.fixture(scope="session")
def real_folder() -> str:
    if not (FOLDER / "config.json").is_file():
        pytest.skip(f"no real model at {FOLDER}; run: lit-kvpred prepare smollm2-135m {FOLDER}")
    return str(FOLDER)


@pytest.fixture(scope="session")
def real_base(real_folder):
    torch.set_num_threads(2)
    return load_base(real_folder, dtype="float32")


@pytest.fixture(scope="session")
def real_tokenizer(real_folder):
    return load_tokenizer(real_folder)
