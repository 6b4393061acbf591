"""Job ids: random ids that sort by time, and derived ids that are the same each time they are computed.

Ids sort by time. Jobs of equal queue position are claimed in the order of their ids, so they start in the order in
which they were enqueued. Derived ids let a repeated settle find the follow-up jobs that it has already stored.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from treadle.core.clock import wall

IdFactory = Callable[[], str]

VALID = re.compile(r"[A-Za-z0-9._:@-]{1,255}")
RESERVED = ("cron:", "treadle:")
_STEM = re.compile(r"treadle:[0-9a-f]{32}")
_DERIVED = re.compile(_STEM.pattern + r"(-[0-9a-f]{12})?(-[0-9]{6,})?")  # then the process that made it, and the number

_BLOCK = 64
_LAST = tuple(f"-{0x80 | low:02x}" for low in range(_BLOCK))  # the variant, and 6 bits of the counter


class UuidV7:
    """Returns a UUID version 7 (RFC 9562) at each call: 48 bits of milliseconds, a counter that rises within the
    millisecond, and random bits. The ids of one instance only rise, even if the clock is set back."""

    def __init__(self, clock: Callable[[], float] = wall) -> None:
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._block = 0  # milliseconds, and the counter's 12 bits of rand_a
        self._at = _BLOCK  # the counter's last 6 bits: ids of this block that were returned
        self._until = 0.0  # when the block's millisecond ends, in seconds
        self._head = self._tail = ""  # shared by all ids of a block
        self._process = _process

    def __call__(self) -> str:
        # 0.38 us an id. Computing each one alone would take 0.95 us: the text is built once per block of 64 or
        # millisecond, and random bytes (2.3 us) are read once per millisecond.
        if self._process is not _process:  # a forked child, which would otherwise return the ids of its parent
            self._begin()
        with self._lock:
            now = self._clock()
            if now >= self._until or self._at == _BLOCK:
                self._next_block(int(now * 1000) << 12)
            moment = self._at
            self._at = moment + 1
            return f"{self._head}{_LAST[moment]}{self._tail}"

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


_process: object = object()  # another one in a forked child


def _forked() -> None:
    global _process  # noqa: PLW0603 - a fork changes it
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def digest(*parts: str | int) -> str:
    """32 hex digits, the same for the same parts."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def derived(*parts: str | int) -> str:
    """An id that is the same for the same parts, so a repeated settle finds its follow-up jobs. Users cannot choose
    such an id."""
    return f"treadle:{digest(*parts)}"


def stem(id: str) -> str | None:
    """The part of an id that `derived` returned, if the id has that form; None for any other id."""
    return id[:40] if _DERIVED.fullmatch(id) else None


def is_derived(id: str) -> bool:
    """Whether the id was derived: by `derived`, by a run that numbers its jobs, or from a name that begins with
    "treadle:".

    An id that a user built from a derived one (`f"{current().id}:mail"`) does not count. `lua/new_jobs.lua` has the
    same rule.
    """
    if not id.startswith("treadle:"):
        return False
    return _DERIVED.fullmatch(id) is not None or _STEM.match(id) is None


def nonce() -> str:
    """16 random hex digits, which distinguish the repetition of a call from another call."""
    return os.urandom(8).hex()


running: ContextVar[Any] = ContextVar("treadle_job")
"""The run of the job that called this code, an `execution.job_run.JobRun`. It numbers the jobs made in the run."""


def problem(id: object) -> str | None:
    """The problem of an id that a user chose, or None."""
    if not isinstance(id, str) or not VALID.fullmatch(id):
        return f"expected 1-255 characters A-Z a-z 0-9 . _ : @ -, found {id!r}"
    for prefix in RESERVED:
        if id.startswith(prefix) and (is_derived(id) or prefix != "treadle:"):
            return f"ids of the form {prefix}... are Treadle's own, found {id!r}; choose another id"
    return None
