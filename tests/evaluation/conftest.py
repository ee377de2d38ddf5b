from __future__ import annotations

import pytest
import torch

from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from tests.tiny_models import tiny_model


@pytest.fixture(scope="module")
def model() -> KVPredictionModel:
    """A prefix with random maps, on a base that never ends an answer by itself."""
    base = tiny_model("llama", weight_scale=8.0)
    base.generation_config.eos_token_id = None
    torch.manual_seed(0)
    return KVPredictionModel(base, build_auxiliary(base, "prefix", keep=2)).eval()
