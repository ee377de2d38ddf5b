"""Loading a base of which the feed-forward weights stay in its own files.

transformers builds the model and reads everything else. For the feed-forward weights it is given
stand-ins of a single element, which it can't tell from tensors of their shape; where it puts them
says which stored tensor is which parameter, whatever names a family goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from lit_kvpred.errors import BaseModelError, UnsupportedFamilyError
from lit_kvpred.model.feed_forward import locate_feed_forwards
from lit_kvpred.model.loading import checked_dtype, checked_load, folder_config, locate
from lit_kvpred.model.slow_tier import FileTier
from lit_kvpred.model.stored_tensors import StoredTensor, tensors_of_folder
from lit_kvpred.model.streamed import StreamedFeedForwards, streamed_weights


def load_streamed_base(
    source: str | Path, *, dtype: str | torch.dtype = "auto", revision: str | None = None
) -> PreTrainedModel:
    """Load a causal language model in eval mode whose feed-forward weights are streamed.

    No file is mapped, none is written, and at no time are the feed-forward weights of more than two
    layers in memory. `lit_kvpred.model.streamed.streamed_of` tells what was read.

    Args:
        source: A folder with `config.json` and safetensors weights, or a hub id.
        dtype: Type to compute in; weights are converted each time a layer is read. ``auto`` is the
            files' own.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The model, on the CPU.

    Raises:
        BaseModelError: The source does not exist, is incomplete or damaged, is a GGUF file, or
            needs code of its own.
        UnsupportedFamilyError: The family's feed-forward parts are of no ordinary kind, its files
            keep them in another form, or transformers has no such causal language model.
        ConfigurationError: ``revision`` is given for a folder, or ``dtype`` is unknown.
    """
    folder = _folder(source, revision)
    checkpoint = _Checkpoint(folder, source, dtype)
    tier = FileTier(checkpoint.feed_forwards())
    base = checkpoint.load({stored.name for layer in tier.layers for stored in layer})
    StreamedFeedForwards(base, tier)
    return base


def load_base_unmapped(
    source: str | Path, *, dtype: str | torch.dtype = "auto", revision: str | None = None
) -> PreTrainedModel:
    """Load a causal language model whole, like `load_base`, without mapping its files.

    Its private memory is that of its weights; a mapped file is reserved on top of them. For
    comparisons under a limit; arguments and errors of `load_streamed_base`.
    """
    return _Checkpoint(_folder(source, revision), source, dtype).load(set())


def _folder(source: str | Path, revision: str | None) -> Path:
    path = locate(source, revision=revision)
    if path.is_file():
        raise BaseModelError(
            f"{source}: GGUF weights are dequantised while loading and can't be streamed; make a "
            "folder of them first: lit-kvpred prepare"
        )
    return path


class _Checkpoint:
    """A model folder and what of it is given to transformers."""

    def __init__(self, folder: Path, source: str | Path, dtype: str | torch.dtype) -> None:
        wanted = checked_dtype(dtype)
        self._folder, self._source = folder, source
        self._config = folder_config(folder, source)
        if getattr(self._config, "quantization_config", None) is not None:
            raise BaseModelError(
                f"{source}: quantised weights can't be streamed; use the model's safetensors files "
                "in a floating-point type"
            )
        self._stored = tensors_of_folder(folder)
        if not isinstance(wanted, torch.dtype):
            wanted = _own_dtype(self._config, self._stored)
        self._dtype: torch.dtype = wanted

    def feed_forwards(self) -> list[list[StoredTensor]]:
        """The stored feed-forward weights of each layer, found without reading any weight."""
        stand_ins = self._stand_ins(set(self._stored))
        model = self._load(stand_ins)
        names = {stand_in.data_ptr(): name for name, stand_in in stand_ins.items()}
        layers = []
        for weights in streamed_weights(locate_feed_forwards(model)):
            found = [names.get(weight.data_ptr()) for weight in weights]
            if None in found or len(set(found)) < len(found):
                raise UnsupportedFamilyError(
                    f"{self._source}: the files of model family '{self._config.model_type}' keep "
                    "feed-forward weights in another form than the model does, so that they can't "
                    "be streamed; load it whole"
                )
            layers.append([self._stored[name] for name in found if name is not None])
        return layers

    def load(self, absent: set[str]) -> PreTrainedModel:
        """The model, with stand-ins for the stored tensors ``absent``."""
        with ExitStack() as files:
            state: dict[str, Any] = dict(self._stand_ins(absent))
            for file in sorted({stored.file for stored in self._stored.values()}):
                # The other backend maps the file.
                opened = files.enter_context(safe_open(file, framework="pt", backend="pread"))
                for name, stored in self._stored.items():
                    if stored.file == file and name not in absent:
                        state[name] = opened.get_slice(name)
            model = self._load(state)
        model.config.name_or_path = str(self._source)
        if (self._folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(self._folder)
        return model

    def _load(self, state: Mapping[str, Any]) -> PreTrainedModel:
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(self._config)]
        config = self._config
        text_class = config.sub_configs.get("text_config")
        if text_class is not None and model_class.config_class == text_class:
            config = config.get_text_config()
        return checked_load(
            self._source,
            lambda: model_class.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=self._dtype,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            ),
        )

    def _stand_ins(self, names: set[str]) -> dict[str, Tensor]:
        """Tensors of the stored shapes, of one element of memory each, in the compute dtype."""
        stand_ins = {}
        for name in names:
            stored = self._stored[name]
            dtype = self._dtype if stored.dtype.is_floating_point else stored.dtype
            stand_ins[name] = torch.zeros(1, dtype=dtype).expand(stored.shape)
        return stand_ins


def _own_dtype(config: PreTrainedConfig, stored: Mapping[str, StoredTensor]) -> torch.dtype:
    if isinstance(config.dtype, torch.dtype):
        return config.dtype
    return next(s.dtype for s in stored.values() if s.dtype.is_floating_point)
