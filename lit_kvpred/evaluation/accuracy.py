"""Accuracy per task and system, and correction statistics, as metrics that add up across processes.

All states are sums or gathered lists, so that uneven shares of prompts are weighted rightly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_kvpred.evaluation.answering import SYSTEMS, System
from lit_kvpred.evaluation.answers import edit_similarity, score
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.metrics import effective_density


class TaskAccuracy(Metric):
    """Share of right answers, by task and system, and mean edit similarity of exact ones.

    Args:
        examples: All prompts of all processes; they name the tasks.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(self, examples: Sequence[PromptExample], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scoring = {example.task: example.scoring for example in examples}
        self.tasks = list(self.scoring)
        shape = (len(self.tasks), len(SYSTEMS))
        for name in ("scores", "similarities", "counts"):
            zeros = torch.zeros(shape, dtype=torch.float64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, system: System, example: PromptExample, completion: str) -> None:
        """Add one answer."""
        place = self.tasks.index(example.task), SYSTEMS.index(system)
        self.scores[place] += score(example, completion)
        if example.scoring == "exact":
            self.similarities[place] += max(
                edit_similarity(completion.strip(), answer.strip()) for answer in example.answers
            )
        self.counts[place] += 1

    def compute(self) -> dict[str, dict[str, Any]]:
        """Per task what an evaluation record's ``accuracy`` entry holds."""
        return {task: self._task(i, task) for i, task in enumerate(self.tasks)}

    def _task(self, row: int, task: str) -> dict[str, Any]:
        seen = [j for j in range(len(SYSTEMS)) if self.counts[row, j] > 0]
        entry: dict[str, Any] = {"metric": self.scoring[task]}
        entry["n"] = int(self.counts[row].max())
        for j in seen:
            entry[SYSTEMS[j]] = float(self.scores[row, j] / self.counts[row, j])
        if self.scoring[task] == "exact":
            entry["edit_similarity"] = {
                SYSTEMS[j]: float(self.similarities[row, j] / self.counts[row, j]) for j in seen
            }
        return entry


class CorrectionStatistics(Metric):
    """What verify passes did to drafts, and when answers became exact.

    Args:
        correction: Whose drafts are judged; None where there are none.
        density: Share of the base's parameters that a step of its sparse draft reads; None for
            drafts that the base itself writes on a predicted prompt.
    """

    full_state_update = False

    def __init__(
        self, correction: Correction | None = None, density: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.period = 1 if correction is None else correction.period
        self.density = density
        counted = ("answers", "drafted", "accepted", "retracted", "unrecoverable")
        for name in (*counted, "advanced", "checks"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        positions = torch.zeros(self.period, dtype=torch.float64)
        self.add_state("rejected_at", positions, dist_reduce_fx="sum")
        self.add_state("seconds", [], dist_reduce_fx="cat")
        self.reset()

    def reset(self) -> None:
        """Forget all answers; an empty tensor lets a process without prompts take part."""
        super().reset()
        self.seconds.append(torch.zeros(0, dtype=torch.float64))

    def update(self, stats: GenerationStats, answers: int = 1) -> None:
        """Add one call over a batch of ``answers``."""
        self.answers += answers
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.retracted += stats.retracted
        self.unrecoverable += stats.unrecoverable
        self.advanced += sum(stats.advances)
        self.checks += len(stats.advances)
        for position, rejections in enumerate(stats.rejected_at):
            self.rejected_at[position] += rejections
        if stats.time_to_exact_s is not None:
            self.seconds.append(torch.tensor([stats.time_to_exact_s], dtype=torch.float64))

    def compute(self) -> dict[str, Any]:
        """The measures, each None where nothing was counted for it.

        Returns:
            ``drafted`` tokens; the shares of them that were accepted (``accepted_rate``), taken
            back (``retraction_rate``) and rejected but kept (``unrecoverable_rate``); ``aal``, the
            mean advance of a verify pass, of periods alone where drafts are sparse, with
            ``effective_density`` (Sirius 5) and ``rejected_at``, how often the first rejected
            token of a period was its i-th; ``time_to_exact_s`` with quartiles over the calls.
        """
        aal, density, rejected_at = self._advance(), None, None
        if self.density is not None and self.drafted:
            rejected_at = [int(n) for n in self.rejected_at[: self.period - 1]]
            density = effective_density(self.period, self.density, aal) if aal else None
        return {
            "drafted": int(self.drafted),
            "accepted_rate": _ratio(self.accepted, self.drafted),
            "retraction_rate": _ratio(self.retracted, self.drafted),
            "unrecoverable_rate": _ratio(self.unrecoverable, self.drafted),
            "aal": aal,
            "effective_density": density,
            "rejected_at": rejected_at,
            "time_to_exact_s": self._quartiles(),
        }

    def _advance(self) -> float | None:
        if self.density is not None:
            return _ratio(self.advanced, self.checks)
        share = _ratio(self.accepted, self.answers)
        return None if share is None or not self.drafted else 1 + share

    def _quartiles(self) -> dict[str, float] | None:
        gathered = self.seconds
        seconds = torch.cat(gathered) if isinstance(gathered, list) and gathered else gathered
        if not isinstance(seconds, torch.Tensor) or seconds.numel() == 0:
            return None
        points = torch.tensor([0.25, 0.5, 0.75], dtype=seconds.dtype, device=seconds.device)
        low, middle, high = seconds.quantile(points).tolist()
        return {"median": middle, "q25": low, "q75": high, "n": seconds.numel()}


def _ratio(part: Tensor, whole: Tensor) -> float | None:
    return float(part / whole) if whole > 0 else None
