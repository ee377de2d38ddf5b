"""`lit-kvpred sweep`: what thresholds, periods and policies do to the text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

from lit_kvpred.cli.arguments import (
    call_with_arguments,
    listed,
    require_at_least,
    require_folder,
    write_json,
)
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.sirius.correction import Correction, StreamingPolicy
from lit_kvpred.sirius.sparsity import DRAFTS


def sweep(
    artefact: str,
    base: str | None = None,
    tasks: list[str] | str | None = None,
    data: dict[str, str] | None = None,
    limit: int = 100,
    prompt_tokens: int = 128,
    new_tokens: int = 32,
    policies: list[StreamingPolicy] | StreamingPolicy | None = None,
    thresholds: list[float] | float | None = None,
    periods: list[int] | int | None = None,
    draft: Literal["csparse", "fsparse"] | None = None,
    draft_keep: float = 0.5,
    exact_prompt: bool = False,
    shots: int = 0,
    batch_size: int = 8,
    json: str | None = None,
) -> None:
    """Answer the prompts of tasks with each combination of correction settings.

    Args:
        artefact: Folder that a run exported (RUN/artefact) or save_pretrained wrote.
        base: Folder or hub id of the base, where it is not at the place the artefact names.
        tasks: Tasks that prompts are taken from; next_line by default.
        data: A file or folder for a task; tasks without one are downloaded from the hub.
        limit: Prompts of a task.
        prompt_tokens: Most tokens of the prompts of next_line.
        new_tokens: Most tokens of an answer.
        policies: Streaming policies, retract and commit by default.
        thresholds: Least probabilities of an accepted token; .05, .1, .3 and 1.1 by default.
        periods: Tokens drafted before the prompt becomes exact; 8 by default.
        draft: Go on with sparse drafts once the prompt is exact.
        draft_keep: Share of the feed-forward neurons that they use.
        exact_prompt: The base reads the prompts itself: what sparse drafts do alone.
        shots: Solved examples before a prompt, for tasks that have them.
        batch_size: Prompts answered together.
        json: File for all figures and the environment.
    """
    import torch

    from lit_kvpred.datamodules import PromptTaskDataModule
    from lit_kvpred.evaluation.environment import environment
    from lit_kvpred.evaluation.sweep import sweep as measure
    from lit_kvpred.model.kv_prediction import KVPredictionModel
    from lit_kvpred.model.loading import load_tokenizer

    require_folder(json=json)
    require_at_least(1, batch_size=batch_size, limit=limit, new_tokens=new_tokens)
    chosen = product(
        listed(policies, _POLICIES), listed(periods, [8]), listed(thresholds, _THRESHOLDS)
    )
    sparsity = None if draft is None else DRAFTS[draft](draft_keep)
    if exact_prompt and sparsity is None:
        raise ConfigurationError("--exact_prompt leaves nothing to correct without --draft")
    corrections = [
        Correction(period, threshold, policy=policy, draft=sparsity)
        for policy, period, threshold in chosen
    ]
    model = KVPredictionModel.from_pretrained(artefact, base)
    tokenizer = load_tokenizer(base or model.base.config.name_or_path)
    records: list[dict[str, Any]] = []
    for task in listed(tasks, ["next_line"]):
        prompts = PromptTaskDataModule(
            [task], data=data, limit=limit, prompt_tokens=[prompt_tokens], shots=shots
        )
        prompts.attach_tokenizer(tokenizer)
        ids = [torch.tensor(tokenizer(e.prompt)["input_ids"]) for e in prompts.examples]
        rows = measure(
            model,
            ids,
            corrections,
            new_tokens=new_tokens,
            batch_size=batch_size,
            exact_prompt=exact_prompt,
        )
        _print_table(task, rows)
        records += [{"task": task} | row for row in rows]
        if json is not None:
            write_json(json, {"environment": environment(model), "results": records})
    sys.stdout.write(_LEGEND)


_POLICIES: list[StreamingPolicy] = ["retract", "commit"]
_THRESHOLDS = [0.05, 0.1, 0.3, 1.1]
_LEGEND = """\
none: the prompt stays predicted. Same text, same first: share of answers that are the base's own to
the last token, or in their first token. Accepted, taken back, kept wrong: shares of drafted tokens;
the last are rejected tokens that policy commit may not take back. Advance: mean tokens that a
verify pass adds. Density: weights read per token of sparse drafts and their checks, of the base's.
"""


def _print_table(task: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{task}, {rows[0]['answers']} prompts"
    table = Table(title=title, title_justify="left")
    for heading in ("policy", "period", "threshold", *_SHARES, "advance", "density"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        table.add_row(
            row["policy"] or "none",
            _number(row["period"], "d"),
            _number(row["threshold"], "g"),
            *(_number(row[name], ".1%") for name in _SHARES.values()),
            _number(row["aal"], ".2f"),
            _number(row["effective_density"], ".2f"),
        )
    Console(file=sys.stdout, width=110).print(table)


_SHARES = {
    "same text": "same_text",
    "same first": "same_first_token",
    "accepted": "accepted_rate",
    "taken back": "retraction_rate",
    "kept wrong": "unrecoverable_rate",
}


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def run(words: Sequence[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(sweep, list(words))
