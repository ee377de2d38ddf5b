"""Keeping the auxiliary's weights on disk while the base decodes.

Auxiliary and predictor are needed for a fraction of a second per prompt. With their weights on
disk in between, memory while decoding is the base's alone (KVP 4.4).
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from lit_kvpred.errors import CheckpointError


class AuxiliaryStore:
    """Releases and restores the parameters of one module, bit for bit."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lit-kvpred-")
        self._file = Path(self._folder.name) / "auxiliary.safetensors"
        self._released: nn.Module | None = None
        self._identities: dict[str, tuple[int, ...]] = {}
        self._checksums: dict[str, int] = {}

    @torch.no_grad()
    def release(self, module: nn.Module) -> None:
        """Write the parameters (once, unless they changed since) and free their memory.

        Raises:
            CheckpointError: If the temporary folder can't take them; the weights stay in memory.
        """
        if self._released is not None:
            return
        parameters = dict(module.named_parameters())
        if not parameters:
            return
        identities, checksums = _identities(parameters), _checksums(parameters)
        if (identities, checksums) != (self._identities, self._checksums):
            try:
                save_file({n: p.detach().contiguous() for n, p in parameters.items()}, self._file)
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"can't off-load the auxiliary to {self._folder.name} ({error}); "
                    "free disk space or generate without release_auxiliary"
                ) from error
        for parameter in parameters.values():
            parameter.data = parameter.data.new_empty(0)
        self._released = module
        self._identities, self._checksums = identities, checksums
        return_freed_memory()

    # Out of inference mode, whose tensors could never be trained again.
    @torch.inference_mode(False)
    @torch.no_grad()
    def restore(self) -> None:
        """Read released parameters back; does nothing when nothing is released."""
        if self._released is None:
            return
        parameters = dict(self._released.named_parameters())
        with safe_open(self._file, framework="pt") as file:
            for name, parameter in parameters.items():
                parameter.data = file.get_tensor(name).to(parameter.device)
        self._released = None
        # Restored bit for bit: the checksums still hold, and the prompt need not wait for them.
        self._identities = _identities(parameters)


def _identities(parameters: dict[str, nn.Parameter]) -> dict[str, tuple[int, ...]]:
    """Values that change when a parameter is written to or gets other storage."""
    return {name: (p._version, p.data_ptr(), p.element_size()) for name, p in parameters.items()}


def _checksums(parameters: dict[str, nn.Parameter]) -> dict[str, int]:
    """Sums of the bits, which also see what is written behind the version counter."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: int(p.detach().contiguous().view(integers[p.element_size()]).sum())
        for name, p in parameters.items()
    }


def return_freed_memory() -> None:
    """Give freed heap pages back to the system, which glibc would keep for later."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
