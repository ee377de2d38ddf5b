"""The sections of a report on one run."""

from __future__ import annotations

from lit_kvpred.report.blocks import (
    accuracy_blocks,
    correction_blocks,
    measured_at,
    sample_blocks,
    timing_blocks,
)
from lit_kvpred.report.curves import layers_section, loss_section, text_section
from lit_kvpred.report.document import (
    Block,
    Definitions,
    Gallery,
    Listing,
    Paragraph,
    Raw,
    Section,
)
from lit_kvpred.report.formats import ABSENT
from lit_kvpred.report.records import Run
from lit_kvpred.report.schema import Evaluation, Stage
from lit_kvpred.report.series import progress_of
from lit_kvpred.report.sweep_section import sweep_section
from lit_kvpred.report.tables import accuracy_history, facts_of, text_table
from lit_kvpred.report.tradeoff import tradeoff_blocks

_TERMS = Definitions(
    (
        ("Base", "The frozen pretrained model; it reads the prompt itself, its cache is exact."),
        (
            "Predicted",
            "KV Prediction: the auxiliary reads the prompt, the predictor turns its features into"
            " the base's keys and values, and the base goes on from there.",
        ),
        (
            "Corrected",
            "Predicted at first; the exact prompt rows are caught up on, and one verify pass takes"
            " back what the base would not have said.",
        ),
        (
            "Sparse alone",
            "The base reads the prompt; all later tokens come from a sparse copy of it, whose"
            " feed-forward parts use some of their neurons. Nothing is checked.",
        ),
        (
            "Sirius",
            "The same, but every period the base judges what the sparse copy wrote, takes back what"
            " it finds unlikely and rewrites the cache. After catch-up: the prompt is predicted at"
            " first.",
        ),
        (
            "Speculative decoding",
            "Sparse drafts as in Sirius, but kept only where the text stays the base's own.",
        ),
        ("Auxiliary alone", "The network that reads the prompt, answering by itself."),
        ("Time to first token", "From the prompt's token ids to the first new token id."),
        (
            "FLOPs ratio",
            "FLOPs of the base's prefill over those of KV Prediction, predictor and the base's own"
            " step included: the speed-up that arithmetic alone allows. The published ratio"
            " compares parameter counts only.",
        ),
        (
            "Reachable",
            "The same with the base's run of the last prompt rows counted as measured: it reads"
            " every weight for few rows, which takes its time whatever the prompt.",
        ),
        (
            "Agreement",
            "Share of positions where the most likely token equals the exact base's, on the same"
            " context.",
        ),
        ("KL", "Mean divergence of the predicted distribution from the exact base's."),
        ("Consistency error", "Mean absolute difference between predicted and exact rows."),
        ("Advance", "Tokens that a check adds, on average, the base's own one included (AAL)."),
        (
            "Effective density",
            "Weights that sparse steps and checks read per token, of those that the base reads.",
        ),
        ("Retraction rate", "Share of the tokens generated before a check that it takes back."),
        ("Time to exact", "From the prompt to a cache that the base computed in every row."),
        (ABSENT, "Not measured, or not a finite number."),
    )
)


def run_sections(run: Run) -> list[Section]:
    """All sections on one run, in the order in which a reader asks for them."""
    return [
        _facts_section(run),
        _time_section(run),
        _accuracy_section(run),
        text_section(run),
        layers_section(run),
        _correction_section(run),
        *([sweep_section(run.sweep)] if run.sweep else []),
        loss_section(run),
        _samples_section(run),
        *(_stage_section(run, stage) for stage in ("validate", "test") if run.latest(stage)),
    ]


def closing_sections(run: Run) -> list[Section]:
    """Terms and configuration."""
    text: Block = Listing("config.yaml", Raw(run.config))
    if not run.config.strip():
        text = Paragraph("The run folder holds no config.yaml.")
    return [Section("Terms", [_TERMS]), Section("Configuration", [text])]


def _facts_section(run: Run) -> Section:
    if not run.facts:
        absent = "The run folder holds no run.json, so what was trained on what is not known here."
        return Section("What was trained on what", [Paragraph(absent)])
    return Section("What was trained on what", [facts_of(run.facts)])


def _time_section(run: Run) -> Section:
    title = "Time to first token"
    line = _latest_with(run, "timing")
    if line is None:
        return Section(title, [Paragraph("It was not measured during training.")])
    return Section(title, [Paragraph(measured_at(line)), *timing_blocks("fit", line.timing)])


def _accuracy_section(run: Run) -> Section:
    title = "Accuracy"
    line = _latest_with(run, "accuracy")
    if line is None:
        return Section(title, [Paragraph("It was not measured during training.")])
    blocks = [Paragraph(measured_at(line)), *accuracy_blocks("fit", line.accuracy)]
    scored = [line for line in run.fit if line.accuracy]
    if len(scored) > 1:
        blocks.append(Gallery((), [accuracy_history(scored, progress_of(run))]))
    return Section(title, [*blocks, *tradeoff_blocks(run.fit)])


def _correction_section(run: Run) -> Section:
    lines = [line for line in run.fit if line.correction is not None]
    if not lines:
        absent = Paragraph("No evaluation during training ran with correction.")
        return Section("Correction", [absent])
    return Section("Correction", correction_blocks("fit", lines, progress_of(run)))


def _samples_section(run: Run) -> Section:
    line = _latest_with(run, "samples")
    if line is None:
        absent = Paragraph("No evaluation during training kept sample completions.")
        return Section("Sample completions", [absent])
    return Section("Sample completions", [Paragraph(measured_at(line)), *sample_blocks(line)])


def _stage_section(run: Run, stage: Stage) -> Section:
    line = run.latest(stage)
    assert line is not None
    blocks: list[Block] = [Paragraph(measured_at(line))]
    progress = progress_of(run)
    if line.text is not None:
        blocks.append(text_table([line], progress))
    blocks += timing_blocks(stage, line.timing) if line.timing else []
    blocks += accuracy_blocks(stage, line.accuracy) if line.accuracy else []
    blocks += correction_blocks(stage, [line], progress) if line.correction is not None else []
    blocks += sample_blocks(line) if line.samples else []
    if len(blocks) == 1:
        blocks.append(Paragraph("This evaluation recorded no measure."))
    return Section(f"Evaluation by the {stage} command", blocks)


def _latest_with(run: Run, part: str) -> Evaluation | None:
    return next((line for line in reversed(run.fit) if getattr(line, part)), None)
