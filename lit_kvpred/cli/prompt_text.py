"""The text of a prompt, from a file or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from lit_kvpred.errors import ConfigurationError


def read_prompt(file: str | None) -> str:
    """The text of a file, or of standard input.

    Raises:
        ConfigurationError: If it is no UTF-8.
    """
    name = "standard input" if file is None else file
    try:
        text = sys.stdin.read() if file is None else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _no_text(name, f"byte {error.start}") from error
    require_unicode(text, name)
    return text


def require_unicode(text: str, name: str) -> None:
    """Refuse bytes that the system passed on as halves of surrogate pairs.

    Raises:
        ConfigurationError: Naming where the text comes from.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _no_text(name, f"character {error.start}") from error


def _no_text(name: str, place: str) -> ConfigurationError:
    return ConfigurationError(
        f"the prompt in {name} is no UTF-8 text ({place}); convert it, for instance with "
        "iconv -t UTF-8"
    )
