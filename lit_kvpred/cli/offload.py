"""`lit-kvpred offload`: a base under a memory limit, its feed-forward weights on disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_kvpred.cli.arguments import (
    call_with_arguments,
    require_at_least,
    require_folder,
    write_json,
)
from lit_kvpred.cli.prompt_text import read_prompt
from lit_kvpred.errors import ConfigurationError, DataError


def offload(
    base: str,
    memory_limit_mb: int | None = None,
    keep: float = 0.5,
    period: int = 16,
    threshold: float = 0.1,
    prompt_file: str | None = None,
    prompt_tokens: int = 256,
    new_tokens: int = 64,
    dtype: str = "auto",
    threads: int | None = None,
    json: str | None = None,
) -> None:
    """Answer a prompt with the base in memory, streamed from disk, and streamed with drafts.

    Args:
        base: Folder with config.json and safetensors weights, or hub id.
        memory_limit_mb: Private memory of a process, in MB of a million bytes, Python and torch
            included; by default too little for the base in memory.
        keep: Share of the feed-forward neurons that drafts use.
        period: Tokens from one check of theirs to the next.
        threshold: Least probability of an accepted drafted token.
        prompt_file: File that holds the prompt; by default the beginning of a document of the
            standard library.
        prompt_tokens: Most tokens of the prompt.
        new_tokens: Tokens of each answer.
        dtype: Type to compute in; auto is the files' own.
        threads: Of torch; by default what it uses.
        json: File for all figures and the environment.
    """
    import torch

    from lit_kvpred.evaluation.environment import versions
    from lit_kvpred.evaluation.offloading import measure_offloading
    from lit_kvpred.model.loading import checked_dtype, folder_config, load_tokenizer, locate
    from lit_kvpred.sirius.correction import Correction
    from lit_kvpred.sirius.sparsity import CSparse

    require_folder(json=json)
    require_at_least(2, new_tokens=new_tokens)
    require_at_least(1, prompt_tokens=prompt_tokens)
    if memory_limit_mb is not None:
        require_at_least(1, memory_limit_mb=memory_limit_mb)
    if threads is not None:
        require_at_least(1, threads=threads)
    Correction(period, threshold, draft=CSparse(keep))
    checked_dtype(dtype)
    config = folder_config(_folder(locate(base)), base)
    prompt = _prompt(prompt_file, load_tokenizer(base), prompt_tokens)
    most = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if most is not None and len(prompt) + new_tokens > most:
        raise ConfigurationError(
            f"{len(prompt)} prompt tokens and {new_tokens} new ones are more than the base's "
            f"{most} positions; change --prompt_tokens or --new_tokens"
        )
    records = measure_offloading(
        base,
        prompt,
        new_tokens=new_tokens,
        keep=keep,
        period=period,
        threshold=threshold,
        limit=None if memory_limit_mb is None else memory_limit_mb * 1_000_000,
        threads=threads or torch.get_num_threads(),
        dtype=dtype,
    )
    _print_table(records)
    sys.stdout.write(_LEGEND)
    if json is not None:
        settings = {"base": base, "keep": keep, "period": period, "threshold": threshold}
        write_json(json, {"settings": settings, "versions": versions(), "results": records})


_LEGEND = """\
resident: all weights in memory, without and with the limit. streamed: feed-forward weights are read
from the checkpoint's files, layer by layer, for each pass of the dense base; files that the system
still holds in its cache are read from there. sirius: sparse drafts from weights gathered once a
prompt, checked each period. "read per token" is what was read after the first token, without what
was gathered; "predicted" is all feed-forward weights per token, or per advance of a period,
which leaves out the period that the answer ended in.
"private memory": in use / reserved, which is what the limit counts. "same text, strict": the text
with all drafts rejected is the streamed base's.
"""


def _folder(path: Path) -> Path:
    if path.is_file():
        raise ConfigurationError(
            f"{path}: the weights of a GGUF file can't be streamed; make a folder of it first: "
            "lit-kvpred prepare"
        )
    return path


def _prompt(file: str | None, tokenizer: Any, most: int) -> list[int]:
    from lit_kvpred.cli.document_prompts import document_prompts

    if file is None:
        return next(document_prompts("stdlib", tokenizer, most, 1))[0].tolist()
    ids: list[int] = tokenizer(read_prompt(file))["input_ids"][:most]
    if not ids:
        raise DataError(f"{file} holds no text; give a prompt of at least one token")
    return ids


def _print_table(records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    first, limit = records[0], records[-1]["limit_bytes"]
    limited = "no limit" if limit is None else f"limit {limit / 1e6:.0f} MB of private memory"
    title = (
        f"{first['prompt_tokens']} prompt tokens, {first['new_tokens']} new; "
        f"{first['threads']} threads; {limited}"
    )
    table = Table("", *_HEADINGS, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("fits", *("yes" if r["fits"] else "no" for r in records))
    for label, form in _ROWS.items():
        table.add_row(label, *(form(r) if r["fits"] else "-" for r in records))
    Console(file=sys.stdout, width=100).print(table)
    for heading, record in zip(_HEADINGS, records, strict=True):
        if not record["fits"]:
            sys.stdout.write(f"{heading} does not fit: {record['error']}\n")


_HEADINGS = ("resident, no limit", "resident", "streamed", "sirius")


def _megabytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:.1f} MB"


def _private(record: dict[str, Any]) -> str:
    used, reserved = record["used_bytes"], record["reserved_bytes"]
    return "-" if used is None else f"{used / 1e6:.0f} / {reserved / 1e6:.0f} MB"


def _yes(value: bool | None) -> str:
    return "-" if value is None else ("yes" if value else "no")


_ROWS = {
    "loading": lambda r: f"{r['load_s']:.1f} s",
    "first token": lambda r: f"{r['ttft_s']:.2f} s",
    "later token": lambda r: f"{1000 * r['token_s']:.0f} ms",
    "read for the prompt": lambda r: _megabytes(r["prompt_bytes"]),
    "gathered once": lambda r: _megabytes(r["gathered_bytes"]),
    "read per token": lambda r: _megabytes(r["bytes_per_token"]),
    "  predicted": lambda r: _megabytes(r["predicted_bytes_per_token"]),
    "advance": lambda r: "-" if r["aal"] is None else f"{r['aal']:.2f}",
    "private memory": _private,
    "same text": lambda r: _yes(r["same_text"]),
    "same text, strict": lambda r: _yes(r["strict_same_text"]),
}


def run(words: Sequence[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(offload, list(words))
