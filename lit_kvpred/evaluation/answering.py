"""Answers of each system to scored prompts: base, predicted, corrected, sparse, auxiliary alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lit_kvpred.evaluation.answers import completed_text, score
from lit_kvpred.evaluation.choices import continuation_log_likelihoods
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.systems import BASE, Variant, sparse_alone
from lit_kvpred.generation.generate import GenerationOutput, generate_exact
from lit_kvpred.generation.prefill import Prefill, exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.sparse_draft import SparseDraft
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.model.auxiliary import NetworkAuxiliary
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction

System = Literal[
    "base", "predicted", "corrected", "sparse", "sirius", "sirius_catch_up", "auxiliary"
]
SYSTEMS: tuple[System, ...] = (
    "base", "predicted", "corrected", "sparse", "sirius", "sirius_catch_up", "auxiliary",
)  # fmt: skip
CHECKED: tuple[System, ...] = ("corrected", "sirius", "sirius_catch_up")
"""Systems whose drafts the exact base judges."""
FROZEN: tuple[System, ...] = ("base", "sparse", "sirius")
"""Systems in which nothing is trained: they always give the same answer."""


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
        correction: Used by ``corrected``, without its draft; by ``sirius`` and ``sirius_catch_up``
            as it is. Its draft is what ``sparse`` writes with.
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
        """Those that there are: sparse ones with a draft; a prefix can't answer by itself."""
        absent: set[System] = set()
        if self.correction.draft is None:
            absent |= {"sparse", "sirius", "sirius_catch_up"}
        if not isinstance(self.model.auxiliary, NetworkAuxiliary):
            absent.add("auxiliary")
        return tuple(system for system in SYSTEMS if system not in absent)

    def variant(self, system: System, new_tokens: int) -> Variant:
        """How a system answers with up to ``new_tokens``; all but the auxiliary alone."""
        assert system != "auxiliary"
        if system == "corrected":
            return Variant("catch_up", self.correction.without_draft())
        if system == "sparse":
            assert self.correction.draft is not None
            return sparse_alone(self.correction.draft, new_tokens)
        checked = system in ("sirius", "sirius_catch_up")
        return Variant(system, self.correction if checked else None)

    def answer(self, system: System, example: PromptExample) -> Answer:
        """Answer one prompt.

        Raises:
            PromptError: If the prompt doesn't fit the base.
        """
        if example.scoring == "choice":
            return Answer(self._choose(system, example), None)
        output = self._generate(system, example)
        text = answer_text(self.tokenizer, example.prompt, output.answers[0])
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
        if system == "auxiliary":
            return generate_exact(self._auxiliary_adapter(), ids, settings=settings)
        variant = self.variant(system, example.max_new_tokens)
        return variant.answer(self.model, ids, settings=settings)

    def _choose(self, system: System, example: PromptExample) -> str:
        if system == "auxiliary":
            adapter = self._auxiliary_adapter()
            return _likeliest(_Reader(adapter), self.tokenizer, example)
        return choose(self.model, self.tokenizer, self.variant(system, 1), example)

    def _auxiliary_adapter(self) -> FamilyAdapter:
        assert isinstance(self.model.auxiliary, NetworkAuxiliary)
        return self.model.auxiliary.adapter


def answer_text(tokenizer: PreTrainedTokenizerBase, prompt: str, tokens: Sequence[int]) -> str:
    """The text that answer ``tokens`` add to a prompt.

    Decoded by themselves, the tokens of SentencePiece vocabularies lose a leading space, which may
    be part of an indentation.
    """
    ids = tokenizer(prompt)["input_ids"]
    read = tokenizer.decode(ids, skip_special_tokens=True)
    whole = tokenizer.decode([*ids, *tokens], skip_special_tokens=True)
    return whole[len(read) :]


def choose(
    model: KVPredictionModel,
    tokenizer: PreTrainedTokenizerBase,
    variant: Variant,
    example: PromptExample,
) -> str:
    """The likeliest of an example's continuations.

    Wherever the base judges, context and continuation are exact before anything is chosen, so that
    this is the base's choice; only a predicted prompt and an uncorrected sparse draft have their
    own. The first token of a continuation is the prefill's, which is dense.
    """
    return _likeliest(_Reader(model.adapter, model, variant), tokenizer, example)


def _likeliest(reader: _Reader, tokenizer: PreTrainedTokenizerBase, example: PromptExample) -> str:
    likelihoods = continuation_log_likelihoods(reader, tokenizer, example.prompt, example.choices)
    return example.choices[likelihoods.index(max(likelihoods))]


class _Reader:
    """Reads the context of a choice as a variant does."""

    def __init__(
        self,
        adapter: FamilyAdapter,
        model: KVPredictionModel | None = None,
        variant: Variant = Variant(BASE),  # noqa: B008 - frozen
    ) -> None:
        self.adapter, self.model, self.variant = adapter, model, variant

    def __call__(self, ids: torch.Tensor) -> tuple[Prefill, PreTrainedModel]:
        ids = ids.to(self.adapter.model.device)
        if self.model is not None and self.variant.system == "predicted":
            return self.model.prefill(ids), self.adapter.model
        prompt = describe_prompt(self.adapter, ids, None)
        if self.model is None or self.variant.system != "sparse" or self.variant.draft is None:
            return exact_prefill(self.adapter, prompt), self.adapter.model
        draft = SparseDraft(self.model.sparse_base, self.variant.draft)
        return exact_prefill(self.adapter, prompt, statistics=draft.statistics), draft.model


class AnswerScores:
    """Scores what variants answered to the examples of one task.

    Args:
        model: The joined model, in eval mode.
        tokenizer: The base's.
        examples: The prompts, in the order of their places.
    """

    def __init__(
        self,
        model: KVPredictionModel,
        tokenizer: PreTrainedTokenizerBase,
        examples: Sequence[PromptExample],
    ) -> None:
        self.model, self.tokenizer, self.examples = model, tokenizer, examples
        self._chosen: dict[object, float] = {}

    def __call__(self, variant: Variant, place: int, tokens: Sequence[int]) -> float:
        """Score the answer ``tokens`` to the prompt at ``place``: 1 is right, 0 is wrong.

        A choice is made by likelihood, whatever the tokens, once for all variants that must agree.
        """
        example = self.examples[place]
        if example.scoring != "choice":
            return score(example, answer_text(self.tokenizer, example.prompt, tokens))
        own = variant.system in ("predicted", "sparse")
        key = (place, variant.system, variant.draft) if own else place
        if key not in self._chosen:
            choice = choose(self.model, self.tokenizer, variant, example)
            self._chosen[key] = score(example, choice)
        return self._chosen[key]
