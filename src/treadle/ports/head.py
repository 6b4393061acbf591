"""The head of a journal: which files have confirmed entries, and how much of the last one has. With it, a file that was
cut or deleted differs from one that a crash left behind.

It is written in place after each confirmed write, and synced only when a file is added or removed. So a crash may leave
an older head, which promises less, but none that promises too much.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE

ROOM: Final = 128  # bytes: less than a sector, which a disk writes whole or not at all


class Head(Struct, frozen=True):
    """`first` and `last`: numbers of files; `size`: bytes of the last one that are confirmed."""

    first: int
    last: int
    size: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Head).decode


def write_head(head: Head) -> bytes:
    text = _encode(head)
    return (b"%08x %s" % (zlib.crc32(text), text)).ljust(ROOM - 1) + b"\n"


def read_head(data: bytes) -> Head | None:
    """None: it is damaged."""
    text = data[9:].rstrip()
    try:
        return _decode(text) if int(data[:8], 16) == zlib.crc32(text) and len(data) == ROOM else None
    except UNREADABLE:
        return None
