"""Numbers in JSON texts with more digits than Python reads. One such number would hide the whole page that contains it
from a Python client.
"""

from __future__ import annotations

import re
from typing import Final

MOST_DIGITS: Final = 4_300  # digits of one number; CPython converts no longer texts
WORDS: Final = f"expected numbers of at most {MOST_DIGITS:,} digits, found a longer one: send it as a text"

_digits: Final = re.compile(r"[0-9]*").match
_digits_of_bytes: Final = re.compile(rb"[0-9]*").match
# As much of a text as has no such number outside of its strings. Possessive, so that its time is proportional to it.
_FINE: Final = re.compile(
    rf'(?:[^"0-9]++|[0-9]{{1,{MOST_DIGITS}}}+(?![0-9])|"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z))*+', re.DOTALL
)


def has_long_number(text: str) -> bool:
    """Whether a JSON text has such a number outside of its strings: 50 ms for a text of 1 MB that has so many digits in
    a string among other values."""
    if not has_digits(text, MOST_DIGITS):
        return False
    fine = _FINE.match(text)
    return fine is not None and fine.end() < len(text)


def has_digits(text: str | bytes, most: int) -> bool:
    """Whether a text has more than `most` digits in a row, in strings too. It looks at one character in `most`, and at
    the digits around it."""
    places = range(most, len(text), most + 1)
    return any(text[at : at + 1].isdigit() and _around(text, at, most) > most for at in places)


def unreadable(error: Exception, content: bytes | bytearray | memoryview, words: str | None = None) -> str:
    """The words for JSON that was not decoded: those of the error, unless such a number is its cause."""
    return WORDS if has_long_number(bytes(content).decode(errors="replace")) else words or str(error)


def _around(text: str | bytes, at: int, most: int) -> int:
    """The number of digits in a row around this place, at most 2 * `most`."""
    behind, before = text[at : at + most + 1], text[max(0, at - most) : at][::-1]
    runs = [_digits(each) if isinstance(each, str) else _digits_of_bytes(each) for each in (behind, before)]
    return sum(run.end() for run in runs if run is not None)
