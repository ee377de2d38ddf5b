"""The state of a batch of answers: tokens written so far and the cache behind them.

Between steps the last token of an unfinished answer is *pending*: chosen, but not yet in the
cache. Rows of the cache are aligned at their right end; what a batch entry may see is ``visible``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from lit_kvpred.generation.row_states import RowStates
from lit_kvpred.generation.stopping import StopRule
from lit_kvpred.model.caches import (
    drop_first,
    n_rows,
    padding_mask,
    roll_back,
    shift_rows_right,
)
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.masks import explicit_mask


class AnswerState:
    """Tokens, cache and row states of a batch.

    Args:
        adapter: The base's adapter.
        cache: The prompt's cache, ``N`` rows.
        visible: ``(B, N)`` bool, False at left padding.
        states: Row states of the cache.
        rule: When an answer ends.
    """

    def __init__(
        self,
        adapter: FamilyAdapter,
        cache: Cache,
        visible: Tensor,
        states: RowStates,
        rule: StopRule,
    ) -> None:
        self.adapter, self.cache, self.states, self.rule = adapter, cache, states, rule
        self.visible = visible
        self.tokens: list[list[int]] = [[] for _ in range(len(visible))]
        self.done = [False] * len(visible)

    @property
    def all_done(self) -> bool:
        """Whether every answer is complete."""
        return all(self.done)

    def append(self, tokens: Tensor, where: Sequence[bool] | None = None) -> None:
        """Append chosen tokens ``(B,)`` to the unfinished answers, or to some of them."""
        for row, token in enumerate(tokens.tolist()):
            if not self.done[row] and (where is None or where[row]):
                self.tokens[row].append(token)
                self.done[row] = self.rule.is_complete(self.tokens[row])

    def step(self) -> Tensor:
        """Run the pending tokens through the base; returns ``(B, V)`` logits."""
        return self.feed(self.pending(), self.unfinished())[:, -1]

    def sparse_step(self, model: PreTrainedModel) -> Tensor:
        """Run the pending tokens through a sparse copy of the base; ``(B, V)`` logits."""
        logits = self._run(model, self.pending(), self.unfinished())
        self.states.append_sparse(1)
        return logits[:, -1]

    def take_pending(self) -> tuple[Tensor, Tensor]:
        """Pending tokens and their positions, each ``(B, 1)``, for a forward of the caller's own.

        Their row is visible from here on; the caller appends it to cache and states.
        """
        self.visible = torch.cat([self.visible, self.unfinished()], dim=1)
        return self.pending(), (self.visible.long().sum(1, keepdim=True) - 1)

    def pending(self) -> Tensor:
        """The last token of each answer, ``(B, 1)``."""
        return torch.tensor([[answer[-1]] for answer in self.tokens], device=self.visible.device)

    def unfinished(self) -> Tensor:
        """``(B, 1)`` bool; rows that are run for finished answers are never looked at."""
        return ~torch.tensor(self.done, device=self.visible.device)[:, None]

    def feed(self, input_ids: Tensor, real: Tensor) -> Tensor:
        """Append rows for ``input_ids`` ``(B, r)`` (``real`` False at padding); ``(B, r, V)``."""
        logits = self._run(self.adapter.model, input_ids, real)
        self.states.append_computed(input_ids.shape[1])
        return logits

    def run_tree(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        real: Tensor,
        positions: Tensor,
        ancestors: Tensor,
    ) -> Tensor:
        """Append rows that see the rows of the text and, of the latest ones, some alone.

        Args:
            model: The base or a sparse copy of it; the caller tells `states`.
            input_ids: ``(B, r)`` long.
            real: ``(B, r)`` bool, False at padding.
            positions: ``(B, s)`` long, of the latest ``s`` rows, of which the new ones are the
                last.
            ancestors: ``(B, r, s)`` bool, which of these each new row sees: itself, at least. All
                rows before them are seen.

        Returns:
            ``(B, r, V)``.
        """
        self.visible = torch.cat([self.visible, real], dim=1)
        held, recent = self.visible.shape[1], positions.shape[1]
        before, queries = held - recent, positions[:, -input_ids.shape[1] :]
        slots = max(held, *(layer.get_max_length() for layer in self.cache.layers))
        seen = self.visible.new_zeros(*input_ids.shape, slots)
        seen[..., :before] = self.visible[:, None, :before]
        seen[..., before:held] = ancestors
        keys = positions.new_zeros(len(positions), slots)
        keys[:, :before] = self.visible[:, :before].long().cumsum(1) - 1
        keys[:, before:held] = positions
        mask = explicit_mask(self.adapter, seen, queries, keys)
        return self._forward(model, input_ids, queries, mask)

    def _run(self, model: PreTrainedModel, input_ids: Tensor, real: Tensor) -> Tensor:
        rows = input_ids.shape[1]
        self.visible = torch.cat([self.visible, real], dim=1)
        positions = (self.visible.long().cumsum(1) - 1).clamp(min=0)[:, -rows:]
        return self._forward(model, input_ids, positions, padding_mask(self.visible, self.cache))

    def _forward(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        positions: Tensor,
        attention_mask: Tensor | dict[str, Tensor] | None,
    ) -> Tensor:
        output = model(
            input_ids,
            position_ids=positions,
            attention_mask=attention_mask,
            cache=self.cache,
            use_cache=True,
        )
        return output.logits.float()

    def drop_last(self, rows: Tensor) -> None:
        """Drop the last ``rows[b]`` cache rows of batch entry ``b``; ``rows`` is ``(B,)`` long."""
        common = int(rows.min())
        roll_back(self.cache, common)
        self.states.roll_back(common)
        self.visible = self.visible[:, : self.visible.shape[1] - common]
        shifts = rows - common
        if bool(shifts.any()):
            shift_rows_right(self.cache, shifts)
            held = n_rows(self.cache)
            source = torch.arange(held, device=shifts.device)[None] - shifts[:, None]
            moved = self.visible.gather(1, source.clamp(min=0))
            self.visible = moved & (source >= 0)

    def drop_spare(self) -> None:
        """Drop leading slots that no unfinished answer uses; ragged rollbacks leave them behind."""
        unfinished = self.unfinished()[:, 0]
        if not bool(unfinished.any()):
            return
        spare = int((~self.visible[unfinished]).long().cumprod(1).sum(1).min())
        if spare:
            drop_first(self.cache, spare)
            self.states.drop_first(spare)
            self.visible = self.visible[:, spare:].clone()
            # A row that sees nothing at all would be NaN.
            self.visible[~unfinished, -1] = True
