from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.evaluation.answers import (
    contains_answer,
    cut_at_stop,
    edit_similarity,
    exact_match,
    last_number_match,
    normalise,
    normalised_match,
    score,
)
from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.unit_tests import UnitTests


def test_normalise():
    assert normalise("  The  U.S.A.,\n(1969)! ") == "the usa 1969"
    assert normalise("?!") == ""


@pytest.mark.parametrize(
    ("prediction", "matches"),
    [("return x", True), ("    return x\n", True), ("return  x", False), ("Return x", False)],
)
def test_exact_match(prediction, matches):
    assert exact_match(prediction, ["pass", "  return x"]) is matches


@pytest.mark.parametrize(
    ("prediction", "matches"),
    [(" mark twain!", True), ("Mark  Twain", True), ("Twain", False), ("", False)],
)
def test_normalised_match(prediction, matches):
    assert normalised_match(prediction, ["Samuel Clemens", "Mark Twain"]) is matches


@pytest.mark.parametrize(
    ("prediction", "answer", "matches"),
    [
        ("so 16 - 3 = 13, and 13 * 2 = 26.", "26", True),
        ("#### 1,200", "1200", True),
        ("that is $18.00.", "18", True),
        ("from 5-3", "3", True),
        ("it falls to -7 degrees", "-7", True),
        ("it falls to -7 degrees", "7", False),
        ("12 apples in 3 baskets", "12", False),
        ("1, 2, 3", "3", True),
        ("0.50", "0.5", True),
        ("version 2.5.1", "2.5", False),
        ("none", "0", False),
        ("", "0", False),
    ],
)
def test_last_number_match(prediction, answer, matches):
    assert last_number_match(prediction, [answer]) is matches


@pytest.mark.parametrize(
    ("prediction", "matches"),
    [
        ("It was Paris, of course", True),
        ("paris", True),
        ("Parisian", False),
        ("New York City!", True),
        ("York", False),
        ("", False),
    ],
)
def test_contains_answer(prediction, matches):
    assert contains_answer(prediction, ["Paris", "New York", "?"]) is matches


@pytest.mark.parametrize(
    ("a", "b", "similarity"),
    [
        ("kitten", "sitting", 1 - 3 / 7),
        ("", "", 1.0),
        ("abc", "", 0.0),
        ("return x", "return y", 7 / 8),
        ("a b", "ab", 2 / 3),
    ],
)
def test_edit_similarity(a, b, similarity):
    assert edit_similarity(a, b) == pytest.approx(similarity)


@given(st.text(max_size=12), st.text(max_size=12))
def test_edit_similarity_is_symmetric_and_bounded(a, b):
    similarity = edit_similarity(a, b)
    assert similarity == pytest.approx(edit_similarity(b, a))
    assert 0.0 <= similarity <= 1.0
    assert (similarity == 1.0) == (a == b)


def test_the_first_stop_text_cuts():
    assert cut_at_stop("one. two\nthree", ("\n", ".")) == "one"
    assert cut_at_stop("one", ("\n",)) == "one"
    assert cut_at_stop("\none", ("\n",)) == ""


@pytest.mark.parametrize(
    ("scoring", "answers", "right", "wrong"),
    [
        ("exact", ("  x = f(y)",), "  x = f(y)\n  y = 2", "  X = f(y)\n"),
        ("normalised", ("Mark Twain",), " mark twain\nQuestion: 3", " twain\nmark twain"),
        ("last_number", ("26",), " 13 * 2 = 26\n27", " 26 + 1 = 27\n26"),
        ("contains", ("Paris",), " it is Paris\nor not", " it is not\nParis"),
        ("choice", (" the moon",), " the moon", " the sun"),
    ],
)
def test_score(scoring, answers, right, wrong):
    example = PromptExample(
        "task", "prompt", answers, scoring, choices=(" the sun", *answers), gold=1, stop=("\n",)
    )
    assert score(example, right) == 1.0
    assert score(example, wrong) == 0.0


def test_leading_white_space_is_no_part_of_a_line():
    example = PromptExample(
        "line", "if x:", ("    return 1",), "exact", stop=("\n",), stop_after_text=True
    )
    assert score(example, "\n\n    return 1\n    return 2") == 1.0
    assert score(example, "\n    return 2\n    return 1") == 0.0


def test_unit_tests_judge_what_comes_before_the_first_stop_text(monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    tests = UnitTests("def one():\n", "assert one() == 1\n")
    example = PromptExample(
        "code", "def one():\n", ("    return 1",), "unit_tests", unit_tests=tests, stop=("\nprint",)
    )
    assert score(example, "    return 1\nprint(one(") == 1.0
    assert score(example, "    return 1\n)") == 0.0
    assert score(example, "    return 2\nprint(one(") == 0.0
