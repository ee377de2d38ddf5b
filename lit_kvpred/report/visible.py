"""Text of prompts and models with every character visible, and none that acts on the page."""

from __future__ import annotations

import re
from collections.abc import Callable

# Controls, spaces of other widths, separators, what turns the direction of writing, and halves of
# surrogate pairs, which no file can hold.
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f\u2060-\u206f\u3000"
    "\ud800-\udfff\ufeff"
)
_SPECIAL = re.compile(rf"^ +| +$| {{2,}}|[\t\n]|[{_UNSEEN}]", re.MULTILINE)


def visible(text: str, plain: Callable[[str], str], mark: Callable[[str], str]) -> str:
    """Draw what cannot be seen: spaces at the ends of a line or in a row, tabs, controls.

    Args:
        text: Any string.
        plain: Writes a stretch of ordinary characters.
        mark: Writes the sign that stands for an unseen character: · → ↵ or an escape sequence.

    Returns:
        What `plain` and `mark` wrote, in order.
    """
    parts: list[str] = []
    end = 0
    for found in _SPECIAL.finditer(text):
        parts += [plain(text[end : found.start()]), mark(_drawn(found.group()))]
        end = found.end()
    return "".join([*parts, plain(text[end:])])


def _drawn(unseen: str) -> str:
    if unseen[0] == " ":
        return "·" * len(unseen)
    if unseen == "\t":
        return "→"
    if unseen == "\n":
        return "↵"
    return f"\\u{ord(unseen):04x}"
