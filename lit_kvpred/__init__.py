"""Earlier first tokens for causal language models: KV Prediction with exact correction.

The public names load their modules on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {"flops": "lit_kvpred.evaluation.flops", "metrics": "lit_kvpred.sirius.metrics"}
_NAMES = {
    "CSparse": "lit_kvpred.sirius.sparsity",
    "Correction": "lit_kvpred.sirius.correction",
    "FSparse": "lit_kvpred.sirius.sparsity",
    "KVPredictionError": "lit_kvpred.errors",
    "KVPredictionModel": "lit_kvpred.model.kv_prediction",
    "KVPredictionModule": "lit_kvpred.module",
    "Sampling": "lit_kvpred.generation.sampling",
    "SiriusModel": "lit_kvpred.sirius.model",
    "build_auxiliary": "lit_kvpred.model.auxiliary",
    "layer_map": "lit_kvpred.model.layer_map",
    "load_streamed_base": "lit_kvpred.model.streamed_loading",
    "pruned_layer_map": "lit_kvpred.model.layer_map",
    "pruned_layers": "lit_kvpred.model.layer_map",
    "stream_feed_forwards": "lit_kvpred.model.streamed",
}

__all__ = [
    "__version__",
    *_MODULES,
    *_NAMES,
]

if TYPE_CHECKING:
    from lit_kvpred.errors import KVPredictionError
    from lit_kvpred.evaluation import flops
    from lit_kvpred.generation.sampling import Sampling
    from lit_kvpred.model.auxiliary import build_auxiliary
    from lit_kvpred.model.kv_prediction import KVPredictionModel
    from lit_kvpred.model.layer_map import layer_map, pruned_layer_map, pruned_layers
    from lit_kvpred.model.streamed import stream_feed_forwards
    from lit_kvpred.model.streamed_loading import load_streamed_base
    from lit_kvpred.module import KVPredictionModule
    from lit_kvpred.sirius import metrics
    from lit_kvpred.sirius.correction import Correction
    from lit_kvpred.sirius.model import SiriusModel
    from lit_kvpred.sirius.sparsity import CSparse, FSparse


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
