"""`lit-kvpred sweep`: what correction settings do to the text, and what they save."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lit_kvpred.cli.arguments import (
    call_with_arguments,
    listed,
    require_at_least,
    require_figure,
    require_folder,
    write_json,
)
from lit_kvpred.cli.draft_options import DEFAULT_KEEP, chosen_draft, require_draft
from lit_kvpred.sirius.correction import StreamingPolicy


def sweep(
    artefact: str,
    base: str | None = None,
    tasks: list[str] | str | None = None,
    data: dict[str, str] | None = None,
    limit: int = 100,
    prompt_tokens: int = 128,
    new_tokens: int | None = None,
    policies: list[StreamingPolicy] | StreamingPolicy | None = None,
    thresholds: list[float] | float | None = None,
    periods: list[int] | int | None = None,
    draft: Literal["csparse", "fsparse"] | None = None,
    draft_keeps: list[float] | float | None = None,
    tree_widths: list[int] | int | None = None,
    ablation: bool = False,
    exact_prompt: bool = False,
    shots: int = 0,
    batch_size: int | None = None,
    json: str | None = None,
    figure: str | None = None,
) -> None:
    """Answer the prompts of tasks with each combination of correction settings.

    Args:
        artefact: Folder that a run exported (RUN/artefact) or save_pretrained wrote.
        base: Folder or hub id of the base, where it is not at the place the artefact names.
        tasks: Tasks that prompts are taken from, among next_line, gsm8k, arc_easy, arc_challenge,
            piqa, boolq, commonsenseqa, triviaqa and humaneval; next_line by default. humaneval runs
            the code that the model writes, if the environment variable HF_ALLOW_CODE_EVAL is 1.
        data: A file or folder for a task; tasks without one are downloaded from the hub.
        limit: Prompts of a task.
        prompt_tokens: Most tokens of the prompts of next_line.
        new_tokens: Most tokens of an answer; the task's own number by default. Answers go on beyond
            a task's stop texts, so that there are periods to count; what is scored ends there.
        policies: Streaming policies; retract and commit by default, retract alone with
            --exact_prompt or --ablation.
        thresholds: Least probabilities of an accepted token; .05, .1, .3 and 1.1 by default, .1
            with --ablation.
        periods: Tokens from one check to the next, on a predicted prompt those before it becomes
            exact; 8 by default.
        draft: Go on with sparse drafts once the prompt is exact.
        draft_keeps: Shares of the feed-forward neurons that they use; .5 by default.
        tree_widths: Sequences that are drafted together; 1 by default.
        ablation: Also take cache rewriting, rollback and interleaving away, in all eight
            combinations.
        exact_prompt: The base reads the prompts itself: what sparse drafts do alone, beside sparse
            decoding without correction and speculative decoding with the same drafts.
        shots: Solved examples before a prompt, for tasks that have them.
        batch_size: Prompts answered together; 8 by default, 1 with csparse drafts, whose neurons
            are chosen for a batch as a whole.
        json: File for all figures and the environment. As RUN/sweep.json it becomes part of the
            run's report.
        figure: SVG, PNG or PDF file that shows accuracy and agreement against effective density.
    """
    import torch

    from lit_kvpred.datamodules import PromptTaskDataModule
    from lit_kvpred.evaluation.answering import AnswerScores
    from lit_kvpred.evaluation.environment import environment
    from lit_kvpred.evaluation.sweep import sweep as measure
    from lit_kvpred.evaluation.sweep_grid import correction_grid, sweep_variants
    from lit_kvpred.model.kv_prediction import KVPredictionModel
    from lit_kvpred.model.loading import load_tokenizer

    require_folder(json=json, figure=figure)
    require_figure(figure)
    require_draft(
        draft,
        draft_keeps=draft_keeps,
        tree_widths=tree_widths,
        ablation=ablation or None,
        exact_prompt=exact_prompt or None,
        figure=figure,
    )
    if batch_size is None:
        batch_size = 1 if draft == "csparse" else 8
    require_at_least(1, batch_size=batch_size, limit=limit, new_tokens=listed(new_tokens, []))
    corrections = correction_grid(
        policies=listed(policies, ["retract"] if exact_prompt or ablation else _POLICIES),
        periods=listed(periods, [8]),
        thresholds=listed(thresholds, [0.1] if ablation else _THRESHOLDS),
        drafts=[chosen_draft(draft, keep) for keep in listed(draft_keeps, [DEFAULT_KEEP])],
        tree_widths=listed(tree_widths, [1]),
        ablation=ablation,
    )
    # What is wrong with a task is known before the first one is answered.
    prompts = {
        task: PromptTaskDataModule(
            [task], data=data, limit=limit, prompt_tokens=[prompt_tokens], shots=shots
        )
        for task in listed(tasks, ["next_line"])
    }
    model = KVPredictionModel.from_pretrained(artefact, base)
    tokenizer = load_tokenizer(base or model.base.config.name_or_path)
    records: list[dict[str, Any]] = []
    for task, module in prompts.items():
        module.attach_tokenizer(tokenizer)
        examples = module.examples
        longest = new_tokens or max(example.max_new_tokens for example in examples)
        rows = measure(
            model,
            [torch.tensor(tokenizer(e.prompt)["input_ids"]) for e in examples],
            sweep_variants(corrections, exact_prompt=exact_prompt, new_tokens=longest),
            new_tokens=longest,
            batch_size=batch_size,
            score=AnswerScores(model, tokenizer, examples),
        )
        scored = {"task": task, "metric": examples[0].scoring, "new_tokens": longest}
        rows = [scored | row for row in rows]
        _print_table(rows)
        records += rows
        if json is not None:
            write_json(json, {"environment": environment(model), "results": records})
    sys.stdout.write(_LEGEND)
    if figure is not None:
        from lit_kvpred.report.sweep_plot import draw_sweep
        from lit_kvpred.report.sweep_records import sweep_rows

        draw_sweep(sweep_rows(records), Path(figure))


_POLICIES: list[StreamingPolicy] = ["retract", "commit"]
_THRESHOLDS = [0.05, 0.1, 0.3, 1.1]
_LEGEND = """\
Predicted: the prompt stays predicted. Score: right answers. Same text, same first: share of answers
that are the base's own to the last token, or in their first token; same tokens: share of an answer
up to its first difference. Accepted, taken back, kept wrong: shares of drafted tokens; the last are
rejected tokens that stay. Advance: mean tokens that a verify pass adds. Density: weights read per
token of sparse drafts and their checks, of the base's. Acceptance: share of judged tokens accepted
by speculative decoding's rule; expected: what its closed form makes of that.
"""


def _print_table(records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from lit_kvpred.report.sweep_records import sweep_rows
    from lit_kvpred.report.sweep_table import sweep_table

    content = sweep_table(sweep_rows(records))
    table = Table(title=content.title, title_justify="left")
    for place, heading in enumerate(content.header):
        table.add_column(heading, justify="left" if place < content.text_columns else "right")
    for row in content.rows:
        table.add_row(*map(str, row))
    Console(file=sys.stdout, width=60 + 9 * len(content.header)).print(table)


def run(words: Sequence[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(sweep, list(words))
