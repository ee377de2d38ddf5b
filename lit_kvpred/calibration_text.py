"""What the closed form is fitted on: given batches, and texts that the base goes on writing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.own_text import own_text
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.sequences import sequences_of

# Lightning's own logger, so that its console settings apply.
_log = logging.getLogger("lightning.pytorch")
_START_TOKENS = 8

Batch = Mapping[str, Tensor]


def with_own_text(
    batches: Iterable[Batch], generated: int, adapter: FamilyAdapter, seed: int
) -> Iterator[Batch]:
    """The batches, then as many texts as the first of them hold, written on by the base itself.

    Args:
        batches: ``input_ids`` ``(B, T)``, optionally ``attention_mask`` or ``document_ids``.
        generated: Batches whose rows' first tokens the base goes on from.
        adapter: The base's adapter.
        seed: Of the writing.

    Yields:
        The given batches, then ``input_ids`` of the length of the longest of these rows.

    Raises:
        ConfigurationError: If their rows are too short to go on from.
    """
    starts, length, size = [], 0, 1
    for count, batch in enumerate(batches):
        if count < generated:
            input_ids = batch["input_ids"]
            whole = sequences_of(batch).real[:, :_START_TOKENS].all(1)
            starts.append(input_ids[whole, :_START_TOKENS])
            length, size = max(length, input_ids.shape[1]), max(size, len(input_ids))
        yield batch
    if not starts:
        return
    if length <= _START_TOKENS or not any(map(len, starts)):
        raise ConfigurationError(
            f"model.generated_batches go on from the first {_START_TOKENS} tokens of "
            "training rows, and these rows are no longer; give longer rows or set it to 0"
        )
    begun = torch.cat([rows for rows in starts if len(rows)]).to(adapter.model.device)
    start = time.perf_counter()
    texts = own_text(adapter, begun, length, seed, size)
    _log.info(
        "The base wrote %d texts of %d tokens to calibrate on in %.0f s.",
        len(begun),
        length,
        time.perf_counter() - start,
    )
    for rows in texts:
        yield {"input_ids": rows}
