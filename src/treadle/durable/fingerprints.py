"""Checksums of the arguments of steps: a stored step that is called with other arguments is noticed.

A replay computes one for each step.
"""

from __future__ import annotations

import zlib
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from treadle.core.errors import UNREADABLE

MOST_VALUES: Final = 1_000  # of the arguments of a step with a checksum
LONGEST_TEXT: Final = 65_536  # characters or bytes of each
_COLLECTIONS: Final = frozenset({list, tuple, set, frozenset})
_TEXTS: Final = frozenset({str, bytes})
_SCALARS: Final = _TEXTS | {NoneType, bool, int, float, Decimal, UUID, datetime, date, time, timedelta}
_in_order = msgspec.json.Encoder(order="deterministic").encode


def checksum_of(args: Any, kwargs: Any) -> str | UnsetType:
    """A checksum of a step's arguments; UNSET if one of them is large, or an instance of a class whose fields a deploy
    may change. It takes 0.6 us for a number."""
    if (kwargs or not _are_scalars(args)) and not _is_small_data(args, kwargs):
        return UNSET
    try:
        return zlib.crc32(_in_order((args, kwargs))).to_bytes(4).hex()  # a format takes as long as all else here
    except (TypeError, *UNREADABLE):
        return UNSET


def _are_scalars(args: Any) -> bool:
    """Whether these are few numbers and texts: the usual arguments, in half the time."""
    for value in args:
        kind = type(value)
        if kind not in _SCALARS or (kind in _TEXTS and len(value) > LONGEST_TEXT):
            return False
    return len(args) < MOST_VALUES


def _is_small_data(*values: Any) -> bool:
    pending, count = list(values), 0
    while pending:
        value = pending.pop()
        kind, count = type(value), count + 1
        if count + len(pending) > MOST_VALUES:
            return False
        if kind is dict:
            pending += value.keys()
            pending += value.values()
        elif kind in _COLLECTIONS:
            pending += value
        elif kind not in _SCALARS or (kind in _TEXTS and len(value) > LONGEST_TEXT):
            return False
    return True
