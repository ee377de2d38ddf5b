"""Counting what really runs."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode


def counted_linear_flops(call) -> int:
    """FLOPs of the weight products that ``call`` runs."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        call()
    counts = counter.get_flop_counts()["Global"]
    return sum(v for k, v in counts.items() if str(k) in ("aten.mm", "aten.addmm"))
