"""Accuracy against effective density: lines over thresholds, and the references."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.figure import Figure

from lit_kvpred.report.plots import on_paper
from lit_kvpred.report.sweep_plot import draw_sweep, sweep_charts, sweep_panels
from lit_kvpred.report.sweep_records import sweep_rows
from tests.report.fabricated import sweep_record, sweep_records


def painted(records, panel=0):
    axes = Figure().add_subplot()
    sweep_panels(sweep_rows(records))[panel][1](axes, on_paper)
    return axes


def test_a_line_a_setting_over_its_thresholds_and_a_mark_a_reference():
    axes = painted(sweep_records())
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"neurons kept 0.5", "neurons kept 0.3"} <= set(lines)
    assert {"Base", "Sparse alone", "Speculative decoding"} <= set(lines)
    line = lines["neurons kept 0.5"]
    # Stricter thresholds cost density.
    assert list(line.get_xdata()) == sorted(line.get_xdata())
    assert len(line.get_xdata()) == 4
    assert list(line.get_ydata())[-1] == pytest.approx(0.48)
    assert list(lines["Base"].get_xdata()) == [1.0]
    assert list(lines["Sparse alone"].get_xdata()) == [0.71, 0.6]
    notes = [note.get_text() for note in axes.texts]
    # Named on one line only, where they don't cover each other; 0.3 is a reference's keep as well.
    assert notes.count("0.05") == 1
    assert notes.count("0.3") == 3
    assert axes.get_xscale() == "log"


def test_settings_of_an_ablation_are_named_by_what_they_lack():
    rows = [
        sweep_record("sirius", effective_density=0.8, aal=5.0, rollback=r, interleave=i)
        for r in (True, False)
        for i in (True, False)
    ]
    labels = [line.get_label() for line in painted(rows).get_lines()]
    assert labels == ["Sirius", "no interleave", "no rollback", "no rollback, no interleave"]


def test_a_system_of_another_version_goes_by_its_own_name():
    rows = [sweep_record("tomorrow", effective_density=0.8, aal=5.0, threshold=None)]
    assert [line.get_label() for line in painted(rows).get_lines()] == ["tomorrow"]


def test_without_scores_agreement_alone_is_drawn():
    records = [row | {"accuracy": None} for row in sweep_records()]
    (chart,) = sweep_charts("x", sweep_rows(records))
    assert chart.title == "next_line: same tokens as the base against effective density"
    assert len(sweep_charts("x", sweep_rows(sweep_records()))) == 2


@pytest.mark.parametrize("score", [0.0, None])
def test_a_score_that_nobody_has_is_not_drawn(score):
    records = [row | {"accuracy": score} for row in sweep_records()]
    assert len(sweep_charts("x", sweep_rows(records))) == 1


def test_without_density_nothing_is_drawn():
    base, row = sweep_record("base", effective_density=1.0), sweep_record("catch_up")
    assert sweep_charts("x", sweep_rows([base, row])) == []


def test_a_page_decides_on_the_colours_and_a_file_holds_them(tmp_path):
    rows = sweep_rows(sweep_records() + sweep_records("gsm8k"))
    (svg, _) = (chart.svg for chart in sweep_charts("x", rows[:13]))
    ET.fromstring(svg)
    assert "var(--plot-base)" in svg
    assert "#0102" not in svg
    draw_sweep(rows, tmp_path / "sweep.svg")
    text = (tmp_path / "sweep.svg").read_text()
    assert "var(" not in text
    assert not re.search(r"#0102", text)
    assert "#4f5b67" in text
    for title in ("next_line: score (exact)", "gsm8k: same tokens as the base"):
        assert f">{title}<" in text
    # Each task has a legend of its own.
    assert text.count(">neurons kept 0.5<") == 2
    draw_sweep(rows, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
