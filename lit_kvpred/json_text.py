"""Reading JSON that may be damaged in any way."""

from __future__ import annotations

import json
import re
from typing import Any

_MOST_DIGITS = 300  # what a float holds


def parse_json(text: str) -> Any:
    """The value that ``text`` holds.

    Raises:
        json.JSONDecodeError: Whatever is wrong with it: also for whole numbers that no float can
            hold, and for lists or objects nested deeper than Python can follow.
    """
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    try:
        return _DECODER.decode(text)
    except _TooManyDigitsError as error:
        digits = re.search(rf"\d{{{_MOST_DIGITS + 1},}}", text)
        place = digits.start() if digits else 0
        raise json.JSONDecodeError("A number has too many digits", text, place) from error
    except RecursionError as error:
        raise json.JSONDecodeError("Lists or objects are nested too deeply", text, 0) from error


class _TooManyDigitsError(Exception):
    pass


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise _TooManyDigitsError
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)
