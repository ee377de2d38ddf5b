"""Writing in Sirius periods: sparse steps, one verify pass, rollback (Sirius 3.1)."""

from __future__ import annotations

from collections.abc import Generator

import torch

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.draft_tree import DraftTree, judge_tree
from lit_kvpred.generation.drafting import DraftChooser
from lit_kvpred.generation.events import Event
from lit_kvpred.generation.reconciliation import Drafts, Verdict, judge
from lit_kvpred.generation.sampling import TokenChooser
from lit_kvpred.generation.shown import Shown
from lit_kvpred.generation.sparse_draft import SparseDraft
from lit_kvpred.generation.statistics import GenerationStats, timed
from lit_kvpred.model.caches import last_rows
from lit_kvpred.sirius.correction import Correction


class Periods:
    """Writes the rest of exact answers with a sparse draft.

    Args:
        answer: On an exact cache.
        correction: Of a period of 1 nothing is drafted.
        draft: Writes the drafts.
        choose: Draws tokens.
        shown: What the reader has seen.
        stats: Counts steps and verdicts.
    """

    def __init__(
        self,
        answer: AnswerState,
        correction: Correction,
        draft: SparseDraft,
        choose: TokenChooser,
        shown: Shown,
        stats: GenerationStats,
    ) -> None:
        self.answer, self.correction, self.draft = answer, correction, draft
        self.choose, self.shown, self.stats = choose, shown, stats

    def write(self) -> Generator[Event, None, None]:
        """Write periods until every answer is complete."""
        while self.correction.period > 1 and not self.answer.all_done:
            if self.correction.tree_width > 1:
                verdict = self._tree()
            else:
                verdict = yield from self._sequence()
            self.stats.add_check(
                verdict, self.answer.done, self.correction.period, self.draft.density
            )
            yield from self.shown.retract(verdict)
            yield from self.shown.show(self.answer, exact=True)

    def _sequence(self) -> Generator[Event, None, Verdict]:
        answer, correction = self.answer, self.correction
        settled = [len(tokens) for tokens in answer.tokens]
        before, rows = answer.pending(), 0
        choose = DraftChooser(self.choose, correction.acceptance)
        while rows < correction.period - 1 and not answer.all_done:
            with timed(self.stats.sparse_step_s):
                answer.append(choose(answer.sparse_step(self.draft.model)))
            rows += 1
            if correction.policy != "hold":
                yield from self.shown.show(answer, exact=False)
        sparse_rows = None
        if not correction.kv_rewriting:
            if not answer.all_done:
                # The last drafted token needs a row as well, which no verify pass will bring.
                with timed(self.stats.sparse_step_s):
                    answer.sparse_step(self.draft.model)
                rows += 1
            sparse_rows = last_rows(answer.cache, rows)
        drafts = Drafts(settled, choose.drawn_from, sparse_rows)
        with timed(self.stats.check_s):
            answer.drop_last(torch.full((len(settled),), rows, device=before.device))
            return judge(answer, before, drafts, correction, self.choose, self.shown.counts)

    def _tree(self) -> Verdict:
        answer, correction = self.answer, self.correction
        tree = DraftTree(answer, correction.tree_width)
        while len(tree.levels) < correction.period - 1 and not tree.complete:
            with timed(self.stats.sparse_step_s):
                tree.grow(self.draft.model, correction.temperature)
        with timed(self.stats.check_s):
            return judge_tree(answer, tree, correction, self.choose)
