"""Tiny random models of many families, float32, in eval mode; milliseconds each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel

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
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        # One layer of the other type: it has rotary tables of its own.
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]
        + ["sliding_attention"],
    },
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
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    "phi3": {"sliding_window": 8},
    # Every fourth layer of these two has no rotation at all.
    "cohere2": {"head_dim": 8, "sliding_window": 8},
    "smollm3": {},
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 8,
        # Two of three experts: with one, the router's softmax is constant and learns nothing.
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}

FAMILIES = tuple(_FAMILIES)
ISSUE_FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "gemma2")
KEY_NORM_FAMILIES = ("qwen3", "gemma3_text", "olmo2")

# Served in part: bloom's positions are a bias that its own code builds from a plain padding mask;
# the last layer of gpt_neox_japanese has a parameter that the others lack.
_PECULIAR: dict[str, dict] = {
    "bloom": {"n_layer": 4, "n_head": 4},
    "gpt_neox_japanese": {},
}

# What no adapter can serve: key norm after rotation, rotation inside attention, no cache of rows.
_UNSERVED: dict[str, dict] = {
    "hunyuan_v1_dense": {"head_dim": 8},
    "gptj": {"n_embd": 32, "n_layer": 4, "n_head": 4, "rotary_dim": 4, "n_positions": 256},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2},
}
UNSERVED_FAMILIES = tuple(_UNSERVED)


ROPE_TYPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 1.7,
        "original_max_position_embeddings": 64,
    },
}


def tiny_config(family: str, **overrides):
    values = dict(_COMMON)
    if family in ("gpt2", "gptj", "mamba"):
        values = {k: _COMMON[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")}
    values |= (_FAMILIES | _PECULIAR | _UNSERVED)[family]
    values |= overrides
    return CONFIG_MAPPING[family](**values)


def tiny_model(
    family: str,
    seed: int = 0,
    *,
    weight_scale: float = 3.0,
    dtype: torch.dtype = torch.float32,
    **overrides,
) -> PreTrainedModel:
    """A random model whose norms and biases are random too, so that no term vanishes by luck.

    Answers of a model with a larger ``weight_scale`` vary more and depend more on the prompt.
    """
    config = tiny_config(family, **overrides)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "norm" not in name:
                parameter.mul_(weight_scale)
    torch.random.set_rng_state(state)
    return model


def identity_model(base: PreTrainedModel) -> KVPredictionModel:
    """A copy of the base feeds the base through identity maps: predicted rows are exact rows."""
    from lit_kvpred.model.auxiliary import build_auxiliary
    from lit_kvpred.model.kv_prediction import KVPredictionModel

    auxiliary = build_auxiliary(base, "canonical", source=copy.deepcopy(base))
    model = KVPredictionModel(base, auxiliary).eval()
    model.predictor.set_identity_()
    return model


def predicting_model(
    base: PreTrainedModel, *, keep: Sequence[int] = (0, 2), seed: int = 3
) -> KVPredictionModel:
    """A pruned auxiliary and random maps: predicted rows are far from the exact ones."""
    from lit_kvpred.model.auxiliary import build_auxiliary
    from lit_kvpred.model.kv_prediction import KVPredictionModel

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = KVPredictionModel(base, build_auxiliary(base, "pruned", keep=list(keep))).eval()
    torch.random.set_rng_state(state)
    return model


def random_ids(*shape: int, seed: int = 0, vocabulary: int = 128) -> Tensor:
    """Random token ids without the special ones (0 padding, 1 start, 2 end)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, shape, generator=generator)


def left_padded(prompts: Sequence[Tensor], padding: int = 0) -> tuple[Tensor, Tensor]:
    """One-dimensional prompts as a batch and its attention mask, padding on the left."""
    length = max(map(len, prompts))
    ids = torch.full((len(prompts), length), padding)
    mask = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = prompt
        mask[row, length - len(prompt) :] = 1
    return ids, mask


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token id = byte: ids below 128 are ASCII, other characters take several tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    tokenizer = Tokenizer(BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
