"""`lit-kvpred quality`: how close artefacts stay to the exact base on given texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_kvpred.cli.arguments import (
    call_with_arguments,
    listed,
    require_at_least,
    require_figure,
    require_folder,
    with_list_first,
    write_json,
)
from lit_kvpred.data_splits import TEST_SHARE
from lit_kvpred.errors import ConfigurationError, DataError
from lit_kvpred.model.exact_tail import require_exact_tail


def quality(
    artefacts: list[str],
    base: str | None = None,
    text: list[str] | str = "stdlib",
    text_field: str = "text",
    held_out: float = 0.05,
    prompt_tokens: int = 128,
    measured_tokens: int = 128,
    exact_tails: list[int | float] | int | float | None = None,
    sequences: int = 32,
    batch_size: int = 4,
    json: str | None = None,
    figure: str | None = None,
) -> None:
    """Measure agreement and KL of one artefact or several on held-out text.

    Args:
        artefacts: Folders that runs exported (RUN/artefact).
        base: Folder or hub id of the base, where it is not at the place the artefacts name.
        text: One or several texts, each a file, folder, glob, hub data set or installed source.
        text_field: The field of a record that holds its text.
        held_out: Share of the documents that count as held out; more than .05 is for texts that
            nothing was trained on.
        prompt_tokens: Rows of each sequence that are the prompt.
        measured_tokens: Rows after them, on which everything is measured.
        exact_tails: Last prompt rows that the base runs itself, one measurement each, as a number
            of rows or a fraction of the prompt, and shown in rows; by default what each artefact
            was trained with.
        sequences: Sequences of each text.
        batch_size: Sequences of a batch.
        json: File for all figures and the environment.
        figure: SVG, PNG or PDF file that shows first tokens against arithmetic.
    """
    from lit_kvpred.evaluation.environment import environment
    from lit_kvpred.evaluation.held_out import measure_text
    from lit_kvpred.model.kv_prediction import KVPredictionModel

    texts, tails = listed(text, []), listed(exact_tails, [])
    require_folder(json=json, figure=figure)
    require_at_least(
        1,
        prompt_tokens=prompt_tokens,
        measured_tokens=measured_tokens,
        sequences=sequences,
        batch_size=batch_size,
    )
    for tail in tails:
        require_exact_tail("--exact_tails", tail)
    if not 0 < held_out < 1 - TEST_SHARE:
        raise ConfigurationError(
            f"--held_out must be above 0 and below {1 - TEST_SHARE}, got {held_out}"
        )
    require_figure(figure)
    records: list[dict[str, Any]] = []
    environments: dict[str, Any] = {}
    for artefact in artefacts:
        model = KVPredictionModel.from_pretrained(artefact, base)
        environments[artefact] = environment(model)
        for source in texts:
            batches = _batches(
                base or model.base.config.name_or_path,
                source,
                text_field,
                held_out,
                prompt_tokens + measured_tokens,
                sequences,
                batch_size,
            )
            rows = measure_text(model, batches, prompt_tokens, tails or [model.exact_tail])
            records += [{"artefact": artefact, "text": source} | row for row in rows]
        if json is not None:
            write_json(json, {"environments": environments, "results": records})
    _print_table(records)
    if figure is not None:
        from lit_kvpred.report.quality_figure import draw_quality

        draw_quality(records, Path(figure))


def _batches(
    tokenizer: str,
    source: str,
    text_field: str,
    held_out: float,
    length: int,
    sequences: int,
    batch_size: int,
) -> Any:
    from lit_kvpred.datamodules import TextDataModule

    data = TextDataModule(
        tokenizer,
        sources=[source],
        text_field=text_field,
        sequence_length=length,
        batch_size=batch_size,
        validation_share=held_out,
        validation_sequences=sequences,
    )
    data.prepare_data()
    data.setup()
    try:
        return data.val_dataloader()
    except DataError as error:
        raise DataError(
            f"no sequence of {length} tokens of {source} is held out; give more text, or raise "
            "--held_out for text that nothing was trained on"
        ) from error


_COLUMNS = {
    "prompt": ("prompt_tokens", "d"),
    "tail": ("exact_tail", "d"),
    "FLOPs of base": ("flops", ".3f"),
    "agreement": ("agreement", ".3f"),
    "of first 8": ("agreement_first8", ".3f"),
    "KL": ("kl", ".3f"),
    "tokens": ("tokens", "d"),
}


def _print_table(records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("artefact", "text")
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for record in records:
        cells = (format(record[name], form) for name, form in _COLUMNS.values())
        table.add_row(record["artefact"], record["text"], *cells)
    Console(file=sys.stdout, width=140).print(table)


def run(words: Sequence[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(quality, with_list_first(words))
