"""What an artefact's config.json says, checked field by field before anything is loaded by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, get_args

from lit_kvpred import __version__
from lit_kvpred.checks import require_count
from lit_kvpred.errors import CheckpointError, ConfigurationError
from lit_kvpred.json_text import parse_json
from lit_kvpred.model.auxiliary import AuxiliaryKind
from lit_kvpred.model.exact_tail import ExactTail, require_exact_tail
from lit_kvpred.model.features import FeatureKind
from lit_kvpred.model.loading import checked_dtype

_FORMAT = 2
_SHOWN = 60

_Check = Callable[[Any], bool]


@dataclass(frozen=True)
class ArtefactDescription:
    """The settings of a `KVPredictionModel` and the base that it belongs to.

    Attributes:
        base: ``source``, ``dtype``, ``revision`` and ``fingerprint`` of the base.
        auxiliary: Its ``kind``, with ``depth`` for a prefix, ``source`` and ``kept`` otherwise.
        features: What the predictor reads.
        init: How it was initialised.
        layer_map: For each predicted base layer the auxiliary layer that feeds it, if any.
        exact_tail: Prompt rows that the base runs itself.
        rank: Width of the maps' bottleneck, if any.
    """

    base: Mapping[str, Any]
    auxiliary: Mapping[str, Any]
    features: FeatureKind
    init: Any
    layer_map: list[int] | None
    exact_tail: ExactTail
    rank: int | None

    def to_json(self) -> str:
        """The text of config.json."""
        content = {"format": _FORMAT, "version": __version__, **asdict(self)}
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Read the description of the artefact in ``folder``.

        Raises:
            CheckpointError: If there is none, or a field is missing or of the wrong kind.
        """
        file = folder / "config.json"
        content = _object(folder, file)
        if content.get("format") != _FORMAT or not _FIELDS.keys() <= content.keys():
            raise CheckpointError(f"{file} is not an artefact of this version; export it again")
        parts = {name: content[name] for name in _FIELDS}
        for name, check in _FIELDS.items():
            _require(file, name, parts[name], check)
        kind = parts["auxiliary"].get("kind")
        _require(file, "auxiliary.kind", kind, lambda value: value in get_args(AuxiliaryKind))
        known = {"base": _BASE, "auxiliary": _PREFIX if kind == "prefix" else _NETWORK}
        for part, checks in known.items():
            facts = {name: parts[part].get(name) for name in checks}
            for name, check in checks.items():
                _require(file, f"{part}.{name}", facts[name], check)
            parts[part] = facts
        parts["auxiliary"]["kind"] = kind
        return cls(**parts)


def _object(folder: Path, file: Path) -> dict[str, Any]:
    if folder.is_file():
        raise CheckpointError(f"{folder} is a file; pass the folder that save_pretrained wrote")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} holds no artefact (no config.json); pass a folder that save_pretrained wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read ({error}); export it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is not an artefact of this version; export it again")
    return content


def _require(file: Path, name: str, value: Any, check: _Check) -> None:
    if not check(value):
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        raise CheckpointError(
            f"{file} is damaged: {name} can't be {shown}; export the artefact again"
        )


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _passes(require: Callable[..., object], *arguments: Any) -> bool:
    try:
        require(*arguments)
    except ConfigurationError:
        return False
    return True


def _is_count(value: Any, least: int = 1) -> bool:
    return _passes(require_count, "", value, least)


def _is_layers_or_none(value: Any) -> bool:
    if not isinstance(value, list):
        return value is None
    return bool(value) and all(_is_count(layer, least=0) for layer in value)


def _is_dtype_or_none(value: Any) -> bool:
    if not isinstance(value, str):
        return value is None
    return _passes(checked_dtype, value)


_FIELDS: dict[str, _Check] = {
    "base": lambda value: isinstance(value, dict),
    "auxiliary": lambda value: isinstance(value, dict),
    "features": lambda value: value in get_args(FeatureKind),
    "init": lambda value: value in ("default", "least_squares"),
    "layer_map": _is_layers_or_none,
    "exact_tail": lambda value: _passes(require_exact_tail, "", value),
    "rank": lambda value: value is None or _is_count(value),
}
_BASE: dict[str, _Check] = {
    "source": lambda value: _is_text_or_none(value) and value != "",
    "dtype": _is_dtype_or_none,
    "revision": _is_text_or_none,
    "fingerprint": lambda value: isinstance(value, str),
}
_PREFIX: dict[str, _Check] = {"depth": _is_count}
_NETWORK: dict[str, _Check] = {"source": _is_text_or_none, "kept": _is_layers_or_none}
