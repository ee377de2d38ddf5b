"""What the command line's parser says about a wrong value, in one short line."""

from __future__ import annotations

import re
from collections.abc import Iterator

_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_UNKNOWN = re.compile(r"Option '([^']+)' is not accepted")
_NO_OPTION = re.compile(r"\w+ '\w+' does not accept option '([^']+)'")
_ONE_TYPE = re.compile(r"Expected an? (?P<types>.*?)\. Got value: (?P<value>[^\n]*)", re.DOTALL)
_UNION = re.compile(
    r".*?any of the Union subtypes\s+Subtypes: \[(?P<types>[^\n]*)\]\n.*Given value: (?P<value>.*)",
    re.DOTALL,
)
_NO_CLASS = re.compile(r"Problem with given class_path '(?P<path>[^']+)':\s*(?P<why>[^\n]*)")
_NO_GROUP = re.compile(r"Unable to load config '(?P<value>[^']*)'")
_CLASS = re.compile(r"<class '([\w.]+)'>")
_PACKAGE = re.compile(r"\b(?:\w+\.)+(?=\w)")
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
        return _with_remedy(" ".join(message.split()))
    group = _NO_GROUP.match(message, keys[0].end())
    if group is not None:
        wanted = "a group of settings or the path of a file that holds them"
        return f"{_named(keys[0][1])} must be {wanted}, got {group['value']}"
    setting = _named(".".join(key[1] for key in keys))
    unknown = _UNKNOWN.search(message)
    if unknown is not None:
        return f"{setting} has no setting '{unknown[1]}'; check the name"
    absent = _NO_CLASS.search(message)
    if absent is not None and len(keys) == 1:
        return f"{setting}: {absent['path']} can't be used ({absent['why']}); check the class"
    found = _ONE_TYPE.match(message, keys[-1].end()) or _UNION.match(message, keys[-1].end())
    if found is None:
        return " ".join(message.split())
    types = list(dict.fromkeys(_split(found["types"])))
    value = " ".join(found["value"].split())
    if value == "None" and "null" not in types:
        return f"{setting} must be {_either(types)}, got null; set it"
    if setting == _DRAFT:
        types = [
            "null",
            "class_path lit_kvpred.sirius.sparsity.CSparse (or FSparse) with init_args "
            "{keep: SHARE}",
        ]
    value = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
    return f"{setting} must be {_either(types)}, got {value}"


def _named(setting: str) -> str:
    return setting if "." in setting else f"--{setting}"


def _with_remedy(message: str) -> str:
    unknown = _NO_OPTION.fullmatch(message)
    if unknown is not None:
        return f"there is no setting '{unknown[1]}'; check the name in the configuration"
    if message.startswith("unrecognized arguments: "):
        return f"{message}; --help lists the options"
    return message


def _split(types: str) -> Iterator[str]:
    """The types of a list, in a user's words, split at the commas that stand in no bracket."""
    start = depth = 0
    for place, sign in enumerate(f"{types},"):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            yield from _words(types[start:place].strip())
            start = place + 1


def _words(kind: str) -> list[str]:
    choices = _CHOICES.fullmatch(kind)
    if choices is not None:
        return [choice.strip(" '") for choice in choices[1].split(",")]
    kind = _PACKAGE.sub("", _CLASS.sub(r"\1", kind))
    kind = kind.replace("NoneType", "null").replace("Sequence", "list").replace("Iterable", "list")
    return [_CHOICES.sub(lambda found: found[1].replace("'", "").replace(", ", " | "), kind)]


def _either(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
