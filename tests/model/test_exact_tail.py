"""The tail's length as a number of rows and as a fraction of the prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.exact_tail import require_exact_tail, tail_behind, tail_rows
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import describe_batch
from tests.tiny_models import random_ids, tiny_model


@pytest.mark.parametrize(
    ("exact_tail", "n_rows", "rows"),
    [
        (1, 40, 1),
        (16, 40, 16),
        (16, 9, 9),
        (0.125, 9, 9),
        (0.125, 40, 16),
        (0.125, 129, 16),
        (0.125, 512, 64),
        (0.5, 1000, 500),
    ],
)
def test_rows_of_a_tail(exact_tail, n_rows, rows):
    assert tail_rows(exact_tail, n_rows) == rows


@pytest.mark.parametrize("exact_tail", [1, 5, 40, 0.01, 0.1, 0.125, 1 / 3, 0.5, 0.9])
def test_a_tail_behind_predicted_rows_is_the_shortest_that_leaves_them(exact_tail):
    for predicted in range(1, 300):
        rows = tail_behind(exact_tail, predicted)
        assert tail_rows(exact_tail, predicted + rows) == rows
        assert predicted + rows - 1 - tail_rows(exact_tail, predicted + rows - 1) != predicted


@pytest.mark.parametrize(
    "exact_tail",
    [0, -1, True, 0.0, 1.0, 1.5, float("nan"), "8", None, np.float32(0.5), np.int64(4)],
)
def test_other_tails_are_refused(exact_tail):
    with pytest.raises(ConfigurationError, match="tail must be a whole number of at least 1 or a"):
        require_exact_tail("tail", exact_tail)


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@torch.no_grad()
def test_the_fraction_of_a_prompt_runs_on_the_rows_before_it(kind, tmp_path):
    base = tiny_model("llama", weight_scale=8.0)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    model, ids = KVPredictionModel(base, auxiliary, exact_tail=0.25), random_ids(1, 80)
    sequences = describe_batch(ids, None)
    predicted = model.predict(model.read_auxiliary(ids, sequences)[slice(60)])
    expected = model.continue_from(predicted, ids, sequences)[:, -1]
    prefill = model.prefill(ids)
    assert prefill.predicted_rows == 60
    torch.testing.assert_close(prefill.logits, expected, atol=1e-4, rtol=1e-4)
    model.save_pretrained(tmp_path / "artefact")
    assert KVPredictionModel.from_pretrained(tmp_path / "artefact", base).exact_tail == 0.25
