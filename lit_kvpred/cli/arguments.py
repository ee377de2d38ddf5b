"""Parsing shared by the commands: errors are raised, not printed with a usage text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser

from lit_kvpred.configs import find_config
from lit_kvpred.errors import ConfigurationError

Item = TypeVar("Item")


def call_with_arguments(function: Callable[..., Any], words: list[str]) -> None:
    """Call ``function`` with its parameters taken from the command line.

    Args:
        function: Required parameters are positional arguments, others are options.
        words: The command's name and its arguments.

    Raises:
        ConfigurationError: If an option is an empty list.
    """
    summary = (function.__doc__ or "").split("\n\n")[0]
    parser = ArgumentParser(prog=f"lit-kvpred {words[0]}", description=summary, exit_on_error=False)
    parser.add_function_arguments(function, as_positional=True, fail_untyped=True)
    parsed = parser.parse_args(words[1:])
    for name, value in parsed.as_dict().items():
        if value == []:
            raise ConfigurationError(f"--{name} is an empty list; give a value or leave it out")
    function(**parser.instantiate(parsed).as_dict())


def listed(values: list[Item] | Item | None, default: Sequence[Item]) -> list[Item]:
    """An option that takes one value or several."""
    if values is None:
        return list(default)
    return values if isinstance(values, list) else [values]


def require_at_least(least: int, **numbers: int | list[int]) -> None:
    """Raise `ConfigurationError` if an option, or one of its values, is below ``least``."""
    for name, given in numbers.items():
        for number in listed(given, []):
            if number < least:
                raise ConfigurationError(f"--{name} must be at least {least}, got {number}")


def require_folder(**files: str | None) -> None:
    """Raise `ConfigurationError` if a file that shall be written has no folder, or is one."""
    for name, file in files.items():
        if file is not None and Path(file).is_dir():
            raise ConfigurationError(f"--{name} {file} is a folder; name a file in it")
        if file is not None and not Path(file).parent.is_dir():
            raise ConfigurationError(
                f"--{name} {file}: {Path(file).parent} is no folder; make it first"
            )


_FIGURES = (".svg", ".png", ".pdf")


def require_figure(figure: str | None) -> None:
    """Raise `ConfigurationError` if a figure has no suffix of a format that can be written."""
    if figure is not None and Path(figure).suffix not in _FIGURES:
        raise ConfigurationError(f"--figure {figure} must end in one of {', '.join(_FIGURES)}")


def write_json(file: str, content: dict[str, Any]) -> None:
    """Write what a command measured; what the file held before survives a full disk.

    Raises:
        ConfigurationError: If the file can't be written.
    """
    from lit_kvpred.report.atomic import write_atomically

    path, text = Path(file), json.dumps(content, indent=2) + "\n"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text)  # A link, such as /dev/stdout, a pipe or a device must stay one.
    else:
        write_atomically({path: text})


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
