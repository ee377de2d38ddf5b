"""`lit-kvpred report`."""

from __future__ import annotations

import sys
from pathlib import Path

from lit_kvpred.cli.arguments import call_with_arguments, with_list_first


def report(runs: list[str]) -> None:
    """Write report.md, report.html and report.json into the first run's folder.

    Args:
        runs: Run folders; further ones are laid beside the first.
    """
    from lit_kvpred.report import write_report

    first, *others = map(Path, runs)
    sys.stdout.write(f"{write_report(first, others)}\n")


def run(words: list[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(report, with_list_first(words))
