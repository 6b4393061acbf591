"""The open claims of idle workers, noted in the lock file: only a transaction that writes reads and changes them.

So an enqueue can claim a job for a waiting worker. In a table, each claim that finds nothing would have to be
committed: a sync, while others wait for the lock. A note may be lost at any time; no row depends on it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE
from treadle.core.model import Claim, NewJob
from treadle.storage.sqlite.lockfile import LockFile

MOST: Final = 65_536  # bytes of the note; if there are more claims, the oldest are dropped
HEAD: Final = 8  # bytes before the note: its length and its checksum

_encode = msgspec.msgpack.Encoder().encode
_claim = msgspec.msgpack.Decoder(Claim).decode


class WaitingWorker(Struct, frozen=True, array_like=True):
    """A worker's open claim, until `until`. `claim`: as msgpack, decoded only if its queue fits."""

    address: str
    until: float
    queues: tuple[str, ...]
    claim: bytes

    def claim_for(self, job: NewJob) -> Claim | None:
        """The claim, if it would take this job as the first of its queue."""
        if job.queue not in self.queues:
            return None
        try:
            claim = _claim(self.claim)
        except UNREADABLE:
            return None  # written by another version of Treadle
        named = (claim.tasks is None or job.task in claim.tasks) and (not claim.ids or job.id in claim.ids)
        return claim if named and job.id not in claim.running else None


_decode = msgspec.msgpack.Decoder(list[WaitingWorker]).decode


class WaitingWorkers:
    """Each method must be called in a transaction that writes. The latest claim comes last."""

    def __init__(self, lock: LockFile) -> None:
        self._lock = lock

    def all(self) -> list[WaitingWorker]:
        """The open claims. A note that a kill cut short, or that is damaged, counts as empty."""
        head = self._lock.note(HEAD)
        size, sum = int.from_bytes(head[:4]), int.from_bytes(head[4:])
        if not size:
            return []
        note = self._lock.note(HEAD + min(size, MOST))[HEAD:]
        if zlib.crc32(note) != sum:
            return []
        try:
            return _decode(note)
        except UNREADABLE:
            return []

    def drop(self, address: str) -> None:
        asks = self.all()
        kept = [ask for ask in asks if ask.address != address]
        if len(kept) < len(asks):
            self.keep(kept)

    def add(self, new: WaitingWorker, now: float) -> None:
        """Add a claim in place of any other of its address; expired ones are removed."""
        self.keep([*(ask for ask in self.all() if ask.until > now and ask.address != new.address), new])

    def keep(self, asks: Sequence[WaitingWorker]) -> None:
        """Store these claims in place of all others."""
        note = _encode(asks) if asks else b""
        while len(note) > MOST:
            asks = asks[1:]
            note = _encode(asks) if asks else b""
        self._lock.set_note(len(note).to_bytes(4) + zlib.crc32(note).to_bytes(4) + note)
