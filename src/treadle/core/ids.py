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
from weakref import WeakSet

from treadle.core.clock import wall

IdFactory = Callable[[], str]

VALID = re.compile(r"[A-Za-z0-9._:@-]{1,255}")
RESERVED = ("cron:", "treadle:")
_STEM = re.compile(r"treadle:[0-9a-f]{32}")
_DERIVED = re.compile(_STEM.pattern + r"(-[0-9a-f]{12})?(-[0-9]{6,})?")  # the process that made it, the number

_BLOCK = 64
_LAST = tuple(f"-{0x80 | low:02x}" for low in range(_BLOCK))  # the variant, and 6 bits of the counter


class UuidV7:
    """A UUID version 7 (RFC 9562) at each call: 48 bits of milliseconds, then a counter that rises
    within the millisecond, then random bits. Ids of one instance only rise, also when the clock steps back."""

    def __init__(self, clock: Callable[[], float] = wall) -> None:
        self._clock = clock
        self._begin()
        _makers.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._block = 0  # one integer carries milliseconds and the counter's 12 bits of rand_a
        self._at = _BLOCK  # the counter's last 6 bits: how many ids of this block were given
        self._until = 0.0  # when its millisecond is over
        self._head = self._tail = ""  # what all ids of one block share

    def __call__(self) -> str:
        # 0.38 us an id against 0.95 with the arithmetic for each: that is done for a block of 64 or a new millisecond,
        # and noise (2.3 us) is asked for at a new millisecond only.
        with self._lock:
            now = self._clock()
            if now >= self._until or self._at == _BLOCK:
                self._next_block(int(now * 1000) << 12)
            at = self._at
            self._at = at + 1
            return f"{self._head}{_LAST[at]}{self._tail}"

    def _next_block(self, now: int) -> None:
        last = self._block
        self._block = block = now if now > last else last + 1
        self._at = 0
        millis = block >> 12
        if millis != last >> 12 or not last:
            noise = os.urandom(7).hex()  # the last 56 bits
            self._tail, self._until = f"{noise[:2]}-{noise[2:]}", (millis + 1) / 1000
        text = f"{millis:012x}"
        self._head = f"{text[:8]}-{text[8:]}-7{block & 0xFFF:03x}"


_makers: WeakSet[UuidV7] = WeakSet()


def _forked() -> None:
    """What parent and child both remember would make the same ids in both, for as long as the clock stands still."""
    for maker in _makers:
        maker._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def digest(*parts: str | int) -> str:
    """The same 32 hex digits for the same parts."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def derived(*parts: str | int) -> str:
    """The same id for the same parts: how a repeated settle recognises its children. No user may choose such an id."""
    return f"treadle:{digest(*parts)}"


def stem(id: str) -> str | None:
    """The part of an id that `derived` made, where the id has that form; None of any other."""
    return id[:40] if _DERIVED.fullmatch(id) else None


def is_derived(id: str) -> bool:
    """Whether the id was made from others, by `derived`, by a run that numbers its jobs, or by a name of ours.

    An id that goes on after a derived one (`f"{current().id}:mail"`) was chosen. `lua/endings.lua` says the same.
    """
    if not id.startswith("treadle:"):
        return False
    return _DERIVED.fullmatch(id) is not None or _STEM.match(id) is None


def nonce() -> str:
    """16 random hex digits: they tell a call that is repeated from another call."""
    return os.urandom(8).hex()


running: ContextVar[Any] = ContextVar("treadle_job")
"""The job that runs here, if any: what `context.current()` answers. It numbers the jobs that are made inside it."""


def problem(id: object) -> str | None:
    """What is wrong with an id a user chose, or None."""
    if not isinstance(id, str) or not VALID.fullmatch(id):
        return f"expected 1-255 of A-Z a-z 0-9 . _ : @ -, found {id!r}"
    for prefix in RESERVED:
        if id.startswith(prefix) and (is_derived(id) or prefix != "treadle:"):
            return f"ids of the form {prefix}... are Treadle's own, found {id!r}; begin with a word of your own"
    return None
