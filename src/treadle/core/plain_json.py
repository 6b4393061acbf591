"""JSON that a sender wrote, read in a time that its size bounds, and to a depth that never exhausts the C stack.

Up to CPython 3.13 the interpreter counts the levels that a decoder enters, and stops it at some hundreds to thousands.
From 3.14 on only the size of the C stack stops a decoder, at 20,000 levels and more: there we count.
"""

from __future__ import annotations

import re
import sys
from array import array
from itertools import accumulate
from typing import Any, Final

import msgspec

NEEDS_BOUND: Final = sys.version_info >= (3, 14)  # before, the interpreter has a limit of its own for every decoder
DEEPEST: Final = 500  # levels of arrays and objects; Treadle stores values of at most 100, and wraps some in a few more
BLOCK: Final = 400  # brackets that are counted together: 8 MB of `[[]]` take 12 ms instead of 150 one by one

_SIGNS: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(set(range(256)) - set(b'[{]}"'))
_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")
_strings: Final = re.compile(rb'"[^"]*"?').sub
# msgspec's own reader of floats takes up to 14 us for one such as 1e300, Python's 0.3 us: 64 KiB of them stopped a
# process for 0.15 s.
_decode: Final = msgspec.json.Decoder(float_hook=float).decode


def read_json(text: str | bytes | bytearray | memoryview) -> Any:
    """The value of a JSON text. Raises one of `errors.UNREADABLE`, also for too many levels."""
    refuse_unbounded(text)
    return _decode(text)


def refuse_unbounded(text: str | bytes | bytearray | memoryview) -> None:
    """`refuse_deep` before a decoder that has no bound of its own. Elsewhere large rows need not be looked at twice."""
    if NEEDS_BOUND:
        refuse_deep(text)


def refuse_deep(text: str | bytes | bytearray | memoryview) -> None:
    """Raise RecursionError for JSON with more than DEEPEST levels. Texts of at most DEEPEST bytes are not read."""
    if len(text) > DEEPEST and _is_deep(text.encode(errors="replace") if isinstance(text, str) else bytes(text)):
        raise RecursionError(f"expected at most {DEEPEST} levels of arrays and objects, found more")


def _is_deep(raw: bytes) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= DEEPEST:
        return False
    if b"\\" in raw:  # remove pairs of backslashes; one that is left before a quote escapes it
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = _strings(b"", raw.translate(_SIGNS, _OTHERS).replace(b'""', b""))  # two adjacent quotes cancel out
    level = 0
    for start in range(0, len(signs), BLOCK):
        block = signs[start : start + BLOCK]
        opened = block.count(b"[")
        if level + opened > DEEPEST and level + max(accumulate(array("b", block.translate(_STEPS)))) > DEEPEST:
            return True
        level += 2 * opened - len(block)
    return False
