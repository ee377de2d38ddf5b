"""What correction settings do to the text, next to what there is without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.accuracy import CorrectionStatistics
from lit_kvpred.evaluation.systems import BASE, Variant, settings_of
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.metrics import speculative_expected_tokens, speculative_relative_cost

Score = Callable[[Variant, int, Sequence[int]], float]
"""Of the answer tokens that a variant gave to the prompt at some place: 1 right, 0 wrong."""


class _Row:
    """What is counted for one variant."""

    def __init__(self, variant: Variant, density: float | None, score: Score | None) -> None:
        self.variant, self.density, self.score = variant, density, score
        self.statistics = CorrectionStatistics(variant.correction, density)
        self.pairs: list[tuple[list[int], list[int]]] = []
        self.right = 0.0

    def add(
        self,
        places: Sequence[int],
        answers: Sequence[list[int]],
        references: Sequence[list[int]],
    ) -> None:
        self.pairs += zip(answers, references, strict=True)
        if self.score is not None:
            scored = zip(places, answers, strict=True)
            self.right += sum(self.score(self.variant, place, tokens) for place, tokens in scored)

    def as_dict(self) -> dict[str, Any]:
        n = len(self.pairs)
        return {
            "system": self.variant.system,
            **_settings(self.variant),
            "answers": n,
            "accuracy": None if self.score is None else self.right / n,
            "same_text": sum(a == b for a, b in self.pairs) / n,
            "same_tokens": sum(_shared_share(a, b) for a, b in self.pairs) / n,
            "same_first_token": sum(a[0] == b[0] for a, b in self.pairs) / n,
            **self._measures(),
        }

    def _measures(self) -> dict[str, Any]:
        measured = self.statistics.compute()
        del measured["time_to_exact_s"]
        closed_form: dict[str, float | None] = dict.fromkeys(_CLOSED_FORM)
        if self.variant.system == BASE:
            measured["effective_density"] = 1.0
        elif self.variant.system == "sparse":
            # Its only check is there to end the answer; nobody would run it.
            measured = dict.fromkeys(measured) | {"effective_density": self.density}
        elif self.variant.system == "speculative" and self.density and measured["rejected_at"]:
            assert self.variant.correction is not None
            accepted = measured["accepted_rate"] * measured["drafted"]
            judged = accepted + sum(measured["rejected_at"])
            if judged:
                closed_form = closed_form_of_speculation(
                    accepted / judged, self.variant.correction.period, self.density
                )
        return measured | closed_form


_CLOSED_FORM = ("alpha", "expected_aal", "expected_density")


def closed_form_of_speculation(
    alpha: float, period: int, density: float
) -> dict[str, float | None]:
    """What speculative decoding would gain if tokens were accepted independently (Sirius A.2).

    Args:
        alpha: Share of judged tokens that were accepted; those behind a rejected one are not
            judged.
        period: Tokens from one check to the next.
        density: Share of the parameters that a draft step reads.

    Returns:
        ``alpha``, ``expected_aal`` and ``expected_density``.
    """
    return {
        "alpha": alpha,
        "expected_aal": speculative_expected_tokens(alpha, period - 1),
        "expected_density": speculative_relative_cost(alpha, period - 1, density),
    }


@torch.inference_mode()
def sweep(
    model: KVPredictionModel,
    prompts: Sequence[Tensor],
    variants: Sequence[Variant],
    *,
    new_tokens: int = 32,
    batch_size: int = 8,
    score: Score | None = None,
) -> list[dict[str, Any]]:
    """Answer the same prompts greedily with each variant, and by the base alone.

    Args:
        model: The joined model, in eval mode.
        prompts: ``(N,)`` long each; answered in batches of similar length.
        variants: What to compare with the base.
        new_tokens: Longest answer.
        batch_size: Prompts of a batch. Neurons of `CSparse` are chosen for a batch together.
        score: Tells right answers from wrong ones.

    Returns:
        A record for the base and for each variant: its ``system`` and every setting of its
        correction (`lit_kvpred.evaluation.systems.settings_of`), None where it doesn't matter;
        number of ``answers``; ``accuracy``, None without ``score``; shares of answers whose text
        (``same_text``), and whose first token, is the base's; ``same_tokens``, the mean share of
        an answer up to its first difference from the base's; what
        `lit_kvpred.evaluation.accuracy.CorrectionStatistics` counts; and, for ``speculative``,
        `closed_form_of_speculation`.

    Raises:
        ConfigurationError: If there is no prompt.
    """
    if not prompts:
        raise ConfigurationError("a sweep needs at least one prompt")
    settings = GenerationSettings(max_new_tokens=new_tokens)
    tried = [Variant(BASE), *variants]
    rows = [_Row(variant, variant.density(model), score) for variant in tried]
    for places, ids, mask in _batches(prompts, batch_size, model.base.device):
        reference: list[list[int]] | None = None
        for row in rows:
            output = row.variant.answer(model, ids, mask, settings=settings)
            reference = output.answers if reference is None else reference
            row.statistics.update(output.stats, len(places))
            row.add(places, output.answers, reference)
    return [row.as_dict() for row in rows]


def _settings(variant: Variant) -> dict[str, Any]:
    """The settings that a variant really has."""
    settings = settings_of(variant.correction)
    if variant.system == "sparse":
        return settings | {name: None for name in settings if not name.startswith("draft")}
    return settings


def _shared_share(tokens: Sequence[int], reference: Sequence[int]) -> float:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(tokens, reference, strict=False))
    return sum(1 for _ in same) / max(len(tokens), len(reference))


def _batches(
    prompts: Sequence[Tensor], batch_size: int, device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Places of prompts, their left-padded token ids and masks."""
    ordered = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for first in range(0, len(ordered), batch_size):
        places = ordered[first : first + batch_size]
        group = [prompts[place] for place in places]
        ids = pad_sequence(group, batch_first=True, padding_side="left").to(device)
        real = pad_sequence(
            [torch.ones_like(p) for p in group], batch_first=True, padding_side="left"
        )
        yield places, ids, real.to(device)
