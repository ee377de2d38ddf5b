"""Base models and tokenizers from a local folder, a GGUF file or the hub.

Every way in ends in the same thing: a plain, dense causal language model in eval mode, with all of
its weights read from files. What cannot be had that way is refused in one line before anything
large is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from transformers.utils import logging as hf_logging

from lit_kvpred.errors import BaseModelError, ConfigurationError, UnsupportedFamilyError
from lit_kvpred.json_text import parse_json

_TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_MODEL_FILES = (*_TOKENIZER_FILES, "*.safetensors")
# What transformers and safetensors raise for files that are absent, damaged or contradictory.
_LOADING_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    NotImplementedError,
    SafetensorError,
    StrictDataclassError,
    struct.error,
)
_DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


@dataclass(frozen=True)
class GgufSummary:
    """What a GGUF file says about itself before any weight is read."""

    architecture: str
    """The value of `general.architecture`, for example `llama`."""
    parameters: int
    """Elements of all tensors together."""


def load_base(
    source: str | Path, *, dtype: str | torch.dtype = "auto", revision: str | None = None
) -> PreTrainedModel:
    """Loads a causal language model in eval mode.

    Args:
        source: A folder with `config.json` and safetensors weights, a `.gguf` file, or a hub id.
            GGUF weights are dequantised: the model needs 4 bytes a parameter in float32.
        dtype: Type of the weights. `"auto"` keeps the files' own; dequantised GGUF is float32.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The model, on the CPU.

    Raises:
        BaseModelError: The source does not exist, is incomplete or damaged, or needs code of its
            own to load.
        UnsupportedFamilyError: transformers has no causal language model for the architecture.
        ConfigurationError: `revision` is given for something that is not on the hub, or `dtype` is
            unknown.
    """
    torch_dtype = checked_dtype(dtype)
    path = locate(source, revision=revision)
    if path.is_file():
        return _load_gguf(path, torch_dtype)
    config = folder_config(path, source)
    return _load_weights(path, source, config=config, dtype=torch_dtype)


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a base model.

    Args:
        source: As for `load_base`.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The tokenizer.

    Raises:
        BaseModelError: The source does not exist, or holds no readable tokenizer.
        ConfigurationError: `revision` is given for something that is not on the hub.
    """
    path = locate(source, revision=revision, files=_TOKENIZER_FILES)
    place, options = _as_arguments(path)
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
    except _LOADING_ERRORS as error:
        raise BaseModelError(f"{source}: no usable tokenizer: {_one_line(error)}") from error


def locate(
    source: str | Path, *, revision: str | None = None, files: tuple[str, ...] = _MODEL_FILES
) -> Path:
    """Finds a source on this machine, fetching it from the hub where it is a hub id.

    Args:
        source: A folder, a `.gguf` file, or a hub id.
        revision: Branch, tag or commit of a hub id.
        files: Patterns of the files that a hub id is needed for.

    Returns:
        An existing folder, or an existing GGUF file.

    Raises:
        BaseModelError: There is nothing of that name, here or on the hub.
        ConfigurationError: `revision` is given for a local path.
    """
    path = Path(source).expanduser()
    if not path.exists():
        return _fetch(str(source), revision, files)
    if revision is not None:
        raise ConfigurationError(
            f"{source} is a local path and has no revision {revision!r}; leave the revision out"
        )
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise BaseModelError(f"{source} is neither a model folder nor a .gguf file")
    return path


def read_gguf_summary(path: Path) -> GgufSummary:
    """Reads the architecture and the size of a GGUF file from its header.

    Raises:
        BaseModelError: The file is truncated or not a GGUF file.
    """
    try:
        reader = gguf.GGUFReader(path)
        field = reader.get_field("general.architecture")
        if field is None:
            raise ValueError("general.architecture is missing")
        architecture = str(field.contents())
    except (OSError, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise BaseModelError(
            f"{path} is truncated or not a GGUF file ({_one_line(error)}); fetch it again"
        ) from error
    return GgufSummary(architecture, sum(int(tensor.n_elements) for tensor in reader.tensors))


def _fetch(source: str, revision: str | None, files: tuple[str, ...]) -> Path:
    looks_like_path = source.startswith((".", "/", "~")) or source.lower().endswith(".gguf")
    try:
        validate_repo_id(source)
    except HFValidationError:
        looks_like_path = True
    if looks_like_path:
        raise BaseModelError(f"{source}: no such folder or file; check the path")
    try:
        # Other formats of the same weights lie in sub-folders.
        folder = snapshot_download(
            source, revision=revision, allow_patterns=list(files), ignore_patterns=["*/*"]
        )
    except (OSError, ValueError) as error:
        raise BaseModelError(
            f"{source}: no such folder, and not to be had from the hub; check the name and the "
            f"network, or give a local folder ({_one_line(error.__cause__ or error)})"
        ) from error
    return Path(folder)


def _load_gguf(path: Path, dtype: str | torch.dtype) -> PreTrainedModel:
    architecture = read_gguf_summary(path).architecture
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except _LOADING_ERRORS as error:
        raise UnsupportedFamilyError(
            f"{path}: transformers {transformers.__version__} cannot read GGUF files of "
            f"architecture {architecture!r} ({_one_line(error)}); use the model's safetensors files"
        ) from error
    _require_causal_lm(config, path)
    # Without `dequantize` the quantisation entry stays on the model, which then cannot be saved and
    # is taken for a quantised one by everything that asks.
    return _load_weights(
        path, path, config=config, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
    )


def _load_weights(
    path: Path, source: str | Path, *, config: PreTrainedConfig, **options: Any
) -> PreTrainedModel:
    place, where = _as_arguments(path)
    return checked_load(
        source,
        lambda: AutoModelForCausalLM.from_pretrained(
            place,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **where,
            **options,
        ),
    )


def checked_load(
    source: str | Path, load: Callable[[], tuple[PreTrainedModel, dict[str, Any]]]
) -> PreTrainedModel:
    """Run a `from_pretrained` quietly and insist that every weight was read.

    Args:
        source: What the user called the model.
        load: Returns the model and transformers' loading info.

    Returns:
        The model in eval mode.

    Raises:
        BaseModelError: Weights can't be read, or are missing or of another shape.
    """
    try:
        with quiet_transformers():
            model, info = load()
    except _LOADING_ERRORS as error:
        raise BaseModelError(
            f"{source}: the weights cannot be read ({_one_line(error)}); complete safetensors "
            "files are needed: fetch or prepare the model again"
        ) from error
    # transformers would go on with random values in their place.
    unread = sorted([*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])])
    if unread:
        raise BaseModelError(
            f"{source}: {len(unread)} weights are missing or of another shape than the "
            f"configuration says, first {unread[0]}; fetch or prepare the model again"
        )
    return model.eval()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Holds back transformers' warnings and progress bars, where what matters is checked here."""
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def folder_config(folder: Path, source: str | Path) -> PreTrainedConfig:
    """The configuration of a model folder, of a family that transformers has a causal LM for.

    Args:
        folder: The folder.
        source: What the user called it.

    Raises:
        BaseModelError: It is missing, damaged, or needs code of its own.
        UnsupportedFamilyError: transformers has no causal language model for it.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise BaseModelError(f"{source}: no config.json in this folder; it holds no base model")
    try:
        values = parse_json(file.read_text(encoding="utf-8"))
        family = values.get("model_type", "")
    except (ValueError, AttributeError) as error:
        raise BaseModelError(f"{file} is not a model configuration: {_one_line(error)}") from error
    _require_known_family(family, values, source)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except _LOADING_ERRORS as error:
        raise BaseModelError(f"{file} is not usable: {_one_line(error)}") from error
    _require_causal_lm(config, source)
    return config


def _require_known_family(family: str, values: Mapping[str, Any], source: str | Path) -> None:
    if family in CONFIG_MAPPING_NAMES:
        return
    name = f"{', '.join(values.get('architectures') or ['?'])} (model_type {family!r})"
    if "auto_map" in values:
        raise BaseModelError(
            f"{source}: architecture {name} needs code from the model's own repository, which is "
            "never run; use a model whose family is part of transformers"
        )
    raise UnsupportedFamilyError(
        f"{source}: transformers {transformers.__version__} does not know the architecture {name}"
    )


def _require_causal_lm(config: PreTrainedConfig, source: str | Path) -> None:
    names = config.architectures or []
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    named_causal = not names or any(
        name in causal or name.endswith(("ForCausalLM", "LMHeadModel")) for name in names
    )
    mapped = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if not mapped or not named_causal or config.is_encoder_decoder:
        raise UnsupportedFamilyError(
            f"{source}: {', '.join(names) or config.model_type} is not a causal language model; "
            "use a decoder-only model with a language-model head"
        )


def _as_arguments(path: Path) -> tuple[Path, dict[str, str]]:
    if path.is_file():
        return path.parent, {"gguf_file": path.name}
    return path, {}


def checked_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """``auto`` or a dtype.

    Raises:
        ConfigurationError: ``dtype`` is unknown.
    """
    if dtype == "auto" or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise ConfigurationError(f"unknown dtype {dtype!r}; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
