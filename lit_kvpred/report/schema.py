"""What a run folder records, as typed values; parts that a run did not measure are absent or NaN.

Numbers keep the JSON names. Times are in seconds, cross-entropies and divergences in nats per
token, shares (agreement, accuracy, retraction rate) between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Stage = Literal["fit", "validate", "test"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Systems = Mapping[str, float]
"""A share for each of `SYSTEMS` that was measured."""
SYSTEMS = (
    "base", "predicted", "corrected", "sparse", "sirius", "sirius_catch_up", "auxiliary",
)  # fmt: skip


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of `n` timings, in seconds."""

    median: float
    q25: float
    q75: float
    n: float


@dataclass(frozen=True)
class TextMeasures:
    """Closeness to the exact base on held-out text, over `tokens` positions.

    Attributes:
        agreement_first8: Agreement on the first eight positions after the predicted rows.
        cross_entropy_gap: `cross_entropy` less `cross_entropy_base`.
        consistency_keys: Mean absolute error of the predicted keys, one number per base layer.
        consistency_values: The same for the values.
    """

    agreement: float
    agreement_first8: float
    kl: float
    cross_entropy: float
    cross_entropy_base: float
    cross_entropy_gap: float
    cross_entropy_auxiliary: float
    consistency_keys: tuple[float, ...]
    consistency_values: tuple[float, ...]
    tokens: float


@dataclass(frozen=True)
class Timing:
    """Time to first token at one prompt length.

    Attributes:
        flops_ratio: FLOPs of the base's prefill over those of KV Prediction, everything counted.
        published_ratio: The paper's ratio, parameters of the base over those of the auxiliary.
        reachable_speedup: The FLOPs ratio with the base's last-token step counted as measured.
    """

    prompt_tokens: int
    batch_size: float
    threads: float
    dtype: str
    base: Quartiles | None
    kv_prediction: Quartiles | None
    auxiliary: Quartiles | None
    speedup: float
    flops_base: float
    flops_kv_prediction: float
    flops_ratio: float
    published_ratio: float
    speedup_over_ratio: float
    reachable_speedup: float
    speedup_over_reachable: float


@dataclass(frozen=True)
class Accuracy:
    """Score of one task over `n` prompts, for each system."""

    task: str
    metric: str
    n: float
    scores: Systems
    edit_similarity: Systems

    @property
    def finest(self) -> tuple[str, Systems]:
        """The measure that tells systems apart with the fewest prompts, and its values."""
        if self.edit_similarity:
            return "edit similarity", self.edit_similarity
        return self.metric.replace("_", " "), self.scores


@dataclass(frozen=True)
class Checks:
    """What the verify passes of one system did.

    Attributes:
        aal: Mean advance of a verify pass, in tokens, the base's own included.
        effective_density: Weights read per token of sparse drafts and their checks, of the base's.
        retraction_rate: Share of the tokens generated before a check that it took back.
        rejected_at: How often the first rejected token of a period was its i-th.
        time_to_exact_s: Seconds from the prompt to an exact cache.
    """

    aal: float
    effective_density: float
    retraction_rate: float
    rejected_at: tuple[float, ...]
    time_to_exact_s: Quartiles | None


@dataclass(frozen=True)
class CorrectionMeasures:
    """Settings of the correction and what it did.

    Attributes:
        settings: The fields of `Correction` as given.
        systems: What happened in each system with verify passes.
    """

    settings: Mapping[str, Any]
    systems: Mapping[str, Checks]


@dataclass(frozen=True)
class Sample:
    """One prompt, its accepted answer and what each system wrote; None where it did not run."""

    task: str
    prompt: str
    answer: str
    completions: Mapping[str, str]


@dataclass(frozen=True)
class Evaluation:
    """One line of `evaluation.jsonl`."""

    stage: Stage
    epoch: float
    global_step: int
    tokens_seen: float
    wall_s: float
    text: TextMeasures | None = None
    timing: tuple[Timing, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    correction: CorrectionMeasures | None = None
    samples: tuple[Sample, ...] = ()


def evaluation_from_json(record: Mapping[str, Any]) -> Evaluation:
    """Read one evaluation; an absent or ill-typed part becomes an absent one.

    Args:
        record: A line of `evaluation.jsonl` with a known `stage` and an integer `global_step`.

    Returns:
        The evaluation with every number that can be shown.
    """
    return Evaluation(
        stage=record["stage"],
        epoch=number(record.get("epoch")),
        global_step=record["global_step"],
        tokens_seen=number(record.get("tokens_seen")),
        wall_s=number(record.get("wall_s")),
        text=_text(_mapping(record.get("text"))),
        timing=tuple(
            sorted(
                (
                    _timing(row)
                    for row in _mappings(record.get("timing"))
                    if isinstance(row.get("prompt_tokens"), int)
                ),
                key=lambda row: (row.batch_size, row.prompt_tokens),
            )
        ),
        accuracy=tuple(
            _accuracy(str(task), _mapping(row))
            for task, row in _mapping(record.get("accuracy")).items()
        ),
        correction=_correction(_mapping(record.get("correction"))),
        samples=tuple(_sample(row) for row in _mappings(record.get("samples"))),
    )


def number(value: object) -> float:
    """`value` where it is a number, else NaN."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return math.nan


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    rows = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return [row for row in rows if isinstance(row, Mapping)]


def _numbers(value: object) -> tuple[float, ...]:
    return tuple(number(item) for item in value) if isinstance(value, list) else ()


def _quartiles(value: object) -> Quartiles | None:
    row = _mapping(value)
    median = number(row.get("median"))
    if math.isnan(median):
        return None
    return Quartiles(median, number(row.get("q25")), number(row.get("q75")), number(row.get("n")))


def _systems(row: Mapping[str, Any]) -> dict[str, float]:
    scores = {system: number(row.get(system)) for system in SYSTEMS}
    return {system: score for system, score in scores.items() if not math.isnan(score)}


def _text(row: Mapping[str, Any]) -> TextMeasures | None:
    if not row:
        return None
    return TextMeasures(
        agreement=number(row.get("agreement")),
        agreement_first8=number(row.get("agreement_first8")),
        kl=number(row.get("kl")),
        cross_entropy=number(row.get("cross_entropy")),
        cross_entropy_base=number(row.get("cross_entropy_base")),
        cross_entropy_gap=number(row.get("cross_entropy_gap")),
        cross_entropy_auxiliary=number(row.get("cross_entropy_auxiliary")),
        consistency_keys=_numbers(row.get("consistency_keys")),
        consistency_values=_numbers(row.get("consistency_values")),
        tokens=number(row.get("tokens")),
    )


def _timing(row: Mapping[str, Any]) -> Timing:
    flops = _mapping(row.get("flops"))
    return Timing(
        prompt_tokens=row["prompt_tokens"],
        batch_size=number(row.get("batch_size")),
        threads=number(row.get("threads")),
        dtype=str(row.get("dtype") or ""),
        base=_quartiles(row.get("base")),
        kv_prediction=_quartiles(row.get("kv_prediction")),
        auxiliary=_quartiles(row.get("auxiliary")),
        speedup=number(row.get("speedup")),
        flops_base=number(flops.get("base")),
        flops_kv_prediction=number(flops.get("kv_prediction")),
        flops_ratio=number(flops.get("ratio")),
        published_ratio=number(flops.get("published_ratio")),
        speedup_over_ratio=number(row.get("speedup_over_ratio")),
        reachable_speedup=number(row.get("reachable_speedup")),
        speedup_over_reachable=number(row.get("speedup_over_reachable")),
    )


def _accuracy(task: str, row: Mapping[str, Any]) -> Accuracy:
    return Accuracy(
        task=task,
        metric=str(row.get("metric") or "score"),
        n=number(row.get("n")),
        scores=_systems(row),
        edit_similarity=_systems(_mapping(row.get("edit_similarity"))),
    )


_CHECKS = (
    "accepted_length", "aal", "retraction_rate", "unrecoverable_rate", "time_to_exact_s",
)  # fmt: skip


def _correction(row: Mapping[str, Any]) -> CorrectionMeasures | None:
    if not row:
        return None
    systems = _mapping(row.get("systems"))
    if not systems and any(name in row for name in _CHECKS):
        # Records of earlier versions have one system, whose measures lie among the settings.
        systems = {"corrected": row}
    return CorrectionMeasures(
        settings={key: row[key] for key in row if key not in (*_CHECKS, "systems")},
        systems={name: _checks(_mapping(systems[name])) for name in SYSTEMS if name in systems},
    )


def _checks(row: Mapping[str, Any]) -> Checks:
    aal = number(row.get("aal"))
    return Checks(
        aal=number(row.get("accepted_length")) + 1 if math.isnan(aal) else aal,
        effective_density=number(row.get("effective_density")),
        retraction_rate=number(row.get("retraction_rate")),
        rejected_at=_numbers(row.get("rejected_at")),
        time_to_exact_s=_quartiles(row.get("time_to_exact_s")),
    )


def _sample(row: Mapping[str, Any]) -> Sample:
    texts = {system: row[system] for system in SYSTEMS if isinstance(row.get(system), str)}
    return Sample(
        task=str(row.get("task") or ""),
        prompt=str(row.get("prompt") or ""),
        answer=str(row.get("answer") or ""),
        completions=texts,
    )
