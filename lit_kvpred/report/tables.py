"""Tables of what a run records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lit_kvpred.report.charts import SYSTEM_LABELS
from lit_kvpred.report.document import Cell, Facts, Raw, Table
from lit_kvpred.report.formats import (
    ABSENT,
    compact,
    count,
    duration,
    factor,
    fixed,
    number_list,
    percent,
    plural,
    significant,
    spread,
)
from lit_kvpred.report.schema import Accuracy, Evaluation, Sample, Systems, Timing
from lit_kvpred.report.series import Progress, spaced

_PARTS = ("base", "auxiliary", "predictor", "objective", "data")
_LABELS = {
    "init": "Initialisation",
    "kept": "Kept layers of the base",
    "layer_map": "Layer map, from base layer 0 on",
    "dtype": "Number format",
}
_ROWS = 24  # of evaluations, evenly spaced in a longer run; report.json holds all
_PROMPT_LINES = 6  # of a prompt's end, shown with its completions
_PROMPT_CHARACTERS = 400


def facts_of(facts: Mapping[str, Any]) -> Facts:
    """What was trained on what, with what: the content of `run.json`."""
    groups = [
        (part.capitalize(), [(_label(key), plain(value, key)) for key, value in settings.items()])
        for part in _PARTS
        if isinstance(settings := facts.get(part), Mapping)
    ]
    rest = [
        (_label(key), plain(value, key))
        for key, value in facts.items()
        if key not in (*_PARTS, "versions")
    ]
    if isinstance(versions := facts.get("versions"), Mapping):
        rest += [(name, plain(version)) for name, version in versions.items()]
    return Facts([*groups, ("Run", rest)] if rest else groups)


def plain(value: object, key: str = "") -> str:
    """A configuration value as text; `key` tells counts from other whole numbers."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if "seed" in key else count(value)
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ABSENT
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(item, str(name))}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return number_list(value)
    return str(value)


def text_table(lines: Sequence[Evaluation], progress: Progress) -> Table:
    """Closeness to the base on held-out text, a row an evaluation."""
    measured = [(line, line.text) for line in lines if line.text is not None]
    rows = []
    for line, text in spaced(measured, _ROWS):
        rows.append(
            (
                count(progress.at(line.global_step)),
                count(line.global_step),
                percent(text.agreement),
                percent(text.agreement_first8),
                fixed(text.kl),
                fixed(text.cross_entropy),
                fixed(text.cross_entropy_base),
                fixed(text.cross_entropy_gap),
                fixed(text.cross_entropy_auxiliary),
                count(text.tokens),
                duration(line.wall_s),
            )
        )
    header = (
        progress.unit.capitalize(),
        "Step",
        "Agreement",
        "Agreement, first 8",
        "KL",
        "Cross-entropy",
        "… of the base",
        "Gap",
        "… of the auxiliary",
        "Positions",
        "Wall time",
    )
    return Table(
        "Closeness to the base on held-out text (KL and cross-entropies in nats per token)",
        header,
        rows,
        text_columns=0,
    )


def layer_table(title: str, columns: Mapping[str, Sequence[float]]) -> Table:
    """A number for each base layer, one column for each of `columns`."""
    layers = max((len(column) for column in columns.values()), default=0)
    rows = [
        (
            str(layer),
            *(
                significant(column[layer]) if layer < len(column) else ABSENT
                for column in columns.values()
            ),
        )
        for layer in range(layers)
    ]
    return Table(title, ("Base layer", *columns), rows, text_columns=0)


def timing_groups(timing: Sequence[Timing]) -> Iterator[tuple[str, list[Timing]]]:
    """Timings taken under the same conditions, by these conditions in words."""
    groups: dict[str, list[Timing]] = {}
    for row in timing:
        groups.setdefault(conditions(row), []).append(row)
    yield from groups.items()


def main_timing(timing: Sequence[Timing]) -> list[Timing]:
    """The rows under the conditions of the first one, which has the smallest batch."""
    return next((rows for _, rows in timing_groups(timing)), [])


def conditions(row: Timing) -> str:
    """Batch size, threads and number format of a timing."""
    parts = (
        f"batch {count(row.batch_size)}" if math.isfinite(row.batch_size) else "",
        plural(row.threads, "thread") if math.isfinite(row.threads) else "",
        row.dtype,
    )
    return ", ".join(part for part in parts if part)


def ttft_table(conditions_: str, timing: Sequence[Timing]) -> Table:
    """Time to first token, a row a prompt length."""
    rows = [
        (
            count(row.prompt_tokens),
            spread(row.base),
            spread(row.kv_prediction),
            spread(row.auxiliary),
            factor(row.speedup),
            percent(row.speedup_over_ratio),
            percent(row.speedup_over_reachable),
            count(row.kv_prediction.n if row.kv_prediction else math.nan),
        )
        for row in timing
    ]
    header = (
        "Prompt tokens",
        "Base",
        "KV Prediction",
        "Auxiliary alone",
        "Speed-up",
        "… of the FLOPs ratio",
        "… of the reachable",
        "Runs",
    )
    title = f"Time to first token, median (quartiles); {conditions_}"
    return Table(title, header, rows, text_columns=0)


def flops_table(conditions_: str, timing: Sequence[Timing]) -> Table:
    """FLOPs to the first token, a row a prompt length."""
    rows = [
        (
            count(row.prompt_tokens),
            _flops(row.flops_base),
            _flops(row.flops_kv_prediction),
            factor(row.flops_ratio),
            factor(row.published_ratio),
        )
        for row in timing
    ]
    header = ("Prompt tokens", "Base", "KV Prediction", "FLOPs ratio", "Published ratio")
    return Table(f"FLOPs to the first token; {conditions_}", header, rows, text_columns=0)


def accuracy_table(accuracy: Sequence[Accuracy]) -> Table:
    """Score of each system, a row a task."""
    systems = _measured_systems(row.scores for row in accuracy)
    rows = [
        (
            row.task,
            row.metric.replace("_", " "),
            count(row.n),
            *(percent(row.scores.get(system, math.nan)) for system in systems),
        )
        for row in accuracy
    ]
    header = ("Task", "Measure", "Prompts", *(SYSTEM_LABELS[system] for system in systems))
    return Table("Score by task", header, rows, text_columns=2)


def edit_similarity_table(accuracy: Sequence[Accuracy]) -> Table | None:
    """Edit similarity to the accepted answer, where any task measures it."""
    systems = _measured_systems(row.edit_similarity for row in accuracy)
    rows = [
        (row.task, *(fixed(row.edit_similarity.get(s, math.nan)) for s in systems))
        for row in accuracy
        if row.edit_similarity
    ]
    if not rows:
        return None
    title = "Edit similarity to the accepted answer (1 is equal, 0 has nothing in common)"
    return Table(title, ("Task", *(SYSTEM_LABELS[system] for system in systems)), rows)


def accuracy_history(lines: Sequence[Evaluation], progress: Progress) -> Table:
    """Scores of every task at every evaluation that measured them."""
    shown = spaced([line for line in lines if line.accuracy], _ROWS)
    scored = [(row, line) for line in shown for row in line.accuracy]
    tasks = list(dict.fromkeys(row.task for row, _ in scored))
    systems = _measured_systems(row.scores for row, _ in scored)
    rows = [
        (
            task,
            count(progress.at(line.global_step)),
            *(percent(row.scores.get(system, math.nan)) for system in systems),
        )
        for task in tasks
        for row, line in scored
        if row.task == task
    ]
    header = ("Task", progress.unit.capitalize(), *(SYSTEM_LABELS[s] for s in systems))
    return Table("Score at each evaluation", header, rows)


def correction_table(lines: Sequence[Evaluation], progress: Progress) -> Table:
    """What the correction did, a row a system and evaluation."""
    measured = [(line, line.correction) for line in lines if line.correction is not None]
    shown = spaced(measured, _ROWS)
    checked = [
        (system, line, correction.systems[system])
        for system in SYSTEM_LABELS
        # Nothing in Sirius on exact prompts is trained, so that it is the same each time.
        for line, correction in (shown[-1:] if system == "sirius" else shown)
        if system in correction.systems
    ]
    sparse = any(math.isfinite(checks.effective_density) for _, _, checks in checked)
    rows = [
        (
            SYSTEM_LABELS[system],
            count(progress.at(line.global_step)),
            fixed(checks.aal, 1),
            *([fixed(checks.effective_density)] if sparse else []),
            percent(checks.retraction_rate),
            spread(checks.time_to_exact_s),
        )
        for system, line, checks in checked
    ]
    header = (
        "System",
        progress.unit.capitalize(),
        "Advance of a check (tokens)",
        *(["Effective density"] if sparse else []),
        "Retraction rate",
        "Time to exact, median (quartiles)",
    )
    return Table("Correction at each evaluation", header, rows)


def rejection_table(title: str, rejections: Mapping[str, Sequence[float]]) -> Table:
    """How often the first rejected token of a period was its i-th, a column a system."""
    rows = [
        (
            str(place + 1),
            *(count(n[place]) if place < len(n) else ABSENT for n in rejections.values()),
        )
        for place in range(max(map(len, rejections.values())))
    ]
    header = ("Drafted token", *(SYSTEM_LABELS[system] for system in rejections))
    return Table(title, header, rows, text_columns=0)


def sample_table(position: int, sample: Sample) -> Table:
    """A prompt's end, the accepted answer and what each system wrote."""
    prompt = "\n".join(sample.prompt.split("\n")[-_PROMPT_LINES:])[-_PROMPT_CHARACTERS:]
    label = "Prompt"
    if len(prompt) < len(sample.prompt):
        label = f"End of the prompt of {len(sample.prompt):,} characters"
    rows: list[tuple[Cell, ...]] = [(label, Raw(prompt)), ("Answer", Raw(sample.answer))]
    base = sample.completions.get("base")
    for system, text in sample.completions.items():
        label = SYSTEM_LABELS[system]
        if system != "base" and base is not None:
            label += ", same as base" if text == base else ", differs from base"
        rows.append((label, Raw(text)))
    return Table(f"{position}. {sample.task}", (), rows, text_columns=2)


def _measured_systems(scores: Iterable[Systems]) -> list[str]:
    measured = {system for row in scores for system in row}
    return [system for system in SYSTEM_LABELS if system in measured]


def _flops(value: float) -> str:
    return f"{compact(value)}FLOPs" if math.isfinite(value) else ABSENT


def _label(key: str) -> str:
    return _LABELS.get(key, key.replace("_", " ").capitalize())
