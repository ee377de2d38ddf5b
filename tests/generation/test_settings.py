from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.sampling import Sampling
from lit_kvpred.generation.settings import GenerationSettings
from tests.tiny_models import byte_tokenizer, tiny_model


def test_defaults():
    settings = GenerationSettings()
    assert settings.max_new_tokens == 128
    assert settings.sampling == Sampling(temperature=0.0)
    assert not settings.static_cache
    assert not settings.release_auxiliary


def test_settings_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GenerationSettings().max_new_tokens = 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": 3}, "sampling must be a Sampling"),
        ({"sampling": None}, "sampling must be a Sampling"),
        ({"static_cache": "x"}, "static_cache must be True or False, got 'x'"),
        ({"keep_context": 1}, "keep_context must be True or False, got 1"),
        ({"stop_after_text": None}, "stop_after_text must be True or False, got None"),
        ({"release_auxiliary": 0.0}, "release_auxiliary must be True or False, got 0.0"),
        ({"eos_ids": "x"}, "eos_ids must be whole numbers, got 'x'"),
        ({"eos_ids": [1.5]}, "eos_ids must be whole numbers, got 1.5"),
        ({"eos_ids": 1.5}, "eos_ids must be whole numbers, got 1.5"),
        ({"eos_ids": [True]}, "eos_ids must be whole numbers, got True"),
    ],
)
def test_settings_of_another_type_are_refused(settings, message):
    with pytest.raises(ConfigurationError) as error:
        GenerationSettings(**settings)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("eos_ids", "expected"),
    [
        (None, {2}),
        ((), set()),
        ([5, 6], {5, 6}),
        ({5, 6}, {5, 6}),
        (np.array([5, 6]), {5, 6}),
        (5, {5}),
        (-1, {-1}),
    ],
)
def test_end_tokens_are_the_bases_unless_given(eos_ids, expected):
    rule = GenerationSettings(eos_ids=eos_ids).stop_rule(tiny_model("llama"))
    assert rule.eos_token_ids == expected


def test_the_rule_takes_length_and_stop_strings():
    settings = GenerationSettings(
        max_new_tokens=7, stop_strings=("ab",), tokenizer=byte_tokenizer()
    )
    rule = settings.stop_rule(tiny_model("llama"))
    assert rule.is_complete([120, 97, 98])
    assert not rule.is_complete([120] * 6)
    assert rule.is_complete([120] * 7)


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"stop_strings": ("x",)}])
def test_settings_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        GenerationSettings(**wrong).stop_rule(tiny_model("llama"))
