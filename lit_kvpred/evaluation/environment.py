"""What a measurement was taken with."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import torch

from lit_kvpred.model.artefact import base_reference
from lit_kvpred.model.kv_prediction import KVPredictionModel

_PACKAGES = (
    "lit-kvpred",
    "torch",
    "lightning",
    "transformers",
    "datasets",
    "torchmetrics",
    "safetensors",
)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide speed and numbers."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def environment(model: KVPredictionModel) -> dict[str, Any]:
    """Machine, software and models behind a measurement, as plain values."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": str(model.base.device),
        "versions": versions(),
        "base": base_reference(model.base),
        "auxiliary": model.auxiliary.describe(),
        "exact_tail": model.exact_tail,
        "rank": model.predictor.rank,
    }
