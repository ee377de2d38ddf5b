"""Peak memory of a piece of work, as the operating system saw it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import torch

_SAMPLING_SECONDS = 0.005
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


class PeakPrivateMemory:
    """Context manager that samples the private memory of this process on Linux.

    Unlike the resident set it leaves out mapped files and libraries. The system keeps no peak of
    it, so that a thread looks every few milliseconds and at both ends.

    Attributes:
        used: Largest number of bytes in use (``RssAnon``); None where the system can't tell.
        reserved: Largest number of bytes that count towards ``RLIMIT_DATA`` (``VmData``); likewise.
    """

    def __init__(self) -> None:
        self.used: int | None = None
        self.reserved: int | None = None
        self._done = threading.Event()

    def __enter__(self) -> PeakPrivateMemory:
        self._sample()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLING_SECONDS):
            self._sample()

    def _sample(self) -> None:
        used, reserved = _status_bytes("RssAnon"), _status_bytes("VmData")
        if used is not None and reserved is not None:
            self.used = max(self.used or 0, used)
            self.reserved = max(self.reserved or 0, reserved)


def reserved_bytes() -> int | None:
    """What counts towards ``RLIMIT_DATA`` now; None where the system can't tell."""
    return _status_bytes("VmData")


def _resident_peak() -> int | None:
    return _status_bytes("VmHWM")


def _status_bytes(wanted: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == wanted:
            return 1024 * int(value.split()[0])
    return None
