"""Who waits in vain for a job, as a note in the lock file: read and written only by who holds the lock.

Without it a job could not be claimed for a worker by who stores it. In a table, each claim in vain would have to
be committed: a sync, while others wait for the lock. A note may be lost at any time; no row depends on it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.model import Claim, NewJob
from treadle.errors import UNREADABLE
from treadle.storage.sqlite.lockfile import LockFile

MOST: Final = 65_536  # bytes of a note; of more asks the last
HEAD: Final = 8  # bytes before them: how many, and their checksum

_encode = msgspec.msgpack.Encoder().encode
_claim = msgspec.msgpack.Decoder(Claim).decode


class WaitingWorker(Struct, frozen=True, array_like=True):
    """One worker's, under its last claim id, until `until`. `words`: its claim as msgpack, read if its queue fits."""

    address: str
    until: float
    queues: tuple[str, ...]
    words: bytes

    def claim_for(self, job: NewJob) -> Claim | None:
        """The claim, if this job may be for it, were it the first in line."""
        if job.queue not in self.queues:
            return None
        try:
            asked = _claim(self.words)
        except UNREADABLE:
            return None  # of another version of Treadle
        named = (asked.tasks is None or job.task in asked.tasks) and (not asked.ids or job.id in asked.ids)
        return asked if named and job.id not in asked.running else None


_decode = msgspec.msgpack.Decoder(list[WaitingWorker]).decode


class WaitingWorkers:
    """Each method is one step of who holds the lock. Who asked last stands last."""

    def __init__(self, lock: LockFile) -> None:
        self._lock = lock

    def all(self) -> list[WaitingWorker]:
        """What is noted. A note cut short by a kill, or that is none, says nothing."""
        head = self._lock.note(HEAD)
        size, sum = int.from_bytes(head[:4]), int.from_bytes(head[4:])
        if not size:
            return []
        words = self._lock.note(HEAD + min(size, MOST))[HEAD:]
        if zlib.crc32(words) != sum:
            return []
        try:
            return _decode(words)
        except UNREADABLE:
            return []

    def drop(self, address: str) -> None:
        asks = self.all()
        kept = [ask for ask in asks if ask.address != address]
        if len(kept) < len(asks):
            self.keep(kept)

    def add(self, new: WaitingWorker, now: float) -> None:
        """In the place of any other at its address; those that are over go."""
        self.keep([*(ask for ask in self.all() if ask.until > now and ask.address != new.address), new])

    def keep(self, asks: Sequence[WaitingWorker]) -> None:
        """These and no others."""
        words = _encode(asks) if asks else b""
        while len(words) > MOST:
            asks = asks[1:]
            words = _encode(asks) if asks else b""
        self._lock.set_note(len(words).to_bytes(4) + zlib.crc32(words).to_bytes(4) + words)
