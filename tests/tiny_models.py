"""Tiny random models of many families, float32, in eval mode; milliseconds each."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_COMMON = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_FAMILIES: dict[str, dict] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "gpt_neox": {"rotary_pct": 0.5},
    "olmo2": {},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "n_inner": 64,
        "n_positions": 256,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
}

FAMILIES = tuple(_FAMILIES)
ISSUE_FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "gemma2")


def tiny_config(family: str, **overrides):
    values = dict(_COMMON)
    if family == "gpt2":
        values = {k: _COMMON[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")}
    values |= _FAMILIES[family]
    values |= overrides
    return CONFIG_MAPPING[family](**values)


def tiny_model(family: str, seed: int = 0, **overrides) -> PreTrainedModel:
    """A random model whose norms and biases are random too, so that no term vanishes by luck."""
    config = tiny_config(family, **overrides)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "norm" not in name:
                parameter.mul_(3.0)
    torch.random.set_rng_state(state)
    return model
