"""Generation from predicted and exact prompts: one loop and its events."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.catch_up import CatchUp
from lit_kvpred.generation.context import ExactContext
from lit_kvpred.generation.drafting import DraftChooser
from lit_kvpred.generation.events import (
    Event,
    ExactEvent,
    drain,
)
from lit_kvpred.generation.periods import Periods
from lit_kvpred.generation.prefill import Prefill, exact_prefill, predicted_prefill
from lit_kvpred.generation.prompt import Prompt, describe_prompt
from lit_kvpred.generation.reconciliation import Verdict, reconcile
from lit_kvpred.generation.row_states import RowStates
from lit_kvpred.generation.sampling import TokenChooser
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.generation.shown import Shown
from lit_kvpred.generation.slice_budget import slice_rows_within
from lit_kvpred.generation.sparse_draft import SparseDraft
from lit_kvpred.generation.statistics import GenerationStats, timed
from lit_kvpred.generation.turns import in_turns, turn_on
from lit_kvpred.model.depth import DepthCut
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import NeuronStatistics, SparseBase, counting

if TYPE_CHECKING:
    from lit_kvpred.model.kv_prediction import KVPredictionModel

PrefillFunction = Callable[[Prompt, int | None, NeuronStatistics | None], Prefill]
"""Prompt, static length or None, and neurons to count or None, to a processed prompt."""


@dataclass
class GenerationOutput:
    """Result of a generation.

    Attributes:
        sequences: ``(B, N + longest answer)`` long: prompts, then answers padded on the right.
        answers: The answers' token ids, one list a prompt, end-of-sequence token included.
        stats: Measures.
        context: With ``keep_context`` the exact rows of prompt and answer; its last token is read
            together with what follows.
    """

    sequences: Tensor
    answers: list[list[int]]
    stats: GenerationStats
    context: ExactContext | None = None


def stream(
    model: KVPredictionModel,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    settings: GenerationSettings | None = None,
    correction: Correction | None = None,
) -> Generator[Event, None, GenerationOutput]:
    """Answer prompts from a predicted cache, yielding events as they happen.

    Args:
        model: The joined model.
        input_ids: ``(B, N)`` long, left-padded.
        attention_mask: ``(B, N)``, 0 at left padding.
        settings: How the answer is written.
        correction: Makes prompt and text exact after ``correction.period`` tokens; None stays on
            the predicted prompt for good.

    Returns:
        (as the generator's value) what `generate` returns.

    Raises:
        ConfigurationError: If settings contradict each other.
    """
    settings = settings or GenerationSettings()
    _check_type(correction)
    if correction is not None and correction.slice_rows == "auto":
        with turn_on(model.base):
            rows = slice_rows_within(model, correction.tpot_budget)
        correction = replace(correction, slice_rows=rows)

    def prefill(
        prompt: Prompt, static_length: int | None, statistics: NeuronStatistics | None
    ) -> Prefill:
        return predicted_prefill(model, prompt, static_length=static_length, statistics=statistics)

    cut = model.auxiliary.cut
    with turn_on(model.base):
        writer = _Writer(model.adapter, input_ids, attention_mask, settings, correction, cut)
    # The first token does not wait for the disk.
    release = model.release_auxiliary if settings.release_auxiliary else None
    return in_turns(model.base, writer.write(prefill, after_first_token=release))


def generate(
    model: KVPredictionModel,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    settings: GenerationSettings | None = None,
    correction: Correction | None = None,
) -> GenerationOutput:
    """Answer prompts from a predicted cache; arguments and errors of `stream`."""
    return drain(stream(model, input_ids, attention_mask, settings=settings, correction=correction))


def generate_exact(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    settings: GenerationSettings | None = None,
    correction: Correction | None = None,
) -> GenerationOutput:
    """What the model behind ``adapter`` answers by itself; arguments and errors of `stream`.

    With a ``draft`` in ``correction`` it writes in Sirius periods.
    """
    return drain(
        stream_exact(adapter, input_ids, attention_mask, settings=settings, correction=correction)
    )


def stream_exact(
    adapter: FamilyAdapter,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    settings: GenerationSettings | None = None,
    correction: Correction | None = None,
) -> Generator[Event, None, GenerationOutput]:
    """Like `generate_exact`, yielding events as they happen."""
    settings = settings or GenerationSettings()
    _check_type(correction)

    def prefill(
        prompt: Prompt, static_length: int | None, statistics: NeuronStatistics | None
    ) -> Prefill:
        return exact_prefill(adapter, prompt, static_length=static_length, statistics=statistics)

    with turn_on(adapter.model):
        writer = _Writer(adapter, input_ids, attention_mask, settings, correction)
    return in_turns(adapter.model, writer.write(prefill))


def _check_type(correction: object) -> None:
    if not isinstance(correction, Correction | None):
        raise ConfigurationError(
            f"correction must be a Correction or None, got {type(correction).__name__}"
        )


class _Writer:
    """Writes the answers of one batch."""

    def __init__(
        self,
        adapter: FamilyAdapter,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        settings: GenerationSettings,
        correction: Correction | None = None,
        cut: DepthCut | None = None,
    ) -> None:
        self.adapter, self.settings = adapter, settings
        self.correction, self.cut = correction, cut
        self.draft: SparseDraft | None = None
        if correction is not None and correction.draft is not None:
            self.draft = SparseDraft(SparseBase(adapter), correction.draft)
        self.rule = settings.stop_rule(adapter.model)
        self.prompt = describe_prompt(
            adapter, input_ids, attention_mask, settings.max_new_tokens, settings.context
        )
        self._check_draft()
        if settings.keep_context and len(input_ids) != 1:
            raise ConfigurationError(
                f"keep_context needs a single prompt, got {len(input_ids)}; answer them one by one"
            )
        self.choose = TokenChooser(settings.sampling, input_ids.device)
        acceptance = "threshold" if correction is None else correction.acceptance
        self.drafted = DraftChooser(self.choose, acceptance)
        self.shown = Shown(len(input_ids))
        self.stats = GenerationStats(prompt_tokens=int(self.prompt.sequences.real.sum()))

    def _check_draft(self) -> None:
        correction, settings = self.correction, self.settings
        if correction is None or correction.draft is None:
            return
        if settings.keep_context and not correction.kv_rewriting:
            raise ConfigurationError(
                "keep_context keeps exact rows, which kv_rewriting brings; leave it on"
            )
        lossless_tree = correction.tree_width > 1 and correction.acceptance == "lossless"
        if lossless_tree and settings.sampling.temperature > 0:
            raise ConfigurationError(
                "a tree of drafts is not drawn, so that sampling can't be lossless; use "
                "tree_width 1 or temperature 0"
            )

    @torch.inference_mode()
    def write(
        self,
        prefill: PrefillFunction,
        *,
        after_first_token: Callable[[], None] | None = None,
    ) -> Generator[Event, None, GenerationOutput]:
        """Prefill, draft, correct, and decode to the end."""
        start = time.perf_counter()
        statistics = None if self.draft is None else self.draft.statistics
        first = prefill(self.prompt, self._static_length(), statistics)
        predicted = first.predicted_rows > 0
        answer = self._begin(first)
        self.stats.ttft_s = time.perf_counter() - start
        if not predicted:
            self.stats.time_to_exact_s = self.stats.ttft_s
        yield from self.shown.show(answer, limit=1, exact=not predicted)
        if after_first_token is not None:
            after_first_token()
        catch_up = CatchUp(answer, self.prompt, self.cut, first.hidden, statistics)
        if predicted and self.correction is not None:
            yield from self._draft(answer, self.correction, catch_up)
            if not answer.all_done or self.correction.policy != "commit":
                verdict = self._reconcile(answer, catch_up, self.correction)
                self.stats.add_reconciliation(verdict)
                self.stats.time_to_exact_s = time.perf_counter() - start
                yield from self.shown.retract(verdict)
                yield ExactEvent()
        is_exact = self.stats.time_to_exact_s is not None
        yield from self.shown.show(answer, exact=is_exact)
        if is_exact and self.draft is not None and self.correction is not None:
            yield from Periods(
                answer, self.correction, self.draft, self.choose, self.shown, self.stats
            ).write()
        taken = self.stats.exact_step_s if is_exact else self.stats.draft_step_s
        while not answer.all_done:
            with timed(taken):
                answer.append(self.choose(answer.step()))
            yield from self.shown.show(answer, exact=is_exact)
        self.stats.total_s = time.perf_counter() - start
        self.stats.new_tokens = sum(map(len, answer.tokens))
        context = None
        if self.settings.keep_context:
            context = self._context(answer, None if is_exact else catch_up)
        return GenerationOutput(self._sequences(answer), answer.tokens, self.stats, context)

    def _context(self, answer: AnswerState, unfinished: CatchUp | None) -> ExactContext:
        """Rows of prompt and answer, made exact where they are not."""
        tokens = torch.tensor(answer.tokens, device=self.prompt.token_ids.device)
        if unfinished is not None:
            unfinished.finish()
            rows = torch.cat([self.prompt.token_ids[:, -1:], tokens[:, :-1]], dim=1)
            answer.feed(rows, torch.ones_like(rows, dtype=torch.bool))
        answer.states.assert_exact()
        # The last token has a row only where a verify pass accepted it.
        prompt = self.prompt.token_ids[self.prompt.sequences.real]
        visible = answer.visible[0]
        ids = torch.cat([prompt, tokens[0]])[: int(visible.sum())]
        return ExactContext.of_cache(self.adapter, ids, answer.cache, visible)

    def _static_length(self) -> int | None:
        if not self.settings.static_cache:
            return None
        longest, spare = self.settings.max_new_tokens, 0
        if self.correction is not None:
            # Answers of a batch may roll back by different amounts, which leaves up to a draft of
            # unused slots at the left of the shorter ones. A draft on a predicted prompt whose
            # slices ride on steps may be as long as an answer.
            spare = self.correction.period * self.correction.tree_width
            if self.correction.slice_rows is not None:
                spare = max(spare, longest)
        return self.prompt.n_rows + longest + spare

    def _begin(self, first: Prefill) -> AnswerState:
        prompt = self.prompt
        states = RowStates.of_prompt(
            prompt.batch_size, prompt.n_rows, first.predicted_rows, prompt.known
        )
        real = prompt.sequences.real
        answer = AnswerState(self.adapter, first.cache, real, states, self.rule)
        predicted = first.predicted_rows > 0
        answer.append((self.drafted if predicted else self.choose)(first.logits))
        return answer

    def _draft(
        self, answer: AnswerState, correction: Correction, catch_up: CatchUp
    ) -> Generator[Event, None, None]:
        """Write on the predicted prompt until it is time to judge."""
        limit = 1 if correction.policy == "hold" else None
        drafted = 1
        while not answer.all_done:
            if not isinstance(correction.slice_rows, int):
                if drafted == correction.period:
                    return
                step = answer.step
            else:
                if not catch_up.remaining:
                    return
                step = partial(catch_up.ride, min(correction.slice_rows, catch_up.remaining))
            with timed(self.stats.draft_step_s):
                answer.append(self.drafted(step()))
            drafted += 1
            yield from self.shown.show(answer, limit=limit, exact=False)

    def _reconcile(self, answer: AnswerState, catch_up: CatchUp, correction: Correction) -> Verdict:
        self.stats.riding_rows = catch_up.done - self.prompt.known
        catch_up.finish()
        last = self.prompt.token_ids[:, -1:]
        # Of the rows of this pass only the prompt's belongs to its statistics.
        real = torch.ones_like(last, dtype=torch.bool)
        with counting(catch_up.statistics, real, catch_up.unread_layers):
            return reconcile(
                answer, last, correction, self.choose, self.shown.counts, self.drafted.drawn_from
            )

    def _sequences(self, answer: AnswerState) -> Tensor:
        settings = self.adapter.model.generation_config
        padding = settings.pad_token_id
        if padding is None:
            padding = min(self.rule.eos_token_ids, default=0)
        longest = max(map(len, answer.tokens))
        padded = [tokens + [padding] * (longest - len(tokens)) for tokens in answer.tokens]
        prompts = self.prompt.token_ids
        return torch.cat([prompts, torch.tensor(padded, device=prompts.device)], dim=1)
