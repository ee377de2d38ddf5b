"""The number of riding rows follows from measured step times, measured once."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation import slice_budget
from lit_kvpred.generation.slice_budget import cheapest_rows, slice_rows_within, step_seconds
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from tests.tiny_models import random_ids, tiny_model


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path))
    return tmp_path / "step_seconds"


def _model(kind: str = "prefix", **changes) -> KVPredictionModel:
    base = tiny_model("llama", **changes)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary).eval()


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(1.05, None), (1.2, 8), (2.0, 64), (2.9, 128), (3.5, 128), (100.0, 256)],
)
def test_the_least_time_a_row_within_the_budget(budget, expected):
    a_row = {8: 0.015, 16: 0.025, 64: 0.0124, 128: 0.012, 256: 0.011}
    seconds = {0: 1.0} | {rows: 1.0 + rows * each for rows, each in a_row.items()}
    assert cheapest_rows(seconds, budget) == expected


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
def test_steps_are_measured_once(kind, folder):
    model = _model(kind, max_position_embeddings=1024)
    ticks = itertools.count()
    seconds = step_seconds(model, clock=lambda: float(next(ticks)))
    assert seconds == dict.fromkeys((0, *slice_budget.SLICES), 1.0)
    (file,) = folder.iterdir()
    assert json.loads(file.read_text()).keys() == {str(m) for m in seconds}
    read = step_seconds(model, clock=lambda: pytest.fail("measured again"))
    assert read == seconds


def test_another_dtype_or_depth_is_measured_apart(folder):
    model = _model()
    slice_rows_within(model, 2.0)
    slice_rows_within(_model("pruned"), 2.0)
    model.base.to(torch.bfloat16)
    slice_rows_within(KVPredictionModel(model.base, build_auxiliary(model.base, "prefix")), 2.0)
    assert len(list(folder.iterdir())) == 3


def test_short_position_tables_measure_what_fits():
    assert set(step_seconds(_model(max_position_embeddings=64))) == {0, 8, 16}


@pytest.mark.parametrize("damage", ["", "[]", "{", "{}", '{"a": 1}'])
def test_a_damaged_file_is_measured_again(folder, damage):
    model = _model()
    step_seconds(model)
    (file,) = folder.iterdir()
    file.write_text(damage)
    assert 0 in step_seconds(model)
    assert "0" in json.loads(file.read_text())


def test_a_folder_that_takes_no_file_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path / "file"))
    assert 0 in step_seconds(_model())


def test_auto_slices_make_the_text_the_bases(monkeypatch):
    model, ids = _model(weight_scale=8.0), random_ids(1, 20)
    monkeypatch.setattr(
        "lit_kvpred.generation.slice_budget.step_seconds", lambda _: {0: 1.0, 8: 1.5, 16: 9.0}
    )
    settings = {"max_new_tokens": 9, "eos_ids": ()}
    auto = model.generate(ids, correction=Correction(threshold=1.1, slice_rows="auto"), **settings)
    by_hand = model.generate(ids, correction=Correction(threshold=1.1, slice_rows=8), **settings)
    assert auto.answers == by_hand.answers
    assert auto.stats.riding_rows == by_hand.stats.riding_rows == 19
    tight = Correction(threshold=1.1, slice_rows="auto", tpot_budget=1.1)
    assert model.generate(ids, correction=tight, **settings).stats.riding_rows == 0


@pytest.mark.parametrize("budget", [1.0, 0.0, float("nan")])
def test_a_budget_without_room_is_refused(budget):
    with pytest.raises(ConfigurationError, match="tpot_budget must be a number above 1"):
        Correction(slice_rows="auto", tpot_budget=budget)
