"""Text that a base writes itself: what its caches look like where it will decode."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.sampling import Sampling
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.family import FamilyAdapter

_ROWS_TOGETHER = 64


def own_text(
    adapter: FamilyAdapter, starts: Tensor, length: int, seed: int, batch_size: int
) -> tuple[Tensor, ...]:
    """Continue texts with tokens drawn from the base at temperature 1, past any end of sequence.

    Args:
        adapter: The base's adapter.
        starts: ``(N, S)`` long, the first tokens of each text.
        length: Tokens of a text, more than S.
        seed: Of the drawing.
        batch_size: Texts of a batch.

    Returns:
        ``(batch_size, length)`` long, the last batch may be smaller.
    """
    written = [
        generate_exact(
            adapter,
            rows,
            settings=GenerationSettings(
                max_new_tokens=length - starts.shape[1],
                sampling=Sampling(1.0, seed=(seed + place) % 2**63),
                eos_ids=(),
            ),
        ).sequences
        for place, rows in enumerate(starts.split(_ROWS_TOGETHER))
    ]
    return torch.cat(written).split(batch_size)
