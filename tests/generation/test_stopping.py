from __future__ import annotations

import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.stopping import StopRule, eos_token_ids
from tests.tiny_models import byte_tokenizer, tiny_model


def _first_stop(rule: StopRule, tokens: list[int]) -> int | None:
    """Length at which an answer that grows token by token is complete."""
    lengths = (n for n in range(1, len(tokens) + 1) if rule.is_complete(tokens[:n]))
    return next(lengths, None)


def test_any_end_token_ends_an_answer():
    rule = StopRule([2, 9], 10)
    assert _first_stop(rule, [5, 9, 2]) == 2
    assert _first_stop(rule, [2]) == 1
    assert _first_stop(rule, [5, 6, 7]) is None


def test_the_longest_answer():
    rule = StopRule([], 3)
    assert _first_stop(rule, [4, 4, 4, 4]) == 3
    assert rule.is_complete([4] * 5)


def test_an_empty_answer_is_not_complete():
    assert not StopRule([2], 1, ["x"], byte_tokenizer()).is_complete([])


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one\ntwo\n\nthree", ["\n\n"], "one\ntwo\n\n"),
        ("one\ntwo", ["\n\n"], None),
        ("abcQ: d", ["Q:", "bc"], "abc"),
        ("x = 1 # é end", ["é"], "x = 1 # é"),
        ("Q: Q", ["Q: "], "Q: "),
        ("naïve", ["ïv"], "naïv"),
    ],
)
def test_a_stop_string_ends_an_answer_as_soon_as_it_is_there(text, stops, kept):
    tokenizer = byte_tokenizer()
    rule = StopRule([], 100, stops, tokenizer)
    end = _first_stop(rule, tokenizer(text)["input_ids"])
    assert end == (None if kept is None else len(kept.encode()))


def test_a_stop_string_inside_a_token():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["end. Next"])
    rule = StopRule([], 100, [". N"], tokenizer)
    assert _first_stop(rule, [104, 105, 256, 104]) == 3


def test_stop_strings_come_next_to_end_tokens_and_length():
    tokenizer = byte_tokenizer()
    rule = StopRule([2], 4, ["ab"], tokenizer)
    assert _first_stop(rule, tokenizer("xaby")["input_ids"]) == 3
    assert _first_stop(rule, [*tokenizer("x")["input_ids"], 2]) == 2
    assert _first_stop(rule, tokenizer("xxxxx")["input_ids"]) == 4


@pytest.mark.parametrize("length", [0, -3])
def test_an_answer_of_no_token_is_refused(length):
    with pytest.raises(ConfigurationError, match=f"at least 1, got {length}"):
        StopRule([], length)


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ConfigurationError, match="pass `tokenizer`"):
        StopRule([], 5, ["x"])


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ConfigurationError, match="stop string is empty"):
        StopRule([], 5, ["x", ""], byte_tokenizer())


@pytest.mark.parametrize(("given", "expected"), [(2, [2]), ([2, 7], [2, 7]), (None, [])])
def test_end_tokens_of_a_model(given, expected):
    base = tiny_model("llama")
    base.generation_config.eos_token_id = given
    assert eos_token_ids(base) == expected


def test_stop_strings_may_wait_for_something_visible():
    class Letters:
        def decode(self, tokens):
            return "".join(chr(t) for t in tokens)

    rule = StopRule([], 99, ["\n"], Letters(), stop_after_text=True)
    text = "\n\n  ab\n"
    complete = [rule.is_complete([ord(c) for c in text[:n]]) for n in range(1, len(text) + 1)]
    assert complete == [False] * (len(text) - 1) + [True]


def test_one_string_instead_of_a_list_is_refused():
    with pytest.raises(ConfigurationError, match="a list of texts"):
        StopRule([], 9, "ab", object())
