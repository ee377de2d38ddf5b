"""What correction settings do to the text: kept, taken back, or the base's own all through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.generate import GenerationOutput, generate, generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.metrics import average_advance_length, effective_density


class _Tally:
    """Counts over the answers of one setting."""

    def __init__(self, correction: Correction | None, density: float) -> None:
        self.correction, self.density = correction, density
        self.answers = self.same_text = self.same_first = 0
        self.stats: list[GenerationStats] = []

    def add(self, output: GenerationOutput, reference: GenerationOutput) -> None:
        pairs = list(zip(output.answers, reference.answers, strict=True))
        self.answers += len(pairs)
        self.same_text += sum(a == b for a, b in pairs)
        self.same_first += sum(a[0] == b[0] for a, b in pairs)
        self.stats.append(output.stats)

    def as_dict(self) -> dict[str, Any]:
        drafted, accepted, retracted, unrecoverable = (
            sum(getattr(stats, name) for stats in self.stats)
            for name in ("drafted", "accepted", "retracted", "unrecoverable")
        )
        return {
            "answers": self.answers,
            "same_text": self.same_text / self.answers,
            "same_first_token": self.same_first / self.answers,
            "drafted": drafted,
            "accepted_rate": accepted / drafted if drafted else None,
            "retraction_rate": retracted / drafted if drafted else None,
            "unrecoverable_rate": unrecoverable / drafted if drafted else None,
            **self._efficiency(accepted, drafted),
        }

    def _efficiency(self, accepted: int, drafted: int) -> dict[str, float | None]:
        if self.correction is None or not drafted:
            return {"aal": None, "effective_density": None}
        if self.correction.draft is None:
            return {"aal": 1 + accepted / self.answers, "effective_density": None}
        advances = [advance for stats in self.stats for advance in stats.advances]
        if not advances:
            return {"aal": None, "effective_density": None}
        aal = average_advance_length(advances)
        density = effective_density(self.correction.period, self.density, aal)
        return {"aal": aal, "effective_density": density}


@torch.inference_mode()
def sweep(
    model: KVPredictionModel,
    prompts: Sequence[Tensor],
    corrections: Sequence[Correction],
    *,
    new_tokens: int = 32,
    batch_size: int = 8,
    exact_prompt: bool = False,
) -> list[dict[str, Any]]:
    """Answer the same prompts greedily with each correction, and by the base alone.

    Args:
        model: The joined model, in eval mode.
        prompts: ``(N,)`` long each; answered in batches of similar length.
        corrections: Settings to compare.
        new_tokens: Longest answer.
        batch_size: Prompts of a batch.
        exact_prompt: The base reads the prompts itself, and only sparse drafts are corrected.

    Returns:
        A record for the predicted prompt without correction (``policy`` None; left out where
        prompts are exact) and for each correction: its ``policy``, ``threshold`` and
        ``period``; number of ``answers``; shares of answers whose text, and whose first token, is
        the base's; ``drafted`` tokens, and the shares of them that were accepted, taken back, and
        rejected but kept; and ``aal``, the mean advance
        of a verify pass, with ``effective_density`` where drafts are sparse (Sirius 5).

    Raises:
        ConfigurationError: If there is no prompt.
    """
    if not prompts:
        raise ConfigurationError("a sweep needs at least one prompt")
    settings = GenerationSettings(max_new_tokens=new_tokens)
    tried: list[Correction | None] = [*([] if exact_prompt else [None]), *corrections]
    tallies = [_Tally(correction, _density(model, correction)) for correction in tried]
    for ids, mask in _batches(prompts, batch_size, model.base.device):
        reference = generate_exact(model.adapter, ids, mask, settings=settings)
        for correction, tally in zip(tried, tallies, strict=True):
            output = (
                generate_exact(model.adapter, ids, mask, settings=settings, correction=correction)
                if exact_prompt
                else generate(model, ids, mask, settings=settings, correction=correction)
            )
            tally.add(output, reference)
    return [
        {name: getattr(correction, name, None) for name in ("policy", "threshold", "period")}
        | tally.as_dict()
        for correction, tally in zip(tried, tallies, strict=True)
    ]


def _density(model: KVPredictionModel, correction: Correction | None) -> float:
    if correction is None or correction.draft is None:
        return 1.0
    return model.sparse_base.density(correction.draft)


def _batches(
    prompts: Sequence[Tensor], batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Left-padded token ids and masks."""
    ordered = sorted(prompts, key=len)
    for first in range(0, len(ordered), batch_size):
        group = ordered[first : first + batch_size]
        ids = pad_sequence(group, batch_first=True, padding_side="left").to(device)
        real = pad_sequence(
            [torch.ones_like(p) for p in group], batch_first=True, padding_side="left"
        )
        yield ids, real.to(device)
