"""`lit-kvpred prepare`."""

from __future__ import annotations

from lit_kvpred.cli.arguments import call_with_arguments


def run(words: list[str]) -> None:
    """Run the command with its name and arguments."""
    from lit_kvpred.prepare import prepare_command

    call_with_arguments(prepare_command, words)
