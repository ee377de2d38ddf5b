"""Whether a completion passes unit tests, run in a process of its own: that is no sandbox.

Code that a model wrote may do whatever the user may do. It runs only where the user said so, in an
empty temporary folder, without the environment, input and output, under limits of time, memory,
file size and processes. Against an accident this is enough, against malice it is not.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lit_kvpred.errors import ConfigurationError

PERMISSION = "HF_ALLOW_CODE_EVAL"
"""Environment variable that allows it with the value 1, as for Hugging Face's evaluate."""

_SECONDS = 10.0
_MEMORY_BYTES = 2 << 30
_RUNNER = Path(__file__).with_name("unit_test_process.py")
# Neither the user's packages nor the current folder are imported from. What -I adds, deafness to
# PYTHON* variables, would undo the fixed order of hashes, on which a verdict must not depend.
_ISOLATED = ("-s", "-P")
# Arithmetic libraries start a thread a core, which the limit of processes would forbid.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class UnitTests:
    """What makes a program of a completion.

    Attributes:
        before: Python source that the completion goes on from.
        after: Source of the tests, from a new line on; it raises where the completion is wrong.
    """

    before: str
    after: str

    def __post_init__(self) -> None:
        assert self.after.strip(), "without tests every completion would be right"


def require_permission() -> None:
    """Checks that the user allows model-written code to run.

    Raises:
        ConfigurationError: The environment variable `HF_ALLOW_CODE_EVAL` is not 1.
    """
    if os.environ.get(PERMISSION) != "1":
        raise ConfigurationError(
            "scoring by unit tests runs code that a model wrote, with all your rights and without a"
            f" sandbox; set the environment variable {PERMISSION}=1 to allow it, best inside a"
            " container"
        )


def passes(tests: UnitTests, completion: str, seconds: float = _SECONDS) -> bool:
    """Runs the tests of a completion. The same program is run once and keeps its verdict.

    Args:
        tests: What comes before and after the completion.
        completion: Python source.
        seconds: Wall-clock time after which it counts as wrong and all its processes are killed.

    Returns:
        Whether the program reached the end of the tests: not if it raises, exits before, or needs
        more than the time, 2 GiB of memory, or another process or thread (where that is enforced).

    Raises:
        ConfigurationError: The user has not allowed it.
    """
    require_permission()
    return _reaches_its_end(f"{tests.before}{completion}\n{tests.after}", seconds)


@lru_cache(maxsize=4096)
def _reaches_its_end(source: str, seconds: float) -> bool:
    # An exit status tells nothing: the program may have ended itself before its tests.
    token = secrets.token_hex()
    with TemporaryDirectory(prefix="unit-tests-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program, empty = folder / "program.py", folder / "empty"
        program.write_bytes(source.encode(errors="replace"))
        empty.mkdir()
        # Held open, so that it can be read even if the program removes it.
        with (folder / "verdict").open("x+b") as verdict:
            files = (str(program), verdict.name)
            limits = (str(_MEMORY_BYTES), str(int(seconds) + 1))
            process = subprocess.Popen(  # noqa: S603 - running this program is the purpose
                [sys.executable, *_ISOLATED, str(_RUNNER), *files, token, *limits],
                cwd=empty,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
            finally:
                _kill_group(process)
            return verdict.read() == token.encode()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it has started, which may outlive it."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
