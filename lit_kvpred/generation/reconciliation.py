"""From a drafted answer to an exact one: the verify pass (Sirius 3.1, 13.5).

Judging drafted tokens against predicted rows would compare the base with itself (Sirius 13.2), so
that the exact prompt rows come first, always.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_kvpred.generation.answer import AnswerState
from lit_kvpred.generation.sampling import TokenChooser
from lit_kvpred.sirius.acceptance import accepted_prefix
from lit_kvpred.sirius.correction import Correction


@dataclass(frozen=True)
class Verdict:
    """What a verify pass decided, per batch entry.

    Attributes:
        settled: Tokens of the answer before the draft.
        drafted: Tokens judged.
        accepted: Length of the accepted prefix of the draft.
        kept: Drafted tokens that stay; more than ``accepted`` only where the policy forbids taking
            shown tokens back.
    """

    settled: list[int]
    drafted: list[int]
    accepted: list[int]
    kept: list[int]


def reconcile(
    answer: AnswerState,
    last_prompt_tokens: Tensor,
    correction: Correction,
    choose: TokenChooser,
    shown: list[int],
) -> Verdict:
    """Judge every token of the answers on the exact prompt.

    Args:
        answer: Its cache holds the exact prompt without the last token.
        last_prompt_tokens: ``(B, 1)`` long.
        correction: Threshold, temperature and policy.
        choose: Draws the token that follows the kept prefix.
        shown: Per batch entry, tokens that the reader has already seen.
    """
    settled = [0] * len(answer.tokens)
    return judge(answer, last_prompt_tokens, settled, correction, choose, shown)


def judge(
    answer: AnswerState,
    tokens_before: Tensor,
    settled: list[int],
    correction: Correction,
    choose: TokenChooser,
    shown: list[int],
) -> Verdict:
    """Judge the tokens after the settled ones, roll back, and go on with the base's token.

    Args:
        answer: Its cache is exact and holds what comes before ``tokens_before``.
        tokens_before: ``(B, 1)`` long, the tokens that stand before the drafts.
        settled: Per batch entry, tokens of the answer that stay whatever happens.
        correction: Threshold, temperature and policy.
        choose: Draws the token that follows the kept prefix.
        shown: Per batch entry, tokens of the answer that the reader has already seen.
    """
    device = tokens_before.device
    drafts = [tokens[n:] for tokens, n in zip(answer.tokens, settled, strict=True)]
    drafted = torch.tensor([len(tokens) for tokens in drafts], device=device)
    width = int(drafted.max())
    draft = torch.tensor(
        [tokens + [0] * (width - len(tokens)) for tokens in drafts], device=device, dtype=torch.long
    )
    inside = torch.arange(width, device=device)[None] < drafted[:, None]
    finished = (drafted == 0)[:, None] & ~answer.unfinished()
    real = torch.cat([~finished, inside], dim=1)
    logits = answer.feed(torch.cat([tokens_before, draft], dim=1), real)
    answer.states.assert_exact()
    accepted = accepted_prefix(
        logits[:, :-1],
        draft,
        drafted,
        threshold=correction.threshold,
        temperature=correction.temperature,
    )
    kept = accepted
    if correction.policy == "commit":
        seen = torch.tensor([s - n for s, n in zip(shown, settled, strict=True)], device=device)
        kept = torch.maximum(accepted, seen)
    answer.drop_last(width - kept)
    for row, (before, length) in enumerate(zip(settled, kept.tolist(), strict=True)):
        answer.tokens[row] = answer.tokens[row][: before + length]
        answer.done[row] = answer.rule.is_complete(answer.tokens[row])
    answer.append(choose(logits[torch.arange(len(kept), device=device), kept]))
    answer.drop_spare()
    return Verdict(settled, drafted.tolist(), accepted.tolist(), kept.tolist())
