"""`lit-kvpred bench`: whole answers timed with and without correction."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from lit_kvpred.cli.arguments import (
    call_with_arguments,
    listed,
    require_at_least,
    require_folder,
    write_json,
)
from lit_kvpred.cli.document_prompts import document_prompts
from lit_kvpred.cli.draft_options import chosen_draft, require_draft
from lit_kvpred.errors import ConfigurationError


def bench(
    artefact: str,
    base: str | None = None,
    prompt_tokens: list[int] | int | None = None,
    new_tokens: int = 64,
    slice_rows: list[int] | int | None = None,
    threshold: float = 0.1,
    draft: Literal["csparse", "fsparse"] | None = None,
    draft_keep: float | None = None,
    period: int = 16,
    tree_width: int | None = None,
    rounds: int = 3,
    threads: list[int] | int | None = None,
    text: str = "stdlib",
    json: str | None = None,
) -> None:
    """Time base, predicted prompt and catch-up side by side on real text.

    Args:
        artefact: Folder that a run exported (RUN/artefact) or save_pretrained wrote.
        base: Folder or hub id of the base, where it is not at the place the artefact names.
        prompt_tokens: Prompt lengths; by default those of 256, 512 and 1024 that the base can take.
        new_tokens: Tokens of each answer.
        slice_rows: Exact prompt rows that ride on each decode step, one variant each; by default
            64 and 256. All at once after the first token is always measured.
        threshold: Least probability of an accepted drafted token.
        draft: Also time sparse drafts, on exact prompts (sirius) and after catch-up, and
            speculative decoding with the same draft.
        draft_keep: Share of the feed-forward neurons that they use; .5 by default.
        period: Tokens from one check of theirs to the next.
        tree_width: Sequences that sirius drafts together in a period; 1 by default.
        rounds: Timed rounds, each on another document, after one warm-up round.
        threads: Numbers of threads; by default what torch uses.
        text: Where prompts are cut from: a file, folder, glob, hub data set, or stdlib.
        json: File for all figures, with quartiles, and the environment.
    """
    import torch

    from lit_kvpred.evaluation.end_to_end import measure_answers
    from lit_kvpred.evaluation.environment import environment
    from lit_kvpred.evaluation.systems import Variant
    from lit_kvpred.model.kv_prediction import KVPredictionModel
    from lit_kvpred.model.loading import load_tokenizer
    from lit_kvpred.sirius.correction import Correction

    counts = listed(threads, [torch.get_num_threads()])
    require_at_least(1, rounds=rounds, period=period, threads=counts)
    require_at_least(2, new_tokens=new_tokens)
    require_folder(json=json)
    require_draft(draft, draft_keep=draft_keep, tree_width=tree_width)
    variants = [
        Variant("predicted", None),
        *(
            Variant("catch_up", Correction(1, threshold, policy="retract", slice_rows=m))
            for m in (None, *listed(slice_rows, [64, 256]))
        ),
    ]
    sparsity = chosen_draft(draft, draft_keep)
    if sparsity is not None:
        sparse = Correction(period, threshold, policy="retract", draft=sparsity)
        lossless = replace(sparse, acceptance="lossless")
        sparse = replace(sparse, tree_width=1 if tree_width is None else tree_width)
        variants += [
            Variant("sirius", sparse),
            Variant("sirius_catch_up", sparse),
            Variant("speculative", lossless),
        ]
    model = KVPredictionModel.from_pretrained(artefact, base)
    lengths = _lengths(prompt_tokens, new_tokens, model.adapter.max_positions)
    tokenizer = load_tokenizer(base or model.base.config.name_or_path)
    records: list[dict[str, Any]] = []
    for count in counts:
        torch.set_num_threads(count)
        for length in lengths:
            prompts = list(document_prompts(text, tokenizer, length, rounds))
            rows = measure_answers(model, prompts, variants, new_tokens=new_tokens)
            _print_table(rows)
            records += rows
            if json is not None:
                write_json(json, {"environment": environment(model), "results": records})
    sys.stdout.write(_LEGEND)


_LEGEND = """\
predicted: the prompt stays predicted. at once: the exact prompt is computed right after the first
token. N rows: N exact prompt rows ride on each decode step. Times are medians; "of base" is the
median ratio to the base in the same round. "step meanwhile" is a decode step before the prompt is
exact, "later token" the mean time a token behind the first. "same text": share of answers that are
the base's own. "taken back": drafted tokens rejected, of those judged. sirius: exact prompt, sparse
drafts; "advance" is what a period gains, "density" the share of the weights that a draft uses.
speculative: the same draft, of which the base keeps what it would have written itself.
"""


def _lengths(
    wanted: list[int] | int | None, new_tokens: int, max_positions: int | None
) -> list[int]:
    """The prompt lengths to time: wanted ones must fit, default ones are left out if they don't."""
    most = math.inf if max_positions is None else max_positions - new_tokens
    lengths = listed(wanted, [256, 512, 1024])
    fitting = [length for length in lengths if 1 < length <= most]
    if not fitting or (wanted is not None and len(fitting) < len(lengths)):
        raise ConfigurationError(
            f"with {new_tokens} new tokens the base takes prompts of 2 to {most} tokens, got "
            f"{lengths}; change --prompt_tokens or --new_tokens"
        )
    return fitting


def _print_table(records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    base = records[0]
    title = (
        f"{base['prompt_tokens']} prompt tokens, {base['new_tokens']} new; "
        f"{base['threads']} threads, {base['dtype']}"
    )
    table = Table("", *map(_heading, records), title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, name in _TIMES:
        if all(record[name] is None for record in records):
            continue
        table.add_row(label, *(_duration(record[name]) for record in records))
        ratio = name.removesuffix("_s") + "_ratio"
        if ratio in base:
            table.add_row("  of base", *(f"{record[ratio]['median']:.2f}" for record in records))
    if any(record["aal"] for record in records):
        table.add_row("advance", *(_plain(record["aal"]) for record in records))
        table.add_row("density", *(_plain(record["density"]) for record in records))
    table.add_row("peak memory", *(_megabytes(record["peak_mb"]) for record in records))
    whole = base["flops"]["total"]
    table.add_row("FLOPs of base", *(f"{r['flops']['total'] / whole:.2f}" for r in records))
    least = [f"{1 / record['flops']['bound_speedup']:.2f}" for record in records]
    table.add_row("first token's FLOPs", *least)
    table.add_row("same text", *(f"{record['same_text']:.0%}" for record in records))
    table.add_row("taken back", *(f"{r['retracted']:.1f}/{r['drafted']:.1f}" for r in records))
    Console(file=sys.stdout, width=max(80, 22 + 14 * len(records))).print(table)


_TIMES = (
    ("first token", "ttft_s"),
    ("step meanwhile", "tpot_during_s"),
    ("step after", "tpot_after_s"),
    ("sparse step", "sparse_step_s"),
    ("check", "check_s"),
    ("later token", "token_s"),
    ("exact after", "time_to_exact_s"),
    ("whole answer", "total_s"),
)


def _heading(record: dict[str, Any]) -> str:
    if record["system"] != "catch_up":
        return str(record["system"]).replace("_catch_up", "+catch-up")
    return "at once" if record["slice_rows"] is None else f"{record['slice_rows']} rows"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _megabytes(size: float | None) -> str:
    return "-" if size is None else f"{size:.0f} MB"


def _duration(seconds: dict[str, float] | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds['median']:.0f} ms"


def run(words: Sequence[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(bench, list(words))
