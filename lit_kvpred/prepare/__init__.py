"""Base models as plain safetensors folders: converted, unpacked or trained on the spot."""

from __future__ import annotations

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.prepare.convert import prepare
from lit_kvpred.prepare.demo import DEFAULT_STEPS, DEMO_SIZES, prepare_demo
from lit_kvpred.prepare.packaged import PACKAGED_MODELS, prepare_packaged

__all__ = ["PACKAGED_MODELS", "prepare", "prepare_command", "prepare_demo", "prepare_packaged"]


def prepare_command(
    source: str,
    out: str,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    steps: int | None = None,
) -> None:
    """Makes a folder with a base model in safetensors form.

    Args:
        source: `demo` trains a small model of Python code in about a minute, `demo-small` a
            smaller sibling of it; `smollm2-135m` fetches SmolLM2-135M-Instruct through pip;
            anything else is a GGUF file, a model folder or a hub id. A folder that is called like
            one of the first three is written `./demo`.
        out: The folder to make.
        dtype: Type of the written weights: float32, bfloat16, float16, or auto for the
            source's own.
        revision: Branch, tag or commit of a hub id.
        steps: Training steps of a demo.
    """
    if steps is not None and source not in DEMO_SIZES:
        raise ConfigurationError("steps is for the demos only; leave it out")
    if revision is not None and (source in DEMO_SIZES or source in PACKAGED_MODELS):
        raise ConfigurationError(f"{source} has no revisions; leave the revision out")
    if source in DEMO_SIZES:
        if dtype != "float32":
            raise ConfigurationError("demos are made in float32; leave the dtype out")
        prepare_demo(out, steps=DEFAULT_STEPS if steps is None else steps, size=DEMO_SIZES[source])
    elif source in PACKAGED_MODELS:
        prepare_packaged(source, out, dtype=dtype)
    else:
        prepare(source, out, dtype=dtype, revision=revision)
