"""Runs one program under limits and writes a token once it has reached its end.

`lit_kvpred.evaluation.unit_tests` starts this file by its path, in a process of its own, with the
files of the program and of the verdict, the token, and the limits in bytes and seconds. It imports
the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType

_FILE_BYTES = 16 << 20


def _set_limits(memory_bytes: int, cpu_seconds: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows, where the clock of the parent is the only limit
        return
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        # No further process or thread. The administrator is exempt.
        (resource.RLIMIT_NPROC, 0),
    ):
        # A system may not know a limit (macOS, memory) or have a lower one already.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def _main(program: str, verdict: str, token: str, memory_bytes: str, cpu_seconds: str) -> None:
    source = Path(program).read_bytes()
    descriptor = os.open(verdict, os.O_WRONLY)
    # The program may rebind names of modules that it shares with this file.
    write, leave = os.write, os._exit
    sys.argv = [program]
    module = sys.modules["__main__"] = ModuleType("__main__")
    _set_limits(int(memory_bytes), int(cpu_seconds))
    exec(compile(source, program, "exec"), module.__dict__)  # noqa: S102 - the purpose of it all
    write(descriptor, token.encode())
    # Threads and handlers that the program leaves behind are none of its tests.
    leave(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
