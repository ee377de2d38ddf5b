"""Which variants a sweep compares."""

from __future__ import annotations

import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.sweep_grid import correction_grid, sweep_variants
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse, FSparse


def test_every_combination_once_thresholds_fastest():
    grid = correction_grid(
        policies=["retract", "hold"], periods=[4, 8], thresholds=[0.1, 0.3],
        drafts=[CSparse(0.5), CSparse(0.25)], tree_widths=[1, 2],
    )  # fmt: skip
    assert len(grid) == len(set(grid)) == 32
    assert [c.threshold for c in grid[:4]] == [0.1, 0.3, 0.1, 0.3]
    assert {(c.tree_width, c.period, c.policy) for c in grid} == {
        (w, p, q) for w in (1, 2) for p in (4, 8) for q in ("retract", "hold")
    }


def test_an_ablation_has_eight_rows_for_each_setting():
    grid = correction_grid(
        policies=["retract"], periods=[4], thresholds=[0.1, 0.3], drafts=[CSparse()], ablation=True
    )
    switches = [(c.kv_rewriting, c.rollback, c.interleave) for c in grid]
    assert len(grid) == 16
    assert len(set(switches[:8])) == 8
    assert switches[0] == (True, True, True)
    assert switches[7] == (False, False, False)
    assert [c.threshold for c in grid] == 8 * [0.1] + 8 * [0.3]


@pytest.mark.parametrize(
    "settings",
    [
        {"drafts": [CSparse()], "tree_widths": [2], "ablation": True},
        {"drafts": [None], "ablation": True},
        {"drafts": [None], "tree_widths": [2]},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings):
    with pytest.raises(ConfigurationError):
        correction_grid(policies=["retract"], periods=[4], thresholds=[0.1], **settings)


def test_exact_prompts_bring_sparse_and_speculative_decoding_for_each_draft():
    drafts = [CSparse(0.5), FSparse(0.5)]
    grid = [Correction(p, t, draft=d) for d in drafts for p in (4, 8) for t in (0.1, 0.3)]
    variants = sweep_variants(grid, exact_prompt=True, new_tokens=12)
    systems = [v.system for v in variants]
    assert systems == 2 * ["sparse", "speculative", "speculative"] + 8 * ["sirius"]
    assert [v.correction for v in variants[6:]] == grid
    for sparse, *speculative in (variants[:3], variants[3:6]):
        assert sparse.correction.threshold == 0
        assert sparse.correction.period > 12
        assert {v.draft for v in speculative} == {sparse.draft}
        assert [v.correction.period for v in speculative] == [4, 8]
        assert {v.correction.acceptance for v in speculative} == {"lossless"}


def test_predicted_prompts_are_corrected_with_and_without_drafts():
    dense, sparse = Correction(), Correction(draft=CSparse())
    variants = sweep_variants([dense, sparse], exact_prompt=False, new_tokens=12)
    assert [v.system for v in variants] == ["predicted", "catch_up", "sirius_catch_up"]
    assert [v.correction for v in variants] == [None, dense, sparse]
