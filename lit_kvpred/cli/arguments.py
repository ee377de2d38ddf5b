"""Parsing shared by the commands: errors are raised, not printed with a usage text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jsonargparse import ArgumentParser

from lit_kvpred.configs import find_config


def call_with_arguments(function: Callable[..., Any], words: list[str]) -> None:
    """Call ``function`` with its parameters taken from the command line.

    Args:
        function: Required parameters are positional arguments, others are options.
        words: The command's name and its arguments.
    """
    summary = (function.__doc__ or "").split("\n\n")[0]
    parser = ArgumentParser(prog=f"lit-kvpred {words[0]}", description=summary, exit_on_error=False)
    parser.add_function_arguments(function, as_positional=True, fail_untyped=True)
    parsed = parser.parse_args(words[1:])
    function(**parser.instantiate(parsed).as_dict())


def with_list_first(words: Sequence[str]) -> list[str]:
    """Gather the words between the command and its first option into one list argument."""
    command, *rest = words
    count = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
    return [command, json.dumps(rest[:count]), *rest[count:]] if count else list(words)


def with_config_paths(words: Iterable[str]) -> list[str]:
    """Replace names of packaged configurations after ``--config`` or ``-c`` by their paths."""
    result: list[str] = []
    follows = False
    for word in words:
        name, equals, value = word.partition("=")
        if follows:
            result.append(str(find_config(word)))
        elif name == "--config" and equals:
            result.append(f"{name}={find_config(value)}")
        else:
            result.append(word)
        follows = word in ("--config", "-c")
    return result


def option_value(words: list[str], name: str) -> str | None:
    """Last value given to the option ``name``, if any."""
    value = None
    for position, word in enumerate(words):
        if word == name and position + 1 < len(words):
            value = words[position + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value
