"""How good an artefact is on a text: agreement with the exact base by length of the exact tail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_kvpred.evaluation import flops
from lit_kvpred.evaluation.quality import TextQuality, compare_tails
from lit_kvpred.evaluation.ttft import to_first_token
from lit_kvpred.model.exact_tail import ExactTail, tail_rows
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import sequences_of


@torch.inference_mode()
def measure_text(
    model: KVPredictionModel,
    batches: Iterable[Mapping[str, Tensor]],
    prompt_tokens: int,
    exact_tails: Sequence[ExactTail],
) -> list[dict[str, Any]]:
    """Compare base on predicted and on exact rows, for each length of the exact tail.

    Args:
        model: The joined model, in eval mode.
        batches: ``input_ids`` ``(B, T)`` and optionally ``attention_mask`` or ``document_ids``.
        prompt_tokens: Rows before the first measured one, at least 1 and less than T.
        exact_tails: Last prompt rows that the base runs itself, each as a number or a fraction.

    Returns:
        A record for each tail: ``exact_tail``, its number of rows; ``prompt_tokens``; ``flops``,
        those to the first token relative to the base's prefill; ``agreement``,
        ``agreement_first8`` and ``kl`` over ``tokens`` positions.
    """
    measures = [TextQuality(model.adapter.n_layers) for _ in exact_tails]
    for batch in batches:
        fields = {name: tensor.to(model.base.device) for name, tensor in batch.items()}
        ids = fields["input_ids"]
        sequences = sequences_of(fields)
        compared = compare_tails(model, ids, sequences, prompt_tokens, exact_tails)
        for measure, comparison in zip(measures, compared, strict=True):
            measure.update(comparison)
    whole = flops.prefill(model.base.config, prompt_tokens + 1)
    return [
        {
            "exact_tail": tail_rows(tail, prompt_tokens + 1),
            "prompt_tokens": prompt_tokens,
            "flops": to_first_token(model, prompt_tokens + 1, tail) / whole,
        }
        | {name: measured[name] for name in ("agreement", "agreement_first8", "kl", "tokens")}
        for tail, measured in zip(exact_tails, (m.compute() for m in measures), strict=True)
    ]
