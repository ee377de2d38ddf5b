"""From run folders to the three files of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lit_kvpred.report.atomic import write_atomically
from lit_kvpred.report.comparison import comparison_section
from lit_kvpred.report.document import Document
from lit_kvpred.report.headline import headline, key_figures, tiles
from lit_kvpred.report.html import to_html
from lit_kvpred.report.machine import to_json
from lit_kvpred.report.markdown import to_markdown
from lit_kvpred.report.records import Run, read_run
from lit_kvpred.report.sections import closing_sections, run_sections


def write_report(run: Path, comparisons: Sequence[Path] = ()) -> Path:
    """Write `report.md`, `report.html` and `report.json` into a run folder.

    What the run did not measure is said to be absent; nothing has to be there but one of
    `run.json`, `evaluation.jsonl` and `metrics.csv`. Earlier reports stay as they are until the new
    one is complete on the disk.

    Args:
        run: The run folder to report on.
        comparisons: Other run folders, whose curves and measures are shown beside it.

    Returns:
        The path of `report.html`.

    Raises:
        ConfigurationError: If a folder is not one of a run, or the report cannot be written.
        CheckpointError: If a file of a run is damaged.
    """
    folders = list({folder.resolve(): folder for folder in (run, *comparisons)}.values())
    runs = _distinctly_named(folders, [read_run(folder) for folder in folders])
    document = report_document(runs)
    page = run / "report.html"
    write_atomically(
        {
            run / "report.md": to_markdown(document),
            page: to_html(document),
            run / "report.json": to_json(runs),
        }
    )
    return page


def report_document(runs: Sequence[Run]) -> Document:
    """The report on the first run, compared with the others."""
    run = runs[0]
    figures = key_figures(run)
    sections = run_sections(run)
    if len(runs) > 1:
        sections.append(comparison_section(runs))
    return Document(
        title=f"Validation report: {run.name}",
        headline=headline(figures),
        tiles=tiles(figures),
        sections=[*sections, *closing_sections(run)],
    )


def _distinctly_named(folders: Sequence[Path], runs: Sequence[Run]) -> list[Run]:
    times = Counter(run.name for run in runs)
    return [
        run
        if times[run.name] == 1
        else replace(run, name=f"{folder.resolve().parent.name}/{run.name}")
        for folder, run in zip(folders, runs, strict=True)
    ]
