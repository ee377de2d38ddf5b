"""The exported artefact: what was trained, and the base by reference (safetensors and JSON).

Layout of the folder::

    config.json          base reference with fingerprint, auxiliary kind, features
    model.safetensors    the predictor
    auxiliary/           the auxiliary as an ordinary transformers folder; none for a prefix
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lit_kvpred.errors import (
    BaseModelError,
    CheckpointError,
    ConfigurationError,
    KVPredictionError,
)
from lit_kvpred.model.artefact_description import ArtefactDescription
from lit_kvpred.model.auxiliary import Auxiliary, NetworkAuxiliary
from lit_kvpred.model.fingerprint import fingerprint
from lit_kvpred.model.loading import load_base
from lit_kvpred.model.prefix import PrefixAuxiliary

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel


def base_reference(base: PreTrainedModel) -> dict[str, Any]:
    """Name, revision, dtype and fingerprint of a base."""
    return {
        "source": base.config.name_or_path or None,
        "dtype": str(base.dtype).removeprefix("torch."),
        "revision": getattr(base.config, "_commit_hash", None),
        "fingerprint": fingerprint(base),
    }


def check_base(base: PreTrainedModel, reference: Mapping[str, Any], where: str | Path) -> None:
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
        CheckpointError: If a weight is not finite, or the folder can't be written.
    """
    folder = folder.resolve()
    if folder.exists() and not _is_replaceable(folder):
        raise CheckpointError(
            f"can't write the artefact {folder}: it holds something else; choose another folder"
        )
    network = model.auxiliary.model if isinstance(model.auxiliary, NetworkAuxiliary) else None
    for part in (model.predictor, network):
        unusable = None if part is None else _unusable(part.state_dict())
        if unusable is not None:
            raise CheckpointError(
                f"can't write the artefact {folder}: {unusable}; go back to a checkpoint from "
                "before that"
            )
    partial = folder.with_name(folder.name + ".partial")
    description = ArtefactDescription(
        base=base_reference(model.base),
        auxiliary=model.auxiliary.describe(),
        features=model.predictor.features.kind,
        init=model.init,
        layer_map=model.predictor.features.layer_map,
        exact_tail=model.exact_tail,
        rank=model.predictor.rank,
    )
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "config.json").write_text(description.to_json())
        weights = {n: t.contiguous() for n, t in model.predictor.state_dict().items()}
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        if network is not None:
            network.save_pretrained(partial / "auxiliary")
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
        BaseModelError: If the base can't be loaded.
        CheckpointError: If the artefact is missing, damaged, or belongs to another base.
    """
    from lit_kvpred.model.kv_prediction import KVPredictionModel

    description = ArtefactDescription.of_folder(folder)
    base = _base(folder, description.base, base)
    check_base(base, description.base, folder)
    is_prefix = description.auxiliary["kind"] == "prefix"
    file = folder / "model.safetensors"
    try:
        network = None if is_prefix else load_base(str(folder / "auxiliary"), dtype="float32")
        weights = load_file(file)
    except (KVPredictionError, OSError, SafetensorError) as error:
        raise CheckpointError(f"artefact {folder} is damaged ({error}); export it again") from error
    stored = {file: weights}
    if network is not None:
        stored[folder / "auxiliary"] = network.state_dict()
    for place, tensors in stored.items():
        unusable = _unusable(tensors)
        if unusable is not None:
            raise CheckpointError(f"artefact {place} is damaged: {unusable}; export it again")
    try:
        model = KVPredictionModel(
            base,
            _auxiliary(base, network, description),
            features=description.features,
            init=description.init,
            layer_map=description.layer_map,
            exact_tail=description.exact_tail,
            rank=description.rank,
        )
        model.predictor.load_state_dict(weights, strict=True)
    except (ConfigurationError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"artefact {folder} does not fit its own description ({first}); export it again"
        ) from error
    return model.eval()


def _base(
    folder: Path, reference: Mapping[str, Any], given: PreTrainedModel | str | None
) -> PreTrainedModel:
    """The given base, or that of the given name, or the one that the artefact names."""
    if isinstance(given, PreTrainedModel):
        return given
    dtype = reference["dtype"] or "auto"
    if given is not None:
        return load_base(given, dtype=dtype)
    if reference["source"] is None:
        raise CheckpointError(f"{folder} does not name its base; pass `base` (--base) yourself")
    try:
        return load_base(reference["source"], revision=reference["revision"], dtype=dtype)
    except (BaseModelError, ConfigurationError) as error:
        raise type(error)(
            f"{error}; {folder} was trained for this base: where it lies elsewhere, pass `base` "
            "(--base)"
        ) from error


def _unusable(weights: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the first tensor that can't be a trained weight."""
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            return f"{name} is of type {str(tensor.dtype).removeprefix('torch.')}"
        if not bool(tensor.isfinite().all()):
            return f"{name} holds values that are not finite"
    return None


def _auxiliary(
    base: PreTrainedModel, network: PreTrainedModel | None, description: ArtefactDescription
) -> Auxiliary:
    facts = description.auxiliary
    if network is None:
        return PrefixAuxiliary(base, facts["depth"])
    layer_map = description.layer_map or []
    return NetworkAuxiliary(
        network, facts["kind"], layer_map, source=facts["source"], kept=facts["kept"]
    )


def _is_replaceable(folder: Path) -> bool:
    """Whether ``folder`` is empty or an earlier artefact."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder.is_dir()
    try:
        ArtefactDescription.of_folder(folder)
    except CheckpointError:
        return False
    return True
