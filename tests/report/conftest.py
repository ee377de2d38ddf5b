"""One complete report for all tests that only read it, and a fresh run folder for the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from lit_kvpred.report import append_evaluation, write_report
from tests.report.fabricated import evaluation, write_run


@dataclass(frozen=True)
class Written:
    """A written report."""

    folder: Path
    html: str
    markdown: str
    json: str


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "prefix15")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report with every part: seven evaluations, a test, two runs to compare with."""
    root = tmp_path_factory.mktemp("runs")
    folder = write_run(root / "prefix15")
    append_evaluation(folder, evaluation(300, 300, 0.095, stage="test"))
    others = [
        write_run(root / "prefix8", last_step=240, final_kl=0.5),
        write_run(root / "pruned <b>half", last_step=360, final_kl=0.2),
    ]
    page = write_report(folder, others)
    return Written(
        folder,
        page.read_text(encoding="utf-8"),
        (folder / "report.md").read_text(encoding="utf-8"),
        (folder / "report.json").read_text(encoding="utf-8"),
    )
