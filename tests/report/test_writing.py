"""Reports on incomplete, odd and damaged runs, and what becomes of earlier reports."""

import errno
import json
import math
import os

import pytest

from lit_kvpred.errors import CheckpointError, ConfigurationError
from lit_kvpred.report import write_report, write_run_facts
from tests.report.fabricated import FACTS, evaluation, metrics_csv

NAMES = ("report.md", "report.html", "report.json")


@pytest.fixture
def small(tmp_path):
    """A run of one evaluation of the text: its report takes a moment only."""
    folder = tmp_path / "small"
    folder.mkdir()
    line = {"stage": "fit", "global_step": 1, "text": {"kl": 0.5, "consistency_keys": [0.0, 0.1]}}
    (folder / "evaluation.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def report_on(folder, lines=(), **files):
    folder.mkdir()
    if lines:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "evaluation.jsonl").write_text(text)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    page = write_report(folder)
    assert page == folder / "report.html"
    json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    return (folder / "report.md").read_text(encoding="utf-8")


def test_writes_three_files_and_nothing_else(run_folder):
    before = {path.name for path in run_folder.iterdir()}
    assert write_report(run_folder) == run_folder / "report.html"
    assert {path.name for path in run_folder.iterdir()} == before | set(NAMES)


def test_is_repeatable(small):
    page = write_report(small).read_bytes()
    assert b"<svg" in page
    assert write_report(small).read_bytes() == page


def test_facts_alone(tmp_path):
    text = report_on(tmp_path / "run", run_json=json.dumps(FACTS))
    assert "The time to first token has not been measured" in text
    assert "metrics.csv holds no loss" in text
    assert "holds no config.yaml" in text
    assert text.count("It was not measured during training.") == 4
    assert "No evaluation during training kept sample completions." in text
    assert "No evaluation during training ran with correction." in text


def test_metrics_alone(tmp_path):
    text = report_on(tmp_path / "run", metrics_csv=metrics_csv(60, 0.1))
    assert "holds no run.json" in text
    assert "Loss, mean over each twelfth of the training" in text


def test_one_evaluation_without_timing(tmp_path):
    line = evaluation(0, 300, 0.1)
    del line["timing"]
    text = report_on(tmp_path / "run", [line], run_json="{}")
    assert "One evaluation so far, so there is no curve to draw." in text
    assert "so there is no earlier one beside it" in text
    assert "No evaluation measured accuracy and time to first token together." in text


def test_a_command_without_training(tmp_path):
    text = report_on(tmp_path / "run", [evaluation(300, 300, 0.1, stage="validate")])
    assert "## Evaluation by the validate command" in text
    assert "With a prompt of 1,024 tokens" in text


def test_a_command_that_measured_nothing(tmp_path):
    text = report_on(tmp_path / "run", [{"stage": "test", "global_step": 3}])
    assert "This evaluation recorded no measure." in text


def _not_finite(value):
    if isinstance(value, dict):
        return {key: _not_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_not_finite(item) for item in value]
    return math.nan if isinstance(value, float) else value


def test_nothing_but_nan(tmp_path):
    lines = [_not_finite(evaluation(step, 300, 0.1)) for step in (0, 150, 300)]
    text = report_on(tmp_path / "run", lines, metrics_csv="step,train/loss\n1,nan\n")
    assert "nan" not in text.lower()
    assert "metrics.csv holds no loss" in text


def test_a_run_whose_loss_diverged_half_way(tmp_path):
    lines = [evaluation(0, 300, 0.1), _not_finite(evaluation(150, 300, 0.1))]
    text = report_on(tmp_path / "run", lines)
    assert "|     153,600 |  150 |         –" in text  # noqa: RUF001


def test_timings_without_base_or_conditions(tmp_path):
    line = {
        "stage": "fit",
        "global_step": 1,
        "timing": [
            {"prompt_tokens": 64, "kv_prediction": {"median": 0.5}},
            {"prompt_tokens": 128, "base": None},
        ],
        "accuracy": {"t": {"predicted": 0.5}},
    }
    text = report_on(tmp_path / "run", [line])
    assert "500 ms" in text


def test_comparison_with_itself_is_left_out(small):
    write_report(small, [small, small.parent / "." / small.name])
    assert "Comparison" not in (small / "report.md").read_text(encoding="utf-8")


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    folders = [tmp_path / parent / "version_0" for parent in "ab"]
    for folder in folders:
        write_run_facts(folder, {"seed": 1})
    write_report(folders[0], folders[1:])
    text = (folders[0] / "report.md").read_text(encoding="utf-8")
    assert "| a/version_0 |" in text
    assert "| b/version_0 |" in text


def test_a_damaged_run_keeps_its_earlier_report(small):
    write_report(small)
    before = [(small / name).read_bytes() for name in NAMES]
    with (small / "evaluation.jsonl").open("a") as file:
        file.write('{"stage": "fit", "glob')
    with pytest.raises(CheckpointError, match=r"evaluation\.jsonl, line 2"):
        write_report(small)
    assert [(small / name).read_bytes() for name in NAMES] == before


def test_a_full_disk_keeps_the_earlier_report(small, monkeypatch):
    write_report(small)
    before = [(small / name).read_bytes() for name in NAMES]
    (small / "config.yaml").write_text("seed: 2\n")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match="No space left on device; free some space"):
        write_report(small)
    assert [(small / name).read_bytes() for name in NAMES] == before
    assert not list(small.glob(".*"))


def test_a_folder_to_compare_with_must_be_a_run(small, tmp_path):
    with pytest.raises(ConfigurationError, match="other is not a run folder"):
        write_report(small, [tmp_path / "other"])
