"""AdamW and its schedule as published (KVP 3.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import nn


def decay_groups(
    parameters: Iterable[nn.Parameter], weight_decay: float
) -> list[dict[str, object]]:
    """Optimiser groups in which 1-D parameters (norm scales, biases) are not decayed."""
    trained = [p for p in parameters if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def warmup_cosine(
    warmup_steps: int, total_steps: Callable[[], int], floor: float
) -> Callable[[int], float]:
    """Learning-rate factor by step: linear warm-up, then a cosine from 1 down to ``floor``.

    Args:
        warmup_steps: Steps until the factor is 1.
        total_steps: Gives the step at which the factor reaches ``floor``; it stays there. Called
            only once the cosine has begun.
        floor: Least factor, relative to the peak.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        if step == warmup_steps:
            return 1.0
        progress = (step - warmup_steps) / max(1, total_steps() - warmup_steps)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    return factor
