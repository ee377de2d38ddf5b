"""The report as data: everything that the pages show, for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lit_kvpred.report.charts import POINTS
from lit_kvpred.report.comparison import MEASURES, at_equal_tokens
from lit_kvpred.report.headline import headline, key_figures
from lit_kvpred.report.records import Run, finite
from lit_kvpred.report.series import progress_of, thinned

FORMAT = 2


def to_json(runs: Sequence[Run]) -> str:
    """The content of `report.json`.

    Args:
        runs: The reported run, then those it is compared with.

    Returns:
        JSON with null for what was not measured or is not finite: `name`, `headline`,
        `key_figures`, `facts`, `config`, `evaluations` (as in `lit_kvpred.report.schema`),
        `sweep` and `curves`, thinned out as in the plots; the same for each of `comparisons`; and
        `equal_tokens`, null where there is nothing to compare.
    """
    run, *others = runs
    content = {
        "format": FORMAT,
        **_run(run),
        "comparisons": [_run(other) for other in others],
        "equal_tokens": _equal_tokens(runs),
    }
    return json.dumps(finite(content), indent=1) + "\n"


def _equal_tokens(runs: Sequence[Run]) -> dict[str, Any] | None:
    counted = [run for run in runs if progress_of(run).unit == "tokens seen"]
    equal = at_equal_tokens(counted)
    if equal is None:
        return None
    measures = [measure.name for measure in MEASURES]
    return {
        "tokens": equal.tokens,
        "runs": {
            run.name: dict(zip(measures, values, strict=True))
            for run, values in zip(counted, equal.values, strict=True)
        },
    }


def _run(run: Run) -> dict[str, Any]:
    progress = progress_of(run)
    figures = key_figures(run)
    return {
        "name": run.name,
        "headline": headline(figures),
        "key_figures": asdict(figures),
        "facts": run.facts,
        "config": run.config,
        "evaluations": [asdict(line) for line in run.evaluations],
        "sweep": [asdict(row) for row in run.sweep],
        "progress": progress.unit,
        "curves": {
            name: thinned(progress.of(curve), POINTS)
            for name, curve in run.curves.items()
            if name != "tokens_seen"
        },
    }
