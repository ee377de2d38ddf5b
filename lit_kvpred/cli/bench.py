"""`lit-kvpred bench`: whole answers timed with and without correction."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_kvpred.cli.arguments import call_with_arguments
from lit_kvpred.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor


def bench(
    artefact: str,
    base: str | None = None,
    prompt_tokens: list[int] | None = None,
    new_tokens: int = 64,
    slice_rows: list[int] | None = None,
    threshold: float = 0.1,
    rounds: int = 3,
    threads: list[int] | None = None,
    text: str = "stdlib",
    out: str | None = None,
) -> None:
    """Time base, predicted prompt and catch-up side by side on real text.

    Args:
        artefact: Folder that a run exported (RUN/artefact) or save_pretrained wrote.
        base: Folder or hub id of the base, where it is not at the place the artefact names.
        prompt_tokens: Prompt lengths; by default 256, 512 and 1024.
        new_tokens: Tokens of each answer.
        slice_rows: Exact prompt rows that ride on each decode step, one variant each; by default
            64 and 256. All at once after the first token is always measured.
        threshold: Least probability of an accepted drafted token.
        rounds: Timed rounds, each on another document, after one warm-up round.
        threads: Numbers of threads; by default what torch uses.
        text: Where prompts are cut from: a file, folder, glob, hub data set, or stdlib.
        out: File for all figures as JSON.
    """
    import torch

    from lit_kvpred.evaluation.end_to_end import Variant, measure_answers
    from lit_kvpred.model.kv_prediction import KVPredictionModel
    from lit_kvpred.model.loading import load_base, load_tokenizer
    from lit_kvpred.sirius.correction import Correction

    lengths = prompt_tokens or [256, 512, 1024]
    variants = [
        Variant("predicted only", None),
        Variant("exact at once", Correction(1, threshold, policy="retract")),
        *(
            Variant(f"{m} rows a step", Correction(1, threshold, policy="retract", slice_rows=m))
            for m in slice_rows or [64, 256]
        ),
    ]
    model = KVPredictionModel.from_pretrained(artefact, load_base(base) if base else None)
    tokenizer = load_tokenizer(base or model.base.config.name_or_path)
    records: list[dict[str, Any]] = []
    for count in threads or [torch.get_num_threads()]:
        torch.set_num_threads(count)
        for length in lengths:
            prompts = list(_prompts(text, tokenizer, length, rounds))
            records.append(measure_answers(model, prompts, variants, new_tokens=new_tokens))
            _print_table(records[-1])
            if out is not None:
                Path(out).write_text(json.dumps(records, indent=2) + "\n")


def _prompts(source: str, tokenizer: Any, length: int, number: int) -> Iterator[Tensor]:
    """The first ``length`` tokens of documents that are long enough, held-out ones first."""
    from lit_kvpred.data_splits import TEST_SHARE, VALIDATION_SHARE, split_of
    from lit_kvpred.datamodules.sources import resolve_source

    def trained_on(document: Any) -> bool:
        return split_of(document.name, VALIDATION_SHARE, TEST_SHARE) == "train"

    found = 0
    for document in sorted(resolve_source(source).documents("text"), key=trained_on):
        ids = tokenizer(document.text, return_tensors="pt")["input_ids"][:, :length]
        if ids.shape[1] == length:
            yield ids
            found += 1
            if found == number:
                return
    raise ConfigurationError(
        f"{source} holds {found} documents of {length} tokens, {number} are needed; "
        "give more text, fewer rounds or shorter prompts"
    )


def _print_table(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{record['prompt_tokens']} prompt tokens, {record['new_tokens']} new; "
        f"{record['threads']} threads, {record['dtype']}"
    )
    variants = record["variants"]
    base = variants["base"]
    table = Table("", *variants, title=title, title_justify="left")
    for label, name, relative in _ROWS:
        reference = base[name] if relative else None
        cells = [_milliseconds(row[name], reference) for row in variants.values()]
        table.add_row(label, *cells)
    table.add_row("peak memory", *(_mebibytes(row["peak_bytes"]) for row in variants.values()))
    ratios = [f"{row['flops'] / base['flops']:.3f}" for row in variants.values()]
    table.add_row("FLOPs of base", *ratios)
    table.add_row("same text", *(f"{row['same_text']:.0%}" for row in variants.values()))
    taken = [f"{row['retracted']:.1f}/{row['drafted']:.1f}" for row in variants.values()]
    table.add_row("taken back", *taken)
    Console(file=sys.stdout).print(table)


_ROWS = (
    ("first token", "ttft_s", True),
    ("step meanwhile", "tpot_during_s", False),
    ("step after", "tpot_after_s", False),
    ("exact after", "time_to_exact_s", False),
    ("whole answer", "total_s", True),
)


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f} MiB"


def _milliseconds(
    seconds: dict[str, float] | None, reference: dict[str, float] | None = None
) -> str:
    if seconds is None:
        return "-"
    text = f"{1000 * seconds['median']:.0f} ms"
    if reference is not None:
        text += f" {seconds['median'] / reference['median']:.2f}"
    return text


def run(words: Sequence[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(bench, list(words))
