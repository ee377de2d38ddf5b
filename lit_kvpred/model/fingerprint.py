"""One hash that says which model this is, whatever dtype or folder it was loaded from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lit_kvpred.model.presence import weights_present

# Where a model came from, how it is run, and how it generates: none of it changes its logits.
_IRRELEVANT = frozenset(
    {
        "architectures",
        "attn_implementation",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "quantization_config",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
# Enough to keep the hash busy, little enough to stay in the processor's cache.
_BLOCK_ELEMENTS = 1 << 20


def fingerprint(model: PreTrainedModel) -> str:
    """Hashes what a model computes: its architecture and its weights.

    The values enter as bfloat16: a model has the same fingerprint in float32 and in bfloat16, and
    differences below that precision are not seen. (In float16 it may differ, since two roundings
    are not one.) Weights are read block by block; a tied tensor counts once.

    Args:
        model: Any transformers model, on any device.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    digest.update(_stable_json(model.config).encode("utf-8"))
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"\n{name} {tuple(parameter.shape)}\n".encode())
        with weights_present(model.get_submodule(name.rpartition(".")[0])):
            _update_with_values(digest, parameter.detach())
    return digest.hexdigest()


def _update_with_values(digest: Any, values: Tensor) -> None:
    for block in values.reshape(-1).split(_BLOCK_ELEMENTS):
        # The bits as integers: NumPy has no bfloat16.
        bits = block.to(torch.bfloat16).view(torch.int16).cpu()
        digest.update(bits.numpy())


def _stable_json(config: PreTrainedConfig) -> str:
    values = _relevant(config.to_dict())
    # Releases of transformers add options, whose defaults change nothing.
    defaults = _relevant(type(config)().to_dict())
    told = {key: value for key, value in values.items() if value != defaults.get(key)}
    return json.dumps({"model_type": config.model_type, **told}, sort_keys=True, default=str)


def _relevant(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(key): _relevant(item)
            for key, item in value.items()
            if key not in _IRRELEVANT and not str(key).startswith("_")
        }
    if isinstance(value, (list, tuple)):
        return [_relevant(item) for item in value]
    return value
