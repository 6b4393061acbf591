"""Numbers in JSON texts with more digits than Python reads. One such number would hide the whole page that contains it
from a Python client.
"""

from __future__ import annotations

import re
from typing import Final

MOST_DIGITS: Final = 4_300  # of one number; the limit of CPython for converting text
WORDS: Final = f"expected numbers of at most {MOST_DIGITS:,} digits, found a longer one: send it as a text"

_STEP: Final = 100  # characters between two samples
_DIGITS: Final = bytes(48 if 48 <= each <= 57 else 32 for each in range(256))  # 0 for each digit, otherwise a space
_SAMPLED: Final = b"0" * ((MOST_DIGITS + 1) // _STEP)
_LONG: Final = b"0" * (MOST_DIGITS + 1)
_STRING_OR_LONG: Final = re.compile(
    rf'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|(?P<long>[0-9]{{{MOST_DIGITS + 1}}})', re.DOTALL
)


def has_long_number(text: str) -> bool:
    """Whether a JSON text has such a number outside of its strings. Looks at every hundredth character first: 20 us for
    a text of 1 MB, 2 ms if all of it are digits."""
    if len(text) <= MOST_DIGITS:
        return False
    if _SAMPLED not in _runs(text[::_STEP]) or _LONG not in _runs(text):
        return False
    return any(part["long"] is not None for part in _STRING_OR_LONG.finditer(text))


def unreadable(error: Exception, content: bytes | bytearray | memoryview, words: str | None = None) -> str:
    """The words for JSON that was not decoded: those of the error, unless such a number is its cause."""
    return WORDS if has_long_number(bytes(content).decode(errors="replace")) else words or str(error)


def _runs(text: str) -> bytes:
    return text.encode(errors="replace").translate(_DIGITS)
