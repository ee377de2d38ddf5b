"""Metrics that add up over answers, whole batches and processes."""

from __future__ import annotations

import pytest

from lit_kvpred.evaluation.accuracy import CorrectionStatistics, TaskAccuracy
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.generation.statistics import GenerationStats
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse

GENERATE = PromptExample("copy", "def f(x): return", (" x",), "exact")
CHOOSE = PromptExample("pick", "One and one is", (" two",), "choice", choices=(" two", " three"))


def test_accuracy_adds_up_by_task_and_system():
    metric = TaskAccuracy([GENERATE, CHOOSE])
    metric.update("base", GENERATE, " x")
    metric.update("base", GENERATE, " y")
    metric.update("predicted", GENERATE, " xyz")
    metric.update("base", CHOOSE, " two")
    entries = metric.compute()
    assert entries["copy"]["base"] == 0.5
    assert entries["copy"]["predicted"] == 0.0
    assert entries["copy"]["n"] == 2
    assert entries["copy"]["edit_similarity"]["predicted"] == pytest.approx(1 / 3)
    assert "corrected" not in entries["copy"]
    assert entries["pick"] == {"metric": "choice", "n": 1, "base": 1.0}


def test_nothing_counted_is_none():
    measured = CorrectionStatistics().compute()
    assert measured.pop("drafted") == 0
    assert set(measured.values()) == {None}


def test_dense_drafts_of_a_predicted_prompt():
    metric = CorrectionStatistics(Correction())
    metric.update(GenerationStats(drafted=4, accepted=3, retracted=1, time_to_exact_s=1.0))
    second = {"drafted": 6, "accepted": 1, "retracted": 4, "unrecoverable": 1}
    metric.update(GenerationStats(**second, time_to_exact_s=3.0))
    measured = metric.compute()
    assert measured["aal"] == 3.0
    assert measured["accepted_rate"] == 0.4
    assert measured["retraction_rate"] == 0.5
    assert measured["unrecoverable_rate"] == 0.1
    assert measured["effective_density"] is measured["rejected_at"] is None
    assert measured["time_to_exact_s"] == {"median": 2.0, "q25": 1.5, "q75": 2.5, "n": 2}
    metric.reset()
    assert metric.compute()["aal"] is None


def test_sparse_drafts_of_whole_batches():
    metric = CorrectionStatistics(Correction(period=4, draft=CSparse()), density=0.6)
    metric.update(
        GenerationStats(drafted=9, accepted=6, advances=[4, 2], rejected_at=[0, 2, 1]), answers=2
    )
    # An answer that ended in its first period advanced by no whole one.
    metric.update(GenerationStats(drafted=2, accepted=1, rejected_at=[0, 1, 0]), answers=1)
    measured = metric.compute()
    assert measured["aal"] == 3.0
    assert measured["effective_density"] == pytest.approx((3 * 0.6 + 1) / 3)
    assert measured["rejected_at"] == [0, 3, 1]
    assert measured["accepted_rate"] == 7 / 11
    metric.reset()
    metric.update(GenerationStats(drafted=2, accepted=1, rejected_at=[0, 1, 0]))
    assert metric.compute()["aal"] is metric.compute()["effective_density"] is None
    assert metric.compute()["rejected_at"] == [0, 1, 0]


def test_a_dense_draft_advances_over_whole_batches():
    metric = CorrectionStatistics(Correction())
    metric.update(GenerationStats(drafted=8, accepted=6), answers=2)
    assert metric.compute()["aal"] == 4.0
