from __future__ import annotations

import dataclasses

import pytest

from lit_kvpred.evaluation.prompts import PromptExample
from lit_kvpred.evaluation.unit_tests import UnitTests


def test_defaults():
    example = PromptExample("gsm8k", "Question: 1+1?\nAnswer:", ("2",), "last_number")
    assert (example.choices, example.gold, example.stop) == ((), 0, ())
    assert example.max_new_tokens == 32


def test_examples_are_values():
    example = PromptExample("t", "p", ("a",), "exact")
    assert example == dataclasses.replace(example)
    assert len({example, dataclasses.replace(example), dataclasses.replace(example, gold=1)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.prompt = "q"


def test_what_no_completion_could_answer_is_a_defect():
    with pytest.raises(AssertionError):
        PromptExample("t", "p", (), "exact")
    with pytest.raises(AssertionError):
        PromptExample("t", "p", (" a",), "choice", choices=(" a", " b"), gold=2)
    with pytest.raises(AssertionError):
        PromptExample("t", "p", ("a",), "unit_tests")
    with pytest.raises(AssertionError):
        PromptExample("t", "p", ("a",), "exact", unit_tests=UnitTests("", "pass"))
