"""What the tables show of a record."""

import json

import pytest

from lit_kvpred.report.document import Raw
from lit_kvpred.report.records import append_evaluation, read_run
from lit_kvpred.report.schema import Sample
from lit_kvpred.report.series import progress_of
from lit_kvpred.report.tables import (
    facts_of,
    main_timing,
    plain,
    sample_table,
    text_table,
    timing_groups,
)
from tests.report.fabricated import FACTS, timing_record


@pytest.mark.parametrize(
    ("value", "key", "text"),
    [
        (None, "", "–"),  # noqa: RUF001
        ("", "", "–"),  # noqa: RUF001
        (True, "", "yes"),
        (134515008, "parameters", "134,515,008"),
        (1234, "seed", "1234"),
        (3e-4, "lr", "0.0003"),
        (float("nan"), "lr", "–"),  # noqa: RUF001
        ([0, 1, 2, 5], "kept", "0-2, 5"),
        (["a", "b"], "files", "a, b"),
        ({"train": 10, "seed": 1000}, "split", "train 10, seed 1000"),
    ],
)
def test_configuration_values(value, key, text):
    assert plain(value, key) == text


def test_facts_are_grouped_and_everything_else_is_kept():
    facts = FACTS | {"started_by": "make fit"}
    groups = dict(facts_of(facts).groups)
    assert list(groups) == ["Base", "Auxiliary", "Predictor", "Objective", "Data", "Run"]
    assert ("Number format", "float32") in groups["Base"]
    assert ("Started by", "make fit") in groups["Run"]
    assert ("torch", "2.13.0") in groups["Run"]


def test_timings_are_grouped_by_their_conditions(tmp_path):
    rows = [
        timing_record(256) | {"batch_size": 4},
        timing_record(128),
        timing_record(64),
        timing_record(64) | {"dtype": "bfloat16"},
    ]
    append_evaluation(tmp_path, {"stage": "fit", "global_step": 1, "timing": rows})
    timing = read_run(tmp_path).fit[0].timing
    groups = {name: [row.prompt_tokens for row in rows] for name, rows in timing_groups(timing)}
    assert groups == {
        "batch 1, 2 threads, float32": [64, 128],
        "batch 1, 2 threads, bfloat16": [64],
        "batch 4, 2 threads, float32": [256],
    }
    assert [row.prompt_tokens for row in main_timing(timing)] == [64, 128]
    assert main_timing(()) == []


def test_completions_are_compared_with_the_base():
    sample = Sample("t", "p", "a", {"base": "x", "predicted": "x", "corrected": "x "})
    assert [row[0] for row in sample_table(1, sample).rows] == [
        "Prompt",
        "Answer",
        "Base",
        "Predicted, same as base",
        "Corrected, differs from base",
    ]


def test_only_the_end_of_a_long_prompt_is_shown():
    lines = [f"line {place}" for place in range(100)]
    label, text = sample_table(1, Sample("t", "\n".join(lines), "a", {})).rows[0]
    assert label == "End of the prompt of 789 characters"
    assert text == Raw("\n".join(lines[-6:]))
    _, text = sample_table(1, Sample("t", "x" * 5000, "a", {})).rows[0]
    assert text == Raw("x" * 400)


def test_a_long_run_shows_evenly_spaced_evaluations(tmp_path):
    lines = [
        {"stage": "fit", "global_step": step, "tokens_seen": 10 * step, "text": {"kl": 1.0}}
        for step in range(1, 201)
    ]
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(tmp_path)
    rows = text_table(run.fit, progress_of(run)).rows
    assert len(rows) == 24
    assert [rows[0][0], rows[-1][0]] == ["10", "2,000"]
