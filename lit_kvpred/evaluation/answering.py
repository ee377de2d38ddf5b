"""Answers of the exact base, of predicted and corrected generation, and of the auxiliary alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from lit_kvpred.evaluation.answers import completed_text
from lit_kvpred.evaluation.choices import continuation_log_likelihoods
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.generation.generate import GenerationOutput, generate, generate_exact
from lit_kvpred.generation.prefill import Prefill, exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.model.auxiliary import NetworkAuxiliary
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction

System = Literal["base", "predicted", "corrected", "auxiliary"]
SYSTEMS: tuple[System, ...] = ("base", "predicted", "corrected", "auxiliary")


@dataclass(frozen=True)
class Answer:
    """What a system answered.

    Attributes:
        text: The completion up to the first stop string, or the chosen continuation.
        stats: Measures of the generation; None for multiple choice.
    """

    text: str
    stats: GenerationStats | None


class Answerer:
    """Puts one prompt to each system.

    Args:
        model: The joined model, in eval mode.
        tokenizer: The base's.
        correction: Used by the system ``corrected``.
    """

    def __init__(
        self,
        model: KVPredictionModel,
        tokenizer: PreTrainedTokenizerBase,
        correction: Correction,
    ) -> None:
        self.model, self.tokenizer, self.correction = model, tokenizer, correction

    @property
    def systems(self) -> tuple[System, ...]:
        """Those that there are; a prefix can't answer by itself."""
        if isinstance(self.model.auxiliary, NetworkAuxiliary):
            return SYSTEMS
        return tuple(system for system in SYSTEMS if system != "auxiliary")

    def answer(self, system: System, example: PromptExample) -> Answer:
        """Answer one prompt.

        Raises:
            PromptError: If the prompt doesn't fit the base.
        """
        if example.scoring == "choice":
            return Answer(self._choose(system, example), None)
        output = self._generate(system, example)
        text = self.tokenizer.decode(output.answers[0], skip_special_tokens=True)
        return Answer(completed_text(example, text), output.stats)

    def _generate(self, system: System, example: PromptExample) -> GenerationOutput:
        encoded = self.tokenizer(example.prompt, return_tensors="pt")
        ids = encoded["input_ids"].to(self.model.base.device)
        settings = GenerationSettings(
            max_new_tokens=example.max_new_tokens,
            stop_strings=example.stop,
            stop_after_text=example.stop_after_text,
            tokenizer=self.tokenizer,
        )
        if system == "base":
            return generate_exact(self.model.adapter, ids, settings=settings)
        if system == "auxiliary":
            return generate_exact(self._auxiliary_adapter(), ids, settings=settings)
        correction = self.correction if system == "corrected" else None
        return generate(self.model, ids, settings=settings, correction=correction)

    def _auxiliary_adapter(self) -> FamilyAdapter:
        assert isinstance(self.model.auxiliary, NetworkAuxiliary)
        return self.model.auxiliary.adapter

    def _choose(self, system: System, example: PromptExample) -> str:
        """The likeliest continuation; a corrected context is exact before anything is judged."""
        adapter = self._auxiliary_adapter() if system == "auxiliary" else self.model.adapter

        def prefill(ids: torch.Tensor) -> Prefill:
            return (
                self.model.prefill(ids)
                if system == "predicted"
                else exact_prefill(adapter, describe_prompt(adapter, ids, None))
            )

        likelihoods = continuation_log_likelihoods(
            adapter.model, prefill, self.tokenizer, example.prompt, example.choices
        )
        return example.choices[likelihoods.index(max(likelihoods))]
