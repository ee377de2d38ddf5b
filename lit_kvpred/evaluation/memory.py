"""Peak memory of a piece of work, as the operating system saw it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Context manager that keeps the largest peak of all its uses.

    On Linux the peak of the resident set, reset at each entry; on a GPU that of its allocator as
    well. Elsewhere nothing.

    Attributes:
        bytes: The largest peak so far, None where the system can't tell.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None

    def __enter__(self) -> PeakMemory:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        try:
            _RESET.write_text("5")
        except OSError:
            self._readable = False
        else:
            self._readable = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        peak = _resident_peak() if self._readable else None
        if torch.cuda.is_available():
            peak = (peak or 0) + torch.cuda.max_memory_allocated()
        if peak is not None:
            self.bytes = max(self.bytes or 0, peak)


def _resident_peak() -> int | None:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return 1024 * int(value.split()[0])
    return None
