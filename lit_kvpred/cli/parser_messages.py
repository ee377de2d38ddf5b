"""What the command line's parser says about a wrong value, in one short line."""

from __future__ import annotations

import re
from collections.abc import Iterator

_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_UNKNOWN = re.compile(r"Option '([^']+)' is not accepted")
_ONE_TYPE = re.compile(r"Expected an? (?P<types>.*?)\. Got value: (?P<value>[^\n]*)", re.DOTALL)
_UNION = re.compile(
    r".*?any of the Union subtypes\s+Subtypes: \[(?P<types>[^\n]*)\]\n.*Given value: (?P<value>.*)",
    re.DOTALL,
)
_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_CHOICES = re.compile(r"(?:typing\.)?Literal\[([^]]*)\]")
_DRAFT = "evaluation.correction.draft"
_LONGEST = 80


def short_message(message: str) -> str:
    """The setting, what it may be and what it was set to; other messages on one line.

    Args:
        message: Of jsonargparse's `ArgumentError`, which for a setting of several types lists why
            it is none of them.
    """
    keys = list(_KEY.finditer(message))
    if not keys:
        return " ".join(message.split())
    setting = ".".join(key[1] for key in keys)
    if "." not in setting:
        setting = f"--{setting}"
    unknown = _UNKNOWN.search(message)
    if unknown is not None:
        return f"{setting} has no setting '{unknown[1]}'; check the name"
    found = _ONE_TYPE.match(message, keys[-1].end()) or _UNION.match(message, keys[-1].end())
    if found is None:
        return " ".join(message.split())
    types, value = list(_split(found["types"])), " ".join(found["value"].split())
    if value == "None" and "null" not in types:
        return f"{setting} is missing; set it"
    if setting == _DRAFT:
        types = [
            "null",
            "class_path lit_kvpred.sirius.sparsity.CSparse (or FSparse) with init_args "
            "{keep: SHARE}",
        ]
    value = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
    return f"{setting} must be {_either(types)}, got {value}"


def _split(types: str) -> Iterator[str]:
    """The types of a list, in a user's words, split at the commas that stand in no bracket."""
    start = depth = 0
    for place, sign in enumerate(f"{types},"):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            yield from _words(types[start:place].strip())
            start = place + 1


def _words(kind: str) -> list[str]:
    kind = _CLASS.sub(r"\1", kind).replace("NoneType", "null").replace("Sequence", "list")
    choices = _CHOICES.fullmatch(kind)
    if choices is not None:
        return [choice.strip(" '") for choice in choices[1].split(",")]
    return [_CHOICES.sub(lambda found: found[1].replace("'", "").replace(", ", " | "), kind)]


def _either(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
