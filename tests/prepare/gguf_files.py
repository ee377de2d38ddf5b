"""GGUF files written from tiny random Llamas, in float32 and with a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel

from tests.base_folders import byte_tokenizer
from tests.tiny_models import tiny_model

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


# The bytes, two special tokens, and one merge: transformers cannot read a tokenizer without any.
VOCABULARY = 259


def tiny_llama() -> PreTrainedModel:
    """A model that fits the tokenizer of `write_gguf`."""
    return tiny_model(
        "llama", vocab_size=VOCABULARY, bos_token_id=256, eos_token_id=256, pad_token_id=257
    )


def write_gguf(path: Path, model: PreTrainedModel, architecture: str = "llama") -> Path:
    """Writes a Llama as the converters of other projects do; returns the path."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for name, weight in model.state_dict().items():
        writer.add_tensor(_tensor_name(name), _stored(name, weight.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = byte_tokenizer()
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*tokens, "th"])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in [*tokens, "th"]]
    )
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_pad_token_id(257)
    writer.add_unk_token_id(256)


def _tensor_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[inner]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _stored(name: str, weight: np.ndarray, config) -> np.ndarray:
    # GGUF keeps the two halves of a rotary pair next to each other.
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for projection, count in heads.items():
        if projection in name:
            halves = weight.reshape(count, 2, config.head_dim // 2, -1)
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
    return weight
