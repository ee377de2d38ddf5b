"""One adapter that answers every question about a model family.

Nothing else in the package may look at ``model_type``. The generic answers come from what all
decoders of transformers share (a stack of layers of length ``num_hidden_layers``, a ``rotary_emb``
module, ``apply_rotary_pos_emb`` next to it, ``k_norm`` inside attention); a probe of a few tokens
at construction proves for every layer that keys can be taken apart and put together again, so that
an unknown family is refused instead of silently corrupted.

Row layouts used in this package: *merged* rows are ``(B, T, heads * dim)``, *split* rows are
``(B, heads, T, dim)``. *Raw* keys are before key norm and rotation (KVP 2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_kvpred.errors import ConfigurationError, UnsupportedFamilyError
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.rotary import RotaryTables, Rotation, candidate_rotations, rotary_tables

# Families whose position information never touches the keys: learned tables or ALiBi.
_WITHOUT_ROTATION = {"biogpt", "bloom", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt", "xglm"}
# Families that add position biases which they compute from a plain padding mask.
_WITH_BIASES = {"bloom"}
_KEY_NORM_NAMES = ("k_norm", "k_layernorm", "key_layernorm")
_PROBE_TOKENS = 5
_PROBE_SHIFT = 7


@dataclass(frozen=True)
class LayerShape:
    """Widths of one layer's cached rows (KV heads, not query heads)."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """Width of a merged key row."""
        return self.heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Width of a merged value row."""
        return self.heads * self.value_dim


def merge_heads(rows: Tensor) -> Tensor:
    """``(B, heads, T, dim)`` to ``(B, T, heads * dim)``."""
    return rows.transpose(1, 2).flatten(2)


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """``(B, T, heads * dim)`` to ``(B, heads, T, dim)``."""
    return rows.unflatten(2, (heads, -1)).transpose(1, 2)


class FamilyAdapter:
    """What this package needs to know about one causal LM.

    Attributes:
        model: The causal LM.
        config: Its text configuration.
        family: Its ``model_type``, for messages and reports.
        decoder: The stack without head.
        layers: The decoder's layers.
        shapes: One `LayerShape` a layer.
        layer_types: One attention type a layer (``full_attention`` where the family has one type).

    Raises:
        UnsupportedFamilyError: If keys of this family can't be handled (no ordinary cache, unknown
            position scheme, key norm after rotation).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        self.family: str = self.config.model_type
        self.decoder: nn.Module = find_decoder(model)
        self.layers: nn.ModuleList = find_layers(model)
        self.n_layers = len(self.layers)
        types = getattr(self.config, "layer_types", None)
        self.layer_types: list[str] = list(types or ["full_attention"] * self.n_layers)
        self._rotary: nn.Module | None = getattr(self.decoder, "rotary_emb", None)
        self._rotation: Rotation | None = None
        self._table_of_layer: list[str | None] = [None] * self.n_layers
        self._key_norms = [_find_key_norm(layer) for layer in self.layers]
        self._key_norm_heads_first = False
        self.shapes: list[LayerShape] = []
        self._probe()

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the position scheme allows, if the configuration names one."""
        return getattr(self.config, "max_position_embeddings", None)

    def require_positions(self, position_ids: Tensor) -> None:
        """Raise `ConfigurationError` if a position of a training batch is beyond the model's."""
        limit = self.max_positions
        longest = int(position_ids.max()) + 1 if position_ids.numel() else 0
        if limit is not None and longest > limit:
            raise ConfigurationError(
                f"a sequence has {longest} tokens but the base has {limit} positions; "
                "use shorter sequences (data.sequence_length)"
            )

    def require_explicit_masks(self) -> None:
        """Raise `UnsupportedFamilyError` if attention can't be limited by a 4-D mask."""
        if self.family in _WITH_BIASES or getattr(self.config, "alibi", False):
            raise UnsupportedFamilyError(
                f"model family '{self.family}' computes its positions from a plain mask, which "
                "can't keep packed documents apart, rows that ride on a decode step, or branches "
                "of a tree; set packing to padded, slice_rows to None, tree_width to 1"
            )

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of queries, keys and values in a forward right now, autocast included."""
        device = self.model.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return self.model.dtype

    @property
    def has_key_norm(self) -> bool:
        """Whether cached keys went through a norm."""
        return any(norm is not None for norm in self._key_norms)

    def rotary_tables(self, position_ids: Tensor) -> RotaryTables:
        """Tables for ``position_ids`` ``(B or 1, T)``; no-ops where keys aren't rotated."""
        if self._rotary is None:
            return RotaryTables({}, {}, [None] * self.n_layers, lambda keys, _cos, _sin: keys)
        assert self._rotation is not None
        tables, scaling = rotary_tables(self._rotary, position_ids, self.layer_types)
        return RotaryTables(tables, scaling, self._table_of_layer, self._rotation)

    def apply_key_norm(self, raw_keys: Tensor, layer: int) -> Tensor:
        """Merged raw keys ``(B, T, heads * dim)`` to split keys, through the key norm if any."""
        norm, shape = self._key_norms[layer], self.shapes[layer]
        if norm is None:
            return split_heads(raw_keys, shape.heads)
        weight = getattr(norm, "weight", None)
        spans_heads = weight is not None and shape.heads > 1 and weight.numel() == shape.key_width
        if spans_heads:
            return split_heads(norm(raw_keys), shape.heads)
        return norm(split_heads(raw_keys, shape.heads))

    @contextmanager
    def record_norm_inputs(self) -> Iterator[dict[int, Tensor]]:
        """Record what enters each layer's key norm, by layer; stays empty where there is none."""
        inputs: dict[int, Tensor] = {}

        def recorder(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            return lambda _, arguments: inputs.__setitem__(layer, arguments[0])

        handles = [
            norm.register_forward_pre_hook(recorder(layer))
            for layer, norm in enumerate(self._key_norms)
            if norm is not None
        ]
        try:
            yield inputs
        finally:
            for handle in handles:
                handle.remove()

    def merge_norm_input(self, keys: Tensor) -> Tensor:
        """A recorded norm input as merged raw keys ``(B, T, heads * dim)``."""
        if keys.ndim == 3:
            return keys
        return merge_heads(keys) if self._key_norm_heads_first else keys.flatten(2)

    @torch.no_grad()
    def _probe(self) -> None:
        """Read the cache shapes and prove that stored keys can be rebuilt from raw ones."""
        tokens = _PROBE_TOKENS
        here, norm_inputs = self._probe_forward(tokens, 0)
        while tokens in {layer.keys.shape[1] for layer in here.layers}:
            # As many tokens as heads could not tell the two axes apart.
            tokens += 1
            here, norm_inputs = self._probe_forward(tokens, 0)
        self.shapes = [
            LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
            for layer in here.layers
        ]
        for layer, keys in norm_inputs.items():
            heads = self.shapes[layer].heads
            self._key_norm_heads_first = keys.shape[1:-1] == (heads, tokens)
        if self._rotary is None:
            if self.family not in _WITHOUT_ROTATION:
                raise self._unsupported("its position scheme is unknown (no `rotary_emb` module)")
            return
        there, _ = self._probe_forward(tokens, _PROBE_SHIFT)
        for rotation in candidate_rotations(self.decoder):
            self._rotation = rotation
            if self._rotates_as_probed(here, there, norm_inputs):
                return
        raise self._unsupported("the rotation of its keys could not be taken off and put on again")

    def _probe_forward(self, tokens: int, shift: int) -> tuple[RecordingCache, dict[int, Tensor]]:
        device = self.model.get_input_embeddings().weight.device
        ids = torch.arange(tokens, device=device)[None] % self.config.vocab_size
        cache = RecordingCache()
        was_training = self.model.training
        self.model.eval()
        try:
            with self.record_norm_inputs() as norm_inputs:
                positions = torch.arange(tokens, device=device)[None] + shift
                self.decoder(ids, position_ids=positions, cache=cache, use_cache=True)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise self._unsupported(
                f"a forward with a cache fails ({_first_line(error)})"
            ) from error
        finally:
            self.model.train(was_training)
        ordinary = len(cache.layers) == self.n_layers and all(
            layer.is_initialized and layer.keys.ndim == 4 for layer in cache.layers
        )
        if not ordinary:
            raise self._unsupported("not every layer keeps ordinary keys and values in its cache")
        return cache, norm_inputs

    def _rotates_as_probed(
        self, here: RecordingCache, there: RecordingCache, norm_inputs: dict[int, Tensor]
    ) -> bool:
        """Rotary attention is relative: shifting all positions changes nothing but the rotation."""
        device = here.layers[0].keys.device
        positions = torch.arange(here.layers[0].keys.shape[2], device=device)[None]
        for layer in range(self.n_layers):
            keys, shifted = here.layers[layer].keys, there.layers[layer].keys
            for table in (self.layer_types[layer], None):
                self._table_of_layer[layer] = table
                try:
                    tables = self.rotary_tables(positions)
                    moved = self.rotary_tables(positions + _PROBE_SHIFT)
                    fits = _close(tables.unrotate(keys, layer), moved.unrotate(shifted, layer))
                    if fits and layer in norm_inputs:
                        raw = self.merge_norm_input(norm_inputs[layer])
                        fits = _close(tables.rotate(self.apply_key_norm(raw, layer), layer), keys)
                except (RuntimeError, TypeError, ValueError):
                    fits = False
                if fits:
                    break
            else:
                return False
        return True

    def _unsupported(self, reason: str) -> UnsupportedFamilyError:
        return _unsupported(self.model, reason)


def find_decoder(model: PreTrainedModel) -> nn.Module:
    """The stack without head.

    Raises:
        UnsupportedFamilyError: If there is none.
    """
    decoder: nn.Module | None = model.get_decoder()
    if decoder is None or decoder is model:
        raise _unsupported(model, "it has no separate decoder stack")
    return decoder


def find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder's layers.

    Raises:
        UnsupportedFamilyError: If they can't be told from other lists of modules.
    """
    decoder = find_decoder(model)
    wanted = model.config.get_text_config(decoder=True).num_hidden_layers
    for modules in (decoder.children(), decoder.modules()):
        stacks = [m for m in modules if isinstance(m, nn.ModuleList) and len(m) == wanted]
        if len(stacks) == 1:
            return stacks[0]
    raise _unsupported(model, f"no unique stack of {wanted} layers in its decoder")


def _unsupported(model: PreTrainedModel, reason: str) -> UnsupportedFamilyError:
    family = model.config.get_text_config(decoder=True).model_type
    return UnsupportedFamilyError(
        f"model family '{family}' can't be served: {reason}; use a decoder-only family "
        "with an ordinary key/value cache, such as llama, qwen, gemma, gpt_neox or gpt2"
    )


def _find_key_norm(layer: nn.Module) -> nn.Module | None:
    for name, module in layer.named_modules():
        if name.rpartition(".")[2] in _KEY_NORM_NAMES:
            return module
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-3 if a.dtype == torch.float32 else 1e-1
    scale = float(b.float().abs().max()) or 1.0
    return bool((a.float() - b.float()).abs().max() <= tolerance * scale)
