"""From drafted tokens to exact ones: the verify pass (Sirius 3.1, 13.5).

Judging drafted tokens against predicted rows would compare the base with itself (Sirius 13.2), so
that the exact prompt rows come first, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.sampling import TokenChooser
from lit_kvpred.model.caches import n_rows, overwrite_rows
from lit_kvpred.sirius.acceptance import accepted_prefix, lossless_prefix
from lit_kvpred.sirius.correction import Correction


@dataclass(frozen=True)
class Verdict:
    """What a verify pass decided, per batch entry.

    Attributes:
        settled: Tokens of the answer before the draft.
        drafted: Tokens judged.
        accepted: Length of the accepted prefix of the draft.
        kept: Drafted tokens that stay; more than ``accepted`` only where rejected ones may not be
            taken back.
        added: Tokens of the base's own that follow them, 0 or 1; none behind an answer's end.
    """

    settled: list[int]
    drafted: list[int]
    accepted: list[int]
    kept: list[int]
    added: list[int]


@dataclass(frozen=True)
class Drafts:
    """Drafted tokens of a batch.

    Attributes:
        settled: Per batch entry, tokens of the answer before the draft; they stay in any case.
        drawn_from: For lossless acceptance, ``(B, V)`` for each step: what its tokens were drawn
            from.
        rows: Keys and values of each layer that the cache shall keep for the token before the draft
            and the drafted ones, in place of those of the verify pass; None keeps the latter.
    """

    settled: Sequence[int]
    drawn_from: Sequence[Tensor] = ()
    rows: Sequence[tuple[Tensor, Tensor]] | None = None


def reconcile(
    answer: AnswerState,
    last_prompt_tokens: Tensor,
    correction: Correction,
    choose: TokenChooser,
    shown: Sequence[int],
    drawn_from: Sequence[Tensor] = (),
) -> Verdict:
    """Judge every token of the answers on the exact prompt.

    Args:
        answer: Its cache holds the exact prompt without the last token.
        last_prompt_tokens: ``(B, 1)`` long.
        correction: Threshold, temperature and policy; switches for ablations don't count here.
        choose: Draws the token that follows the kept prefix.
        shown: Per batch entry, tokens that the reader has already seen.
        drawn_from: As in `Drafts`.
    """
    drafts = Drafts([0] * len(answer.tokens), drawn_from)
    return judge(answer, last_prompt_tokens, drafts, correction.without_draft(), choose, shown)


def judge(
    answer: AnswerState,
    tokens_before: Tensor,
    drafts: Drafts,
    correction: Correction,
    choose: TokenChooser,
    shown: Sequence[int],
) -> Verdict:
    """Judge the drafted tokens, roll back, and go on with the base's token.

    Args:
        answer: Its cache is exact and holds what comes before ``tokens_before``.
        tokens_before: ``(B, 1)`` long, the tokens that stand before the drafts.
        drafts: What is judged: all tokens after the settled ones.
        correction: Threshold, temperature and policy.
        choose: Draws the token that follows the kept prefix.
        shown: Per batch entry, tokens of the answer that the reader has already seen.
    """
    device = tokens_before.device
    settled = list(drafts.settled)
    tokens = [text[n:] for text, n in zip(answer.tokens, settled, strict=True)]
    drafted = torch.tensor([len(t) for t in tokens], device=device)
    width = int(drafted.max())
    draft = torch.tensor(
        [t + [0] * (width - len(t)) for t in tokens], device=device, dtype=torch.long
    )
    inside = torch.arange(width, device=device)[None] < drafted[:, None]
    finished = (drafted == 0)[:, None] & ~answer.unfinished()
    real = torch.cat([~finished, inside], dim=1)
    logits = answer.feed(torch.cat([tokens_before, draft], dim=1), real)
    if drafts.rows is None:
        answer.states.assert_exact()
    else:
        overwrite_rows(answer.cache, n_rows(answer.cache) - width - 1, drafts.rows)
        answer.states.roll_back(width + 1)
        answer.states.append_sparse(width + 1)
    entries = torch.arange(len(drafted), device=device)
    if correction.acceptance == "lossless" and width:
        drawn_from = torch.stack(list(drafts.drawn_from[:width]), dim=1)
        chances = choose.chances((len(drafted), width), device)
        accepted, following = lossless_prefix(
            choose.probabilities(logits), drawn_from, draft, drafted, chances
        )
    else:
        accepted = accepted_prefix(
            logits[:, :-1],
            draft,
            drafted,
            threshold=correction.threshold,
            temperature=correction.temperature,
        )
        following = None
    kept = accepted if correction.rollback else drafted
    if correction.policy == "commit":
        seen = torch.tensor([s - n for s, n in zip(shown, settled, strict=True)], device=device)
        kept = torch.maximum(kept, seen)
    # Without a token of the base the draft goes on behind its own last one.
    adds = (kept < drafted) | (drafted == 0) | correction.interleave
    answer.drop_last(width - kept + (~adds).long())
    for row, (before, length) in enumerate(zip(settled, kept.tolist(), strict=True)):
        answer.tokens[row] = answer.tokens[row][: before + length]
        answer.done[row] = answer.rule.is_complete(answer.tokens[row])
    chosen = choose(logits[entries, kept]) if following is None else choose.draw(following)
    lengths = [len(text) for text in answer.tokens]
    answer.append(chosen, adds.tolist())
    answer.drop_spare()
    added = [len(text) - n for text, n in zip(answer.tokens, lengths, strict=True)]
    return Verdict(settled, drafted.tolist(), accepted.tolist(), kept.tolist(), added)
