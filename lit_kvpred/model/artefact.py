"""The exported artefact: what was trained, and the base by reference (safetensors and JSON).

Layout of the folder::

    config.json          base reference with fingerprint, auxiliary kind, features
    model.safetensors    the predictor
    auxiliary/           the auxiliary as an ordinary transformers folder; none for a prefix
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from lit_kvpred import __version__
from lit_kvpred.errors import CheckpointError, ConfigurationError, KVPredictionError
from lit_kvpred.model.auxiliary import Auxiliary, NetworkAuxiliary
from lit_kvpred.model.fingerprint import fingerprint
from lit_kvpred.model.loading import load_base
from lit_kvpred.model.prefix import PrefixAuxiliary

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel

_FORMAT = 2


def base_reference(base: PreTrainedModel) -> dict[str, Any]:
    """Name, revision, dtype and fingerprint of a base."""
    return {
        "source": base.config.name_or_path or None,
        "dtype": str(base.dtype).removeprefix("torch."),
        "revision": getattr(base.config, "_commit_hash", None),
        "fingerprint": fingerprint(base),
    }


def check_base(base: PreTrainedModel, reference: dict[str, Any], where: str | Path) -> None:
    """Raise `CheckpointError` unless ``base`` is the one that ``reference`` describes."""
    found = fingerprint(base)
    if found != reference["fingerprint"]:
        raise CheckpointError(
            f"{where} was trained for base {reference['source']!r} (fingerprint "
            f"{reference['fingerprint'][:12]}, {reference.get('dtype', 'dtype unknown')}), but "
            f"{base.config.name_or_path!r} has fingerprint {found[:12]} in "
            f"{str(base.dtype).removeprefix('torch.')}; load it with the base it was trained for"
        )


def save_artefact(model: KVPredictionModel, folder: Path) -> None:
    """Write ``model``'s artefact; an earlier one at ``folder`` is replaced only when complete.

    Raises:
        CheckpointError: If the folder can't be written.
    """
    folder = folder.resolve()
    if folder.exists() and not _is_replaceable(folder):
        raise CheckpointError(
            f"can't write the artefact {folder}: it holds something else; choose another folder"
        )
    partial = folder.with_name(folder.name + ".partial")
    description = {
        "format": _FORMAT,
        "version": __version__,
        "base": base_reference(model.base),
        "auxiliary": model.auxiliary.describe(),
        "features": model.predictor.features.kind,
        "init": model.init,
        "layer_map": model.predictor.features.layer_map,
        "exact_tail": model.exact_tail,
        "rank": model.predictor.rank,
    }
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "config.json").write_text(json.dumps(description, indent=2) + "\n")
        weights = {n: t.contiguous() for n, t in model.predictor.state_dict().items()}
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        if isinstance(model.auxiliary, NetworkAuxiliary):
            model.auxiliary.model.save_pretrained(partial / "auxiliary")
        earlier = folder.with_name(folder.name + ".earlier")
        shutil.rmtree(earlier, ignore_errors=True)
        if folder.exists():
            folder.rename(earlier)
        partial.rename(folder)
        shutil.rmtree(earlier, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"can't write the artefact {folder} ({error}); free space or choose another folder"
        ) from error


def load_artefact(folder: Path, base: PreTrainedModel | str | None = None) -> KVPredictionModel:
    """Load an artefact, with its own base, a given one, or that of a folder or hub id.

    Raises:
        CheckpointError: If the artefact is missing, damaged, or belongs to another base.
    """
    from lit_kvpred.model.kv_prediction import KVPredictionModel

    description = _read_description(folder)
    reference = description["base"]
    dtype = reference.get("dtype", "auto")
    if base is None:
        if reference["source"] is None:
            raise CheckpointError(f"{folder} does not name its base; pass `base` yourself")
        base = load_base(reference["source"], revision=reference.get("revision"), dtype=dtype)
    elif isinstance(base, str):
        base = load_base(base, dtype=dtype)
    check_base(base, reference, folder)
    facts = description["auxiliary"]
    try:
        is_prefix = facts["kind"] == "prefix"
        network = None if is_prefix else load_base(str(folder / "auxiliary"), dtype="float32")
        weights = load_file(folder / "model.safetensors")
    except (KVPredictionError, OSError, SafetensorError, KeyError, TypeError) as error:
        raise CheckpointError(f"artefact {folder} is damaged ({error}); export it again") from error
    try:
        model = KVPredictionModel(
            base,
            _auxiliary(base, network, description),
            features=description["features"],
            init=description["init"],
            layer_map=description["layer_map"],
            exact_tail=description["exact_tail"],
            rank=description["rank"],
        )
        model.predictor.load_state_dict(weights, strict=True)
    except (ConfigurationError, KeyError, TypeError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"artefact {folder} does not fit its own description ({first}); export it again"
        ) from error
    return model.eval()


def _auxiliary(
    base: PreTrainedModel, network: PreTrainedModel | None, description: dict[str, Any]
) -> Auxiliary:
    facts = description["auxiliary"]
    if network is None:
        return PrefixAuxiliary(base, facts["depth"])
    layer_map = description["layer_map"] or []
    return NetworkAuxiliary(
        network, facts["kind"], layer_map, source=facts["source"], kept=facts["kept"]
    )


def _is_replaceable(folder: Path) -> bool:
    """Whether ``folder`` is empty or an earlier artefact."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder.is_dir()
    try:
        _read_description(folder)
    except CheckpointError:
        return False
    return True


def _read_description(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        description = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} holds no artefact (no config.json); pass a folder that save_pretrained wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read ({error}); export it again") from error
    wanted = {"format", "base", "auxiliary", "features", "init", "layer_map", "exact_tail", "rank"}
    complete = isinstance(description, dict) and wanted <= description.keys()
    if not complete or description["format"] != _FORMAT:
        raise CheckpointError(f"{file} is not an artefact of this version; export it again")
    reference = description["base"]
    named = isinstance(reference, dict) and "source" in reference
    if not named or not isinstance(reference.get("fingerprint"), str):
        raise CheckpointError(f"{file} does not name its base; export it again")
    return description
