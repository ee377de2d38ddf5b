"""Fixtures of the whole suite: no network, one thread, a fixed seed for every test."""

from __future__ import annotations

import os

# Read when huggingface_hub and tokenizers are imported, so before anything of ours.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import random

# Its log handler keeps the stderr that it finds when it is imported: not that of a single test.
import lightning.pytorch  # noqa: F401
import pytest
import torch
from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and sums come out in one order."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    random.seed(0)
    torch.manual_seed(0)
