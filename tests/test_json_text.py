"""JSON that is damaged in any way is one kind of error."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.json_text import parse_json

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**200), 10**200) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(_VALUES)
def test_it_reads_what_json_writes(value):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[1,\n2", 2, "Expecting"),
        ("", 1, "Expecting value"),
        ("\ufeff[1]", 1, "Unexpected UTF-8 BOM"),
        ("[" * 200_000, 1, "nested too deeply"),
        ('{"a":' * 200_000, 1, "nested too deeply"),
        ("[1,\n" + "7" * 400 + "]", 2, "too many digits"),
        ("[1,\n\n-" + "7" * 5000 + "]", 3, "too many digits"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, line, message):
    with pytest.raises(json.JSONDecodeError, match=message) as error:
        parse_json(text)
    assert error.value.lineno == line


@given(st.text(alphabet='[]{}",:0123456789eE.-+ntrufalse\\\n ', max_size=40))
def test_nothing_else_is_raised(text):
    with contextlib.suppress(json.JSONDecodeError):
        parse_json(text)
