"""How many arrays, objects and values a JSON text has, known before any of them is made, piece by piece.

A decoder cannot be interrupted, and does not let other threads run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

PIECE: Final = 64 * 2**10  # bytes looked at in one go
INSIDE: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)  # a text from within, up to its end or that of the piece

Counts = tuple[int, int]  # arrays and objects; commas
Content = bytes | bytearray | memoryview


def rough(content: Content) -> Iterator[Counts]:
    """No fewer than there are: what stands in texts is counted too."""
    for at in range(0, len(content), PIECE):
        piece = bytes(content[at : at + PIECE])
        yield _counts(piece, 0, len(piece))


def exact(content: Content) -> Iterator[Counts]:
    """Those outside of texts."""
    at, is_text = 0, False
    while at < len(content):
        piece = bytes(content[at : at + PIECE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it would end within an escape
            piece = bytes(content[at : at + PIECE + 1])
        at += len(piece)
        containers = values = here = 0
        while here < len(piece):
            if is_text:
                found = INSIDE.match(piece, here)
                assert found is not None
                here, is_text = found.end() + 1, found.end() == len(piece)
            else:
                quote = piece.find(b'"', here)
                end = quote if quote >= 0 else len(piece)
                some, more = _counts(piece, here, end)
                containers, values = containers + some, values + more
                here, is_text = end + 1, quote >= 0
        yield containers, values


def _counts(piece: bytes, start: int, end: int) -> Counts:
    return piece.count(b"[", start, end) + piece.count(b"{", start, end), piece.count(b",", start, end)
