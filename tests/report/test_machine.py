"""The report as data."""

import json

import pytest

from tests.report.fabricated import TOKENS_A_STEP


@pytest.fixture(scope="module")
def data(written):
    return json.loads(written.json, parse_constant=pytest.fail)


def test_key_figures_and_evaluations_are_numbers(data):
    assert data["name"] == "prefix15"
    assert data["key_figures"]["timing"]["speedup"] == pytest.approx(0.6344 / 0.35768)
    assert len(data["evaluations"]) == 8
    last = data["evaluations"][-1]
    assert last["stage"] == "test"
    assert last["accuracy"][1]["scores"]["corrected"] == 0.25
    assert last["samples"][1]["completions"]["predicted"] == ""
    assert data["facts"]["seed"] == 1234


def test_curves_are_against_tokens(data):
    assert data["progress"] == "tokens seen"
    assert [x for x, _ in data["curves"]["val/loss"]] == [
        step * TOKENS_A_STEP for step in range(50, 301, 50)
    ]
    assert "tokens_seen" not in data["curves"]
