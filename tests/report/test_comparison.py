"""Runs beside each other at equal tokens."""

import json

import pytest

from lit_kvpred.report.comparison import MEASURES, at_equal_tokens, comparison_section
from lit_kvpred.report.document import Paragraph
from lit_kvpred.report.records import append_evaluation, read_run, write_run_facts

NAMES = [measure.name for measure in MEASURES]


def run_with(folder, kl_by_tokens, facts=None):
    for step, (tokens, kl) in enumerate(kl_by_tokens.items()):
        text = {"kl": kl, "agreement": 1 - kl / 10, "cross_entropy": 2 + kl}
        append_evaluation(
            folder, {"stage": "fit", "global_step": step, "tokens_seen": tokens, "text": text}
        )
    write_run_facts(folder, facts or {})
    return read_run(folder)


def test_values_at_equal_tokens_are_read_between_evaluations(tmp_path):
    short = run_with(tmp_path / "short", {0: 4.0, 100: 2.0})
    long = run_with(tmp_path / "long", {0: 3.0, 80: 2.0, 160: 1.0})
    equal = at_equal_tokens([short, long])
    assert equal.tokens == 100
    values = [dict(zip(NAMES, row, strict=True)) for row in equal.values]
    assert values[0]["Validation KL"] == 2.0
    assert values[1]["Validation KL"] == pytest.approx(1.75)
    assert values[1]["Agreement"] == pytest.approx(0.825)
    assert values[1]["Cross-entropy on predicted rows"] == pytest.approx(3.75)


def test_a_measure_that_ends_earlier_decides(tmp_path):
    run = run_with(tmp_path / "a", {0: 4.0, 100: 2.0})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.csv").write_text(
        "step,tokens_seen,val/loss\n0,0,8.0\n1,60,5.0\n2,90,\n"
    )
    other = run_with(tmp_path / "b", {0: 3.0, 60: 2.5, 90: 1.5})
    equal = at_equal_tokens([run, other])
    assert equal.tokens == 60
    assert dict(zip(NAMES, equal.values[1], strict=True))["Validation loss"] == 5.0


def test_there_is_nothing_equal_to_a_run_without_evaluations(tmp_path):
    run = run_with(tmp_path / "a", {0: 1.0, 100: 0.5})
    empty = run_with(tmp_path / "b", {}, {"seed": 1})
    assert at_equal_tokens([run]) is None
    assert at_equal_tokens([run, empty]) is None


def test_what_must_not_be_compared_is_said(tmp_path):
    runs = [
        run_with(
            tmp_path / name,
            {0: 1.0, 100: 0.5},
            {"base": {"fingerprint": name}, "objective": {"base_weight": ord(name)}},
        )
        for name in "ab"
    ]
    runs.append(run_with(tmp_path / "uncounted", {}, {"base": {"fingerprint": "a"}}))
    texts = [
        block.text for block in comparison_section(runs).blocks if isinstance(block, Paragraph)
    ]
    assert any("different bases" in text for text in texts)
    assert any("different objectives" in text for text in texts)
    assert any("uncounted" in text for text in texts)


def test_the_page_holds_the_curves_of_all_runs(written):
    assert "Validation KL by tokens seen" in written.html
    assert written.html.count("pruned &lt;b&gt;half") >= 4
    data = json.loads(written.json)
    assert [other["name"] for other in data["comparisons"]] == ["prefix8", "pruned <b>half"]
    assert data["equal_tokens"]["tokens"] == 240 * 1024
    assert set(data["equal_tokens"]["runs"]) == {"prefix15", "prefix8", "pruned <b>half"}
