"""JSON that a sender wrote: reads its numbers in bounded time, and finds those that a reader refuses."""

from __future__ import annotations

import re
from typing import Final

import msgspec

DIGITS: Final = 4_300  # of a number: Python refuses to read a longer one
_digits: Final = re.compile(r"[0-9]*").match
_digits_of_bytes: Final = re.compile(rb"[0-9]*").match

# msgspec's own reader of floats takes up to 14 us for one such as 1e300, Python's 0.3 us: 64 KiB of them stopped a
# process for 0.15 s.
read_json: Final = msgspec.json.Decoder(float_hook=float).decode


def has_long_number(text: str | bytes, most: int = DIGITS) -> bool:
    """Whether a text has more than `most` digits in a row. It looks at one character in `most`, and at the digits
    around it."""
    places = range(most, len(text), most + 1)
    return any(text[at : at + 1].isdigit() and _around(text, at, most) > most for at in places)


def _around(text: str | bytes, at: int, most: int) -> int:
    """The number of digits in a row around this place, at most 2 * `most`."""
    behind, before = text[at : at + most + 1], text[max(0, at - most) : at][::-1]
    runs = [_digits(each) if isinstance(each, str) else _digits_of_bytes(each) for each in (behind, before)]
    return sum(run.end() for run in runs if run is not None)
