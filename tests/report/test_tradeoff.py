"""Score against time to first token."""

import pytest

from lit_kvpred.report.document import Gallery, Paragraph
from lit_kvpred.report.records import append_evaluation, read_run
from lit_kvpred.report.tradeoff import accuracy_over_time, tradeoff_blocks
from tests.report.fabricated import evaluation


def fit_lines(folder, *records):
    for record in records:
        append_evaluation(folder, record)
    return read_run(folder).fit


def test_anchors_are_taken_once_and_the_predicted_moves(tmp_path):
    lines = fit_lines(tmp_path, *(evaluation(step, 300, 0.1) for step in (0, 150, 300)))
    timed = {line.global_step: line.timing[-1] for line in lines}
    points = accuracy_over_time(lines, "next_line/256", timed)
    # Edit similarity where a task has it: exact matches alone may all be 0 on few prompts.
    assert points["base"] == [(pytest.approx(0.6344), 0.81)]
    assert points["auxiliary"] == [(pytest.approx(0.9 * 0.35768), 0.31)]
    assert [score for _, score in points["predicted"]] == pytest.approx([0.6, 0.675, 0.75])
    gsm8k = accuracy_over_time(lines, "gsm8k", timed)
    assert [score for _, score in gsm8k["predicted"]] == [0.0625, 0.125, 0.1875]
    # The first token comes from predicted rows, corrected or not.
    assert [seconds for seconds, _ in points["corrected"]] == pytest.approx([0.35768] * 3)
    assert accuracy_over_time(lines, "no such task", timed) == {}


def test_plots_are_at_the_longest_prompt_that_every_evaluation_timed(tmp_path):
    first, second = evaluation(0, 300, 0.1), evaluation(300, 300, 0.1)
    del second["timing"][-1]
    (gallery,) = tradeoff_blocks(fit_lines(tmp_path, first, second))
    assert isinstance(gallery, Gallery)
    assert [figure.title.split(":")[0] for figure in gallery.figures] == ["next_line/256", "gsm8k"]
    (table,) = gallery.numbers
    assert "at 512 prompt tokens" in table.title
    assert ("gsm8k", "last number", "Predicted", "194 ms", "18.8 %") in table.rows
    assert ("next_line/256", "edit similarity", "Base", "327 ms", "81.0 %") in table.rows


def test_measures_of_different_evaluations_are_not_joined(tmp_path):
    first, second = evaluation(0, 300, 0.1), evaluation(300, 300, 0.1)
    del first["timing"]
    del second["accuracy"]
    (block,) = tradeoff_blocks(fit_lines(tmp_path, first, second))
    assert isinstance(block, Paragraph)
