"""The `lit-kvpred` command; importing this costs nothing, each command imports what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from lit_kvpred import __version__
from lit_kvpred.errors import KVPredictionError

_COMMANDS = {
    "prepare": ("lit_kvpred.cli.prepare", "make a base model ready for use (GGUF, hub id, demo)"),
    "fit": ("lit_kvpred.cli.training", "train auxiliary and projections for a base"),
    "validate": ("lit_kvpred.cli.training", "measure a checkpoint on the validation split"),
    "test": ("lit_kvpred.cli.training", "measure a checkpoint on the test split"),
    "predict": ("lit_kvpred.cli.training", "answer the evaluation prompts and write the answers"),
    "generate": ("lit_kvpred.cli.generate", "answer a prompt with a trained artefact, streaming"),
    "bench": ("lit_kvpred.cli.bench", "time whole answers, with and without correction"),
    "quality": ("lit_kvpred.cli.quality", "measure artefacts on held-out text"),
    "sweep": ("lit_kvpred.cli.sweep", "try correction settings on prompts and compare the texts"),
    "offload": ("lit_kvpred.cli.offload", "run a base that does not fit into memory"),
    "report": ("lit_kvpred.cli.report", "write the report of one run, or of several side by side"),
}

_HELP = """\
usage: lit-kvpred [--help] [--version] [--debug] COMMAND ...

Earlier first tokens for causal language models: KV Prediction with exact correction.

commands:
{commands}

options:
  --help     this text; `lit-kvpred COMMAND --help` tells the options of a command
  --version  the version
  --debug    show the traceback of an error
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 success, 1 run-time error, 2 bad usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        lines = (f"  {name:<10} {text}" for name, (_, text) in _COMMANDS.items())
        (sys.stdout if words else sys.stderr).write(_HELP.format(commands="\n".join(lines)))
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"lit-kvpred {__version__}\n")
        return 0
    if words[0] not in _COMMANDS:
        return _fail(f"unknown command '{words[0]}'; choose from {', '.join(_COMMANDS)}", status=2)
    run: Callable[[list[str]], None] = import_module(_COMMANDS[words[0]][0]).run
    try:
        run(words)
    except KeyboardInterrupt:
        return _fail("interrupted", status=130)
    except Exception as error:
        if debug:
            raise
        return _fail(*_explain(error))
    return 0


def _explain(error: Exception) -> tuple[str, int]:
    """One line and the exit status for an error."""
    from jsonargparse import ArgumentError

    from lit_kvpred.cli.parser_messages import short_message

    if isinstance(error, ArgumentError):
        return short_message(str(error)), 2
    cause: BaseException | None = error
    while cause is not None:
        # What reads configurations wraps errors of the objects that it makes.
        if isinstance(cause, KVPredictionError):
            return str(cause), 1
        cause = cause.__cause__
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or 'no file named'}", 1
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} (run again with --debug for the traceback)", 1


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"lit-kvpred: error: {' '.join(message.splitlines())}\n")
    return status
