"""The auxiliary network: a smaller sibling of the base or a layer-pruned copy of it (KVP 2.5)."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lit_kvpred.errors import BaseModelError, ConfigurationError
from lit_kvpred.model.configs import keep_layers
from lit_kvpred.model.depth import DepthCut
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.features import FeatureKind, Features, KeyValueFeatures, hidden_features
from lit_kvpred.model.layer_map import (
    check_kept_layers,
    layer_map,
    pruned_layer_map,
    pruned_layers,
)
from lit_kvpred.model.loading import load_base, load_tokenizer
from lit_kvpred.model.prefix import PrefixAuxiliary, prefix_depth
from lit_kvpred.model.reading import CacheRows, read_rows
from lit_kvpred.model.sequences import Sequences
from lit_kvpred.model.tokenizers import check_same_tokenizer

AuxiliaryKind = Literal["canonical", "pruned", "prefix"]


class NetworkAuxiliary(nn.Module):
    """A causal LM of its own that reads the prompt in the base's place.

    Trainable weights are kept in float32 whatever the files hold; reduced precision is the
    trainer's business.

    Args:
        model: The network.
        kind: How it came about.
        base_map: For each base layer the layer of ``model`` that feeds it.
        source: Where a canonical auxiliary was loaded from.
        kept: Original indices of the layers that a pruned auxiliary kept.
    """

    default_features: FeatureKind = "kv"
    has_head = True
    """Whether the auxiliary has logits of its own."""
    exact_layers = 0
    """Base layers whose rows the auxiliary computes exactly."""
    cut: DepthCut | None = None
    """Where these layers end in the base."""

    def __init__(
        self,
        model: PreTrainedModel,
        kind: AuxiliaryKind,
        base_map: Sequence[int],
        *,
        source: str | None = None,
        kept: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.model = model.float()
        self.kind = kind
        self.base_map = list(base_map)
        self.source = source
        self.kept = None if kept is None else list(kept)
        self.adapter = FamilyAdapter(model)

    def features(
        self, kind: FeatureKind, base: FamilyAdapter, layer_map: list[int] | None
    ) -> Features:
        """What the predictor reads; without ``layer_map`` by the published rule of the kind."""
        shapes = self.adapter.shapes
        if kind == "kv":
            return KeyValueFeatures(shapes, layer_map or self.base_map)
        return hidden_features(self.adapter, shapes, base.n_layers, layer_map)

    def read(
        self,
        input_ids: Tensor,
        sequences: Sequences,
        features: Features,
        *,
        logits_from: int | None = None,
    ) -> CacheRows:
        """The rows that ``features`` need, and logits from row ``logits_from`` on if asked for."""
        hidden_at = self.adapter.n_layers if features.reads_hidden else None
        stop_after = features.last_layer if hidden_at is None and logits_from is None else None
        return read_rows(
            self.adapter,
            input_ids,
            sequences,
            logits_from=logits_from,
            stop_after=stop_after,
            hidden_at=hidden_at,
        )

    def describe(self) -> dict[str, Any]:
        """Plain facts for artefacts and reports."""
        return {"kind": self.kind, "source": self.source, "kept": self.kept}


Auxiliary = NetworkAuxiliary | PrefixAuxiliary


def build_auxiliary(
    base: PreTrainedModel,
    kind: AuxiliaryKind = "pruned",
    *,
    keep: float | int | Sequence[int] = 0.5,
    source: str | Path | PreTrainedModel | None = None,
    base_tokenizer: Any | None = None,
) -> Auxiliary:
    """Build the auxiliary of a base.

    Args:
        base: The frozen base.
        kind: ``prefix`` (the base's own first layers, shared), ``pruned`` (KVP-LP) or
            ``canonical`` (KVP-C).
        keep: For ``prefix``: the number of layers or the fraction of them. For ``pruned``: the
            published fraction (.25, .5, .75) or the kept layers.
        source: For ``canonical``: folder, hub id, or a loaded model, which is cast to float32 and
            trained in place.
        base_tokenizer: For ``canonical``: checked token by token against the tokenizer found at
            ``source``. None skips the check where ``source`` is a loaded model; otherwise the
            base's own tokenizer is loaded.

    Raises:
        ConfigurationError: If settings are missing or contradict each other.
        TokenizerMismatchError: If auxiliary and base don't share a tokenizer.
        BaseModelError: If a kept tensor was not carried over exactly.
    """
    n_base = base.config.get_text_config(decoder=True).num_hidden_layers
    if kind == "prefix":
        if not isinstance(keep, int | float):
            raise ConfigurationError("a prefix takes a fraction or a number of layers as `keep`")
        return PrefixAuxiliary(base, prefix_depth(keep, n_base))
    if kind == "pruned":
        kept = _kept_layers(keep, n_base)
        return NetworkAuxiliary(prune(base, kept), kind, pruned_layer_map(kept, n_base), kept=kept)
    if kind != "canonical":
        raise ConfigurationError(
            f"auxiliary kind '{kind}' is not one of 'canonical', 'pruned', 'prefix'"
        )
    if source is None:
        raise ConfigurationError("a canonical auxiliary needs `source`: a folder or hub id")
    if isinstance(source, str | Path):
        own = base_tokenizer or load_tokenizer(base.config.name_or_path)
        check_same_tokenizer(own, load_tokenizer(source))
        model, name = load_base(source, dtype="float32"), str(source)
    elif source is base:
        raise ConfigurationError("a canonical auxiliary must be another model than the base")
    else:
        model, name = source, source.config.name_or_path
    n_aux = model.config.get_text_config(decoder=True).num_hidden_layers
    return NetworkAuxiliary(model, kind, layer_map(n_base, n_aux), source=name or None)


def _kept_layers(keep: float | int | Sequence[int], n_base: int) -> list[int]:
    if isinstance(keep, int):
        raise ConfigurationError(
            f"keep {keep} is a count, which only a prefix takes; give .25, .5, .75 or the list of "
            "kept layers"
        )
    return pruned_layers(n_base, keep) if isinstance(keep, float) else list(keep)


def prune(base: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """Copy ``base`` with only the layers ``kept`` (KVP-LP), in float32.

    Loading is strict and every kept tensor is compared afterwards: renumbered layers reuse the
    numbers of dropped ones, so that a wrong rename would go unnoticed otherwise (KVP 10.13).

    Raises:
        ConfigurationError: If ``kept`` is not a valid list of layers.
        BaseModelError: If the copy does not hold exactly the kept tensors.
    """
    adapter = FamilyAdapter(base)
    check_kept_layers(kept, adapter.n_layers)
    prefix = next(name for name, module in base.named_modules() if module is adapter.layers)
    wanted = _kept_tensors(base, prefix, kept)
    model = AutoModelForCausalLM.from_config(
        _pruned_config(base, kept), dtype=torch.float32, attn_implementation=_attention(base)
    )
    try:
        model.load_state_dict(wanted, strict=True)
    except RuntimeError as error:
        raise BaseModelError(
            f"layers {list(kept)} of model family '{adapter.family}' can't be copied into a "
            "shallower model because its layers are not alike; keep others or use a canonical "
            "auxiliary"
        ) from error
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, wanted[name].float()):
            raise BaseModelError(f"pruning did not carry over '{name}' exactly; report this family")
    model.tie_weights()
    model.generation_config = copy.deepcopy(base.generation_config)
    return model.eval()


def _kept_tensors(
    base: PreTrainedModel, prefix: str, kept: Sequence[int]
) -> dict[str, torch.Tensor]:
    layer_name = re.compile(rf"{re.escape(prefix)}\.(\d+)\.(.+)")
    wanted = {}
    for name, tensor in base.state_dict().items():
        match = layer_name.fullmatch(name)
        if match is None:
            wanted[name] = tensor
        elif int(match[1]) in kept:
            wanted[f"{prefix}.{kept.index(int(match[1]))}.{match[2]}"] = tensor
    return wanted


def _pruned_config(base: PreTrainedModel, kept: Sequence[int]) -> Any:
    config = keep_layers(base.config, kept)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    return config


def _attention(model: PreTrainedModel) -> str:
    return model.config._attn_implementation
