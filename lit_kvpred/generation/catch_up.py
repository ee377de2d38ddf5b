"""The exact prompt arrives: slices of prompt rows ride on decode steps, or come all at once.

Rows are made exact from left to right and written to their own slots. A row of the slice sees exact
rows only; the decode row sees whatever is there, and is judged later (Sirius 13.5).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.prompt import Prompt
from lit_kvpred.model.caches import ForwardStopped, SliceView, StoppingView, drop_rows, padding_mask
from lit_kvpred.model.depth import DepthCut
from lit_kvpred.model.masks import explicit_mask
from lit_kvpred.sirius.sparsity import NeuronStatistics, counting


class CatchUp:
    """Progress of the exact rows of a prompt, all but its last.

    Args:
        answer: The batch whose prompt rows are predicted.
        prompt: At least 2 rows.
        cut: Of a prefix auxiliary, whose rows of the shared layers are exact already.
        hidden: ``(B, N - known, hidden)`` leaving the shared layers, kept at prefill.
        statistics: Counts the neurons of the rows that become exact.

    Attributes:
        done: Exact rows so far, from the left.
    """

    def __init__(
        self,
        answer: AnswerState,
        prompt: Prompt,
        cut: DepthCut | None = None,
        hidden: Tensor | None = None,
        statistics: NeuronStatistics | None = None,
    ) -> None:
        self.answer, self.prompt = answer, prompt
        self.cut, self.hidden, self.statistics = cut, hidden, statistics
        self.done = prompt.known

    @property
    def remaining(self) -> int:
        """Rows still to come."""
        return self.prompt.n_rows - 1 - self.done

    def ride(self, rows: int) -> Tensor:
        """Decode the pending tokens with the next ``rows`` prompt rows in the same forward.

        Args:
            rows: At least 1, at most `remaining`.

        Returns:
            ``(B, V)`` logits of the pending tokens, drafted on a half-exact prompt.
        """
        answer = self.answer
        part = slice(self.done, self.done + rows)
        pending, positions = answer.take_pending()
        mask = self._mask(part)
        arguments = {
            "position_ids": torch.cat(
                [self.prompt.sequences.position_ids[:, part], positions], dim=1
            ),
            "attention_mask": mask,
        }
        view = SliceView(answer.cache.layers, self.done, rows)
        real = self.prompt.sequences.real[:, part]
        if self.cut is None or self.hidden is None:
            ids = torch.cat([self.prompt.token_ids[:, part], pending], dim=1)
            with counting(self.statistics, real):
                logits = answer.adapter.model(
                    ids, cache=view, use_cache=True, logits_to_keep=1, **arguments
                ).logits
        else:
            entering = self.cut.run_lower(
                pending,
                answer.cache,
                position_ids=positions,
                attention_mask=padding_mask(answer.visible, answer.cache),
            )
            rows_in = torch.cat([self._kept(self.hidden, part), entering], dim=1)
            with counting(self.statistics, real, self.unread_layers):
                logits = self.cut.run_upper(rows_in, view, logits_to_keep=1, **arguments)
        answer.states.append_computed(1)
        answer.states.mark_exact(part)
        self.done += rows
        return logits[:, -1].float()

    @property
    def unread_layers(self) -> slice:
        """Layers whose prompt rows are not exact from the start."""
        return slice(0 if self.cut is None or self.hidden is None else self.cut.depth, None)

    def finish(self) -> None:
        """Compute all remaining rows at once and drop what was drafted behind them."""
        answer = self.answer
        n_rows = self.prompt.n_rows - 1
        part = slice(self.done, n_rows)
        before_last = self.prompt.sequences[:-1]
        answer.states.roll_back(answer.states.n_rows - self.done)
        shared = self.unread_layers.start
        drop_rows(answer.cache.layers[:shared], n_rows)
        drop_rows(answer.cache.layers[shared:], self.done)
        answer.visible = before_last.real
        if self.remaining:
            with counting(self.statistics, before_last.real[:, part], self.unread_layers):
                self._compute(
                    part,
                    position_ids=before_last.position_ids[:, part],
                    attention_mask=padding_mask(before_last.real, answer.cache),
                )
        answer.states.append_computed(self.remaining)
        self.done = n_rows

    def _compute(self, part: slice, **arguments: Any) -> None:
        """Append the exact rows ``part`` to the layers that lack them.

        Without statistics the forward ends with the last layer's keys and values.
        """
        answer, counts = self.answer, self.statistics is not None
        if self.cut is not None and self.hidden is not None:
            hidden = self._kept(self.hidden, part)
            self.cut.fill_upper(hidden, answer.cache, whole_layers=counts, **arguments)
            return
        stop_after = None if counts else answer.adapter.n_layers - 1
        with suppress(ForwardStopped):
            answer.adapter.decoder(
                self.prompt.token_ids[:, part],
                cache=StoppingView(answer.cache.layers, stop_after=stop_after),
                use_cache=True,
                **arguments,
            )

    def _kept(self, hidden: Tensor, part: slice) -> Tensor:
        known = self.prompt.known
        return hidden[:, part.start - known : part.stop - known]

    def _mask(self, part: slice) -> Tensor | dict[str, Tensor]:
        """What slice rows and decode row may see; the latter is in ``visible`` already."""
        answer = self.answer
        batch_size, held = answer.visible.shape
        slots = max(held, *(layer.get_max_length() for layer in answer.cache.layers))
        device = answer.visible.device
        own = torch.arange(part.start, part.stop, device=device)
        columns = torch.arange(slots, device=device)
        visible = torch.zeros(batch_size, len(own) + 1, slots, dtype=torch.bool, device=device)
        real = self.prompt.sequences.real
        real = torch.nn.functional.pad(real, (0, slots - self.prompt.n_rows))
        visible[:, :-1] = real[:, None] & (columns[None] <= own[:, None])
        # Padding sees itself, so that no row is masked whole.
        visible[:, torch.arange(len(own), device=device), own] = True
        visible[:, -1, :held] = answer.visible
        query_slots = torch.cat([own, own.new_tensor([held - 1])])
        return explicit_mask(answer.adapter, visible, query_slots[None], columns[None])
