"""Accuracy per task and system, and correction statistics, as metrics that add up across processes.

All states are sums or gathered lists, so that uneven shares of prompts are weighted rightly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchmetrics import Metric

from lit_kvpred.evaluation.answering import SYSTEMS, System
from lit_kvpred.evaluation.answers import edit_similarity, score
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.generation.statistics import GenerationStats


class TaskAccuracy(Metric):
    """Share of right answers and mean edit similarity, by task and system.

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
    """Accepted length, retraction rate and time to exact of corrected generations."""

    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("answers", "drafted", "accepted", "retracted", "unrecoverable"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("seconds", [], dist_reduce_fx="cat")
        self.reset()

    def reset(self) -> None:
        """Forget all answers; an empty tensor lets a process without prompts take part."""
        super().reset()
        self.seconds.append(torch.zeros(0, dtype=torch.float64))

    def update(self, stats: GenerationStats) -> None:
        """Add one corrected answer."""
        self.answers += 1
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.retracted += stats.retracted
        self.unrecoverable += stats.unrecoverable
        if stats.time_to_exact_s is not None:
            self.seconds.append(torch.tensor([stats.time_to_exact_s], dtype=torch.float64))

    def compute(self) -> dict[str, Any]:
        """Mean accepted draft length, share of drafted tokens taken back, seconds to exact."""
        drafted = self.drafted.clamp(min=1)
        return {
            "accepted_length": float(self.accepted / self.answers.clamp(min=1)),
            "retraction_rate": float(self.retracted / drafted),
            "unrecoverable_rate": float(self.unrecoverable / drafted),
            "time_to_exact_s": self._quartiles(),
        }

    def _quartiles(self) -> dict[str, float] | None:
        gathered = self.seconds
        seconds = torch.cat(gathered) if isinstance(gathered, list) and gathered else gathered
        if not isinstance(seconds, torch.Tensor) or seconds.numel() == 0:
            return None
        points = torch.tensor([0.25, 0.5, 0.75], dtype=seconds.dtype, device=seconds.device)
        low, middle, high = seconds.quantile(points).tolist()
        return {"median": middle, "q25": low, "q75": high, "n": seconds.numel()}
