"""From a drafted answer to an exact one: the verify pass after catch-up (Sirius 13.5).

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
    """What reconciliation decided, per batch entry.

    Attributes:
        drafted: Tokens judged.
        accepted: Length of the accepted prefix.
        kept: Drafted tokens that stay; more than ``accepted`` only where the policy forbids taking
            shown tokens back.
    """

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
    """Judge every drafted token on the exact prompt, roll back, and go on with the base's token.

    Args:
        answer: Its cache holds the exact prompt without the last token.
        last_prompt_tokens: ``(B, 1)`` long.
        correction: Threshold, temperature and policy.
        choose: Draws the token that follows the kept prefix.
        shown: Per batch entry, drafted tokens that the reader has already seen.
    """
    device = last_prompt_tokens.device
    drafted = torch.tensor([len(tokens) for tokens in answer.tokens], device=device)
    width = int(drafted.max())
    draft = torch.tensor(
        [tokens + [0] * (width - len(tokens)) for tokens in answer.tokens], device=device
    )
    inside = torch.arange(width, device=device)[None] < drafted[:, None]
    real = torch.cat([torch.ones_like(last_prompt_tokens, dtype=torch.bool), inside], dim=1)
    logits = answer.feed(torch.cat([last_prompt_tokens, draft], dim=1), real)
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
        kept = torch.maximum(accepted, torch.tensor(shown, device=device))
    answer.drop_last(width - kept)
    for row, length in enumerate(kept.tolist()):
        answer.tokens[row] = answer.tokens[row][:length]
        answer.done[row] = answer.rule.is_complete(answer.tokens[row])
    answer.append(choose(logits[torch.arange(len(kept), device=device), kept]))
    return Verdict(drafted.tolist(), accepted.tolist(), kept.tolist())
