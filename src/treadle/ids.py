"""Job ids: random ones that sort by time, and derived ones that a repeated call finds again.

Without time order the line would not keep the order of calls; without derived ids a repeated
settle would store its children twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from treadle.clock import wall

IdFactory = Callable[[], str]

VALID = re.compile(r"[A-Za-z0-9._:@-]{1,255}")
RESERVED = ("cron:", "treadle:")


class UuidV7:
    """A UUID version 7 (RFC 9562) at each call: 48 bits of milliseconds, then a counter that rises
    within the millisecond, then random bits. Ids of one instance only rise, also when the clock steps back."""

    def __init__(self, clock: Callable[[], float] = wall) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._renew = 0
        self._head = self._tail = ""  # what all ids of one millisecond share

    def __call__(self) -> str:
        # One integer carries milliseconds and an 18-bit counter (12 bits of rand_a, 6 of rand_b); the last
        # 56 bits are random and renewed every millisecond or so: 0.6 us an id against 2.3 with os.urandom each time.
        with self._lock:
            now = int(self._clock() * 1000) << 18
            last = self._last
            self._last = last = now if now > last else last + 1
            if last >> 18 != self._renew:
                self._renew = last >> 18
                millis, noise = f"{last >> 18:012x}", os.urandom(7).hex()
                self._head, self._tail = f"{millis[:8]}-{millis[8:]}-7", f"{noise[:2]}-{noise[2:]}"
            return f"{self._head}{last >> 6 & 0xFFF:03x}-{0x80 | last & 0x3F:02x}{self._tail}"


def derived(*parts: str | int) -> str:
    """The same 128-bit id for the same parts, as 32 hex digits: how a repeated settle recognises its children."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


running: ContextVar[Any] = ContextVar("treadle_job")
"""The job that runs here, if any: what `context.current()` answers. It numbers the jobs that are made inside it."""


def problem(id: object) -> str | None:
    """What is wrong with an id a user chose, or None."""
    if not isinstance(id, str) or not VALID.fullmatch(id):
        return f"expected 1-255 of A-Z a-z 0-9 . _ : @ -, found {id!r}"
    for prefix in RESERVED:
        if id.startswith(prefix):
            return f"ids beginning with {prefix!r} are Treadle's own, found {id!r}"
    return None
