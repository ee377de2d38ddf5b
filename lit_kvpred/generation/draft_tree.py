"""Several drafts at once as a tree, judged in one verify pass (Sirius 4).

The token before the draft is the root. Each step runs the leaves of a tree through the sparse draft
and keeps, of all their likeliest continuations, the ones with the largest probability from the root
on. All rows of a tree stand side by side in the cache; a mask lets each see its own ancestors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.reconciliation import Verdict
from lit_kvpred.generation.sampling import TokenChooser
from lit_kvpred.model.caches import gather_last
from lit_kvpred.sirius.acceptance import token_probabilities
from lit_kvpred.sirius.correction import Correction


class DraftTree:
    """One tree for each answer of a batch.

    A branch that completes its answer is not continued; nodes that are not real keep its place.

    Args:
        answer: On an exact cache.
        width: Leaves of a tree, at most.

    Attributes:
        tokens: ``(B, nodes)`` long, level by level; the root is the pending token.
        parents: ``(B, nodes)`` long, index of each node's parent; the root is its own.
        depths: ``(B, nodes)`` long, real nodes between each node and the root, itself included.
        real: ``(B, nodes)`` bool.
        ancestors: ``(B, nodes, nodes)`` bool, for each node itself and those above it.
        levels: Nodes of each level below the root, the likeliest from the root on first.
    """

    def __init__(self, answer: AnswerState, width: int) -> None:
        self.answer = answer
        self.width = min(width, answer.adapter.config.vocab_size)
        self.tokens = answer.pending()
        self.parents = torch.zeros_like(self.tokens)
        self.depths = torch.zeros_like(self.tokens)
        self.real = answer.unfinished()
        self.ancestors = torch.ones_like(self.real)[:, :, None]
        self.levels: list[slice] = []
        self._before = answer.visible.long().sum(1, keepdim=True)
        self._leaves = slice(0, 1)
        self._scores = torch.zeros_like(self.tokens, dtype=torch.float32)
        self._ended = ~self.real

    @property
    def positions(self) -> Tensor:
        """``(B, nodes)`` long, of each node in its text."""
        return self._before + self.depths

    @property
    def complete(self) -> bool:
        """Whether no branch can be continued."""
        return bool(self._ended.all())

    @property
    def drafted_rows(self) -> int:
        """Rows of the cache that the sparse draft wrote: those of all levels but the last."""
        return self._leaves.start

    def grow(self, model: PreTrainedModel, temperature: float) -> None:
        """Add a level.

        Args:
            model: The sparse draft.
            temperature: Divides the logits before probabilities are compared.
        """
        logits = self._run_leaves(model)
        best, own = _likeliest(logits, self.width, temperature)
        scores = self._scores[..., None] + own
        # What is complete goes on as itself.
        scores[self._ended] = -torch.inf
        scores[..., 0][self._ended] = self._scores[self._ended]
        ranked = scores.flatten(1).sort(dim=1, descending=True, stable=True)
        chosen = ranked.indices[:, : self.width]
        leaf = chosen // self.width
        self._scores = ranked.values[:, : self.width]
        self._add(leaf, best.flatten(1).gather(1, chosen), ~self._ended.gather(1, leaf))

    def path(self, entry: int, node: int) -> list[int]:
        """Nodes from below the root to ``node`` of a batch entry's tree."""
        nodes: list[int] = []
        while node:
            nodes.append(node)
            node = int(self.parents[entry, node])
        return nodes[::-1]

    def _run_leaves(self, model: PreTrainedModel) -> Tensor:
        if not self.levels:
            return self.answer.sparse_step(model)[:, None]
        rows = self._leaves
        logits = self.answer.run_tree(
            model,
            self.tokens[:, rows],
            self.real[:, rows],
            self.positions,
            self.ancestors[:, rows],
        )
        self.answer.states.append_sparse(rows.stop - rows.start)
        return logits

    def _add(self, leaf: Tensor, tokens: Tensor, real: Tensor) -> None:
        parents = leaf + self._leaves.start
        first, count = self.tokens.shape[1], leaf.shape[1]
        self.tokens = torch.cat([self.tokens, tokens], dim=1)
        self.parents = torch.cat([self.parents, parents], dim=1)
        depths = self.depths.gather(1, parents) + real
        self.depths = torch.cat([self.depths, depths], dim=1)
        self.real = torch.cat([self.real, real], dim=1)
        above = self.ancestors.gather(1, parents[..., None].expand(-1, -1, first))
        grown = above.new_zeros(len(above), first + count, first + count)
        grown[:, :first, :first], grown[:, first:, :first] = self.ancestors, above
        grown[:, first:, first:] = torch.eye(count, dtype=torch.bool, device=grown.device)
        self.ancestors = grown
        self._leaves = slice(first, first + count)
        self.levels.append(self._leaves)
        self._ended = ~real | self._completes()

    def _completes(self) -> Tensor:
        """``(B, leaves)`` bool: whether an answer ends with the leaf."""
        nodes = range(self._leaves.start, self._leaves.stop)
        tokens, rule = self.tokens.tolist(), self.answer.rule
        ended = [
            [
                rule.is_complete([*text, *(tokens[entry][n] for n in self.path(entry, node))])
                for node in nodes
            ]
            for entry, text in enumerate(self.answer.tokens)
        ]
        return torch.tensor(ended, device=self.real.device)


def judge_tree(
    answer: AnswerState, tree: DraftTree, correction: Correction, choose: TokenChooser
) -> Verdict:
    """Judge all nodes in one pass, keep the branch of which most is accepted, and go on from it.

    A node is judged by the row of its parent and accepted if that is accepted too. Of branches with
    equally many accepted nodes the one that the draft found likeliest is kept.

    Args:
        answer: Its last rows are the tree's sparse ones.
        tree: Of at least one level.
        correction: Acceptance, threshold and temperature.
        choose: Draws the token that follows the kept branch.
    """
    entries = torch.arange(len(tree.tokens), device=tree.tokens.device)
    settled = [len(tokens) for tokens in answer.tokens]
    answer.drop_last(torch.full_like(entries, tree.drafted_rows))
    before, nodes = answer.visible, tree.tokens.shape[1]
    logits = answer.run_tree(
        answer.adapter.model, tree.tokens, tree.real, tree.positions, tree.ancestors
    )
    answer.states.append_computed(nodes)
    answer.states.assert_exact()
    accepted = _accepted(tree, logits, correction)
    reached = torch.where(accepted, tree.depths, -1)
    best = reached.argmax(1)
    kept = reached.gather(1, best[:, None])[:, 0]
    paths = [tree.path(entry, node) for entry, node in enumerate(best.tolist())]
    width = max(map(len, paths))
    index = torch.tensor([[0, *path, *[0] * (width - len(path))] for path in paths])
    gather_last(answer.cache, nodes, index.to(tree.tokens.device))
    answer.states.roll_back(nodes - 1 - width)
    inside = torch.arange(width, device=entries.device)[None] < kept[:, None]
    answer.visible = torch.cat([before, tree.real[:, :1], inside], dim=1)
    answer.drop_last(width - kept)
    for row, path in enumerate(paths):
        answer.tokens[row] += [int(tree.tokens[row, node]) for node in path]
        answer.done[row] = answer.rule.is_complete(answer.tokens[row])
    adds = [not done for done in answer.done]
    answer.append(choose(logits[entries, best]))
    answer.drop_spare()
    drafted = torch.where(tree.real, tree.depths, 0).max(1).values.tolist()
    return Verdict(settled, drafted, kept.tolist(), kept.tolist(), list(map(int, adds)))


def _accepted(tree: DraftTree, logits: Tensor, correction: Correction) -> Tensor:
    """``(B, nodes)`` bool, the root included."""
    judging = logits.gather(1, tree.parents[..., None].expand(-1, -1, logits.shape[2]))
    if correction.acceptance == "lossless":
        passed = judging.argmax(-1) == tree.tokens
    else:
        probabilities = token_probabilities(judging, tree.tokens, correction.temperature)
        passed = probabilities >= correction.threshold
    accepted = torch.ones_like(tree.real)
    for level in tree.levels:
        above = accepted.gather(1, tree.parents[:, level])
        accepted[:, level] = above & passed[:, level] & tree.real[:, level]
    return accepted


def _likeliest(logits: Tensor, count: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of each leaf and their log-probabilities, ``(B, leaves, count)``."""
    best = logits.topk(count, dim=-1).indices
    # Of equal logits greedy decoding takes the first, and so must the first branch.
    greedy = logits.argmax(-1, keepdim=True)
    best = torch.where(best == greedy, best[..., :1], best)
    best[..., :1] = greedy
    tempered = logits / temperature
    return best, tempered.gather(-1, best) - tempered.logsumexp(-1, keepdim=True)
