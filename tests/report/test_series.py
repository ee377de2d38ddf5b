"""Curves against tokens seen."""

import math

import pytest

from lit_kvpred.report.records import read_run
from lit_kvpred.report.series import Progress, progress_of, spaced, thinned, value_at
from tests.report.fabricated import TOKENS_A_STEP


def test_progress_of_a_run_is_in_tokens(run_folder):
    progress = progress_of(read_run(run_folder))
    assert progress.unit == "tokens seen"
    assert progress.at(0) == 0
    assert progress.at(300) == 300 * TOKENS_A_STEP
    assert progress.of(((5, 1.5), (7, 1.0))) == [(5 * 1024, 1.5), (7 * 1024, 1.0)]


def test_progress_is_linear_between_and_beyond_what_is_known():
    progress = Progress("tokens seen", ((10, 100.0), (20, 400.0)))
    assert progress.at(5) == 50
    assert progress.at(15) == 250
    assert progress.at(40) == 800


def test_progress_without_tokens_is_in_steps(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,train/loss\n3,1.0\n")
    (tmp_path / "evaluation.jsonl").write_text(
        '{"stage": "fit", "global_step": 0, "tokens_seen": 0}\n'
    )
    progress = progress_of(read_run(tmp_path))
    assert progress.unit == "optimiser steps"
    assert progress.at(3) == 3


def test_thinning_averages_pieces_and_keeps_short_curves():
    points = [(float(x), float(x % 2)) for x in range(10)]
    assert thinned(points, 10) == points
    assert thinned(points, 5) == [(0.5, 0.5), (2.5, 0.5), (4.5, 0.5), (6.5, 0.5), (8.5, 0.5)]
    assert len(thinned([(float(x), 0.0) for x in range(1001)], 7)) == 7


def test_spacing_keeps_the_ends():
    assert spaced(range(5), 5) == [0, 1, 2, 3, 4]
    assert spaced(range(101), 5) == [0, 25, 50, 75, 100]


def test_value_between_points():
    points = [(0.0, 4.0), (10.0, 2.0), (30.0, 1.0)]
    assert value_at(points, 10.0) == 2.0
    assert value_at(points, 20.0) == 1.5
    assert value_at(points, 0.0) == 4.0
    assert math.isnan(value_at(points, 31.0))
    assert math.isnan(value_at([], 1.0))
    assert value_at(points, 2.5) == pytest.approx(3.5)
