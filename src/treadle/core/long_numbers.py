"""Numbers in JSON texts with more digits than Python reads. One such number would hide the whole page that contains it
from a Python client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

MOST_DIGITS: Final = 4_300  # digits of one number; CPython converts no longer texts
WORDS: Final = f"expected numbers of at most {MOST_DIGITS:,} digits, found a longer one: send it as a text"

_digits: Final = re.compile(r"[0-9]*").match
_digits_of_bytes: Final = re.compile(rb"[0-9]*").match


def has_long_number(text: str) -> bool:
    """Whether a JSON text has such a number outside of its strings. Between two such runs of digits it only searches
    for quotes: reading each value would take 20 times as long."""
    end, in_string = 0, False
    for start, after in _runs(text, MOST_DIGITS):
        in_string ^= _quotes(text[end:start]) % 2 == 1
        if not in_string:
            return True
        end = after
    return False


def has_digits(text: str | bytes, most: int) -> bool:
    """Whether a text has more than `most` digits in a row, in strings too."""
    return any(True for _ in _runs(text, most))


def unreadable(error: Exception, content: bytes | bytearray | memoryview, problem: str | None = None) -> str:
    """Why JSON was not decoded: it names such a number if there is one; otherwise `problem`, or the text of the
    error."""
    return WORDS if has_long_number(bytes(content).decode(errors="replace")) else problem or str(error)


def _runs(text: str | bytes, most: int) -> Iterator[tuple[int, int]]:
    """The places of more than `most` digits in a row. It looks at one character in `most`, and at the digits around
    it."""
    digits: Any = _digits if isinstance(text, str) else _digits_of_bytes
    end = 0
    for place in range(most, len(text), most + 1):
        if place < end or not text[place : place + 1].isdigit():
            continue
        start = place - digits(text[max(end, place - most) : place][::-1]).end()
        end = digits(text, place).end()
        if end - start > most:
            yield start, end


def _quotes(text: str) -> int:
    """How many strings begin or end in a part of a JSON text."""
    if "\\" in text:  # remove pairs of backslashes; one that is left before a quote escapes it
        text = text.replace("\\\\", "").replace('\\"', "")
    return text.count('"')
