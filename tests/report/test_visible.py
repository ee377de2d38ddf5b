"""Every character of a prompt or completion can be seen."""

import pytest

from lit_kvpred.report.visible import visible


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("plain text", "plain text"),
        (" x ", "·x·"),
        ("a  b", "a··b"),
        ("    def f():\n\treturn 1\n", "····def f():↵→return 1↵"),
        ("a \nb", "a·↵b"),
        ("\x1b[31m\x00\r", "\\u001b[31m\\u0000\\u000d"),
        ("a\u202eb\u00a0c\ufeff", "a\\u202eb\\u00a0c\\ufeff"),
        ("\ud800", "\\ud800"),
        ("日本語 é 👩", "日本語 é 👩"),
        ("", ""),
    ],
)
def test_unseen_characters_are_drawn(text, drawn):
    assert visible(text, str, str) == drawn


def test_marks_and_text_are_told_apart():
    assert visible("a\t b", lambda text: f"<{text}>", lambda sign: f"[{sign}]") == "<a>[→]< b>"
