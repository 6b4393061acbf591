"""The once-locks of one run: stores them, and releases those that the run must not keep.

A storage may carry out a call whose caller was cancelled. So the calls here are not cut short, and the run waits for
them before its outcome is settled: otherwise a lock would stay held for an effect that never happened, or be released
while the next run of the job holds it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from treadle.concurrency.uncut import UncutCalls
from treadle.core.model import ASKED, EXPIRED, NewJob, Outcome, Record, State
from treadle.durable.once import KeptLocks
from treadle.workflow.signals import ONCE, check_place, once_lock, winner


class LockBackend(Protocol):
    """The calls of the worker that locks need. Each is repeated until the storage answers."""

    async def store(self, job: NewJob) -> Record: ...
    async def settle(self, outcomes: Sequence[Outcome]) -> None: ...


class RunLocks:
    """One for each run.

    moment  now, by the storage's clock
    note    adds a checkpoint to those that are not stored yet
    save    stores the checkpoints
    """

    def __init__(
        self,
        record: Record,
        backend: LockBackend,
        moment: Callable[[], float],
        note: Callable[[tuple[str, str]], None],
        save: Callable[[], Awaitable[None]],
    ) -> None:
        self._record, self._backend, self._moment, self._note, self._save = record, backend, moment, note, save
        self._held: dict[str, Record] = {}
        self._unused: set[str] = set()  # locks that this run stored, and whose blocks have not begun
        self._kept = KeptLocks(record.checkpoints)
        self._calls = UncutCalls()
        self._in_order = asyncio.Lock()  # a lock is not stored again before its release is answered

    async def win(self, key: str, keep: float) -> bool:
        """Whether the job of this run holds the lock. Stores the lock if it is free."""
        lock = once_lock(f"{ONCE}{os.urandom(8).hex()}", self._record, key, keep)
        won = await self._calls.make(self._store(key, lock))
        if won:
            await self._save()  # raises here, before the effect, if the lease was lost
            self._unused.discard(key)
        return won

    async def _store(self, key: str, lock: NewJob) -> bool:
        async with self._in_order:
            row = await self._stored(lock)
            if winner(row) != self._record.job.id:
                return False
            self._held[key] = row
            if row.job.id == lock.id:
                self._unused.add(key)
            self._note(self._kept.won(key, row.deadline_at))
            return True

    async def _stored(self, lock: NewJob) -> Record:
        """The row of the lock: this one, or the one that holds the key."""
        row = await self._backend.store(lock)
        check_place(row, lock.queue, None, None)
        if row.job.id == lock.id or row.deadline_at is None or row.deadline_at > self._moment():
            return row
        # It has expired, but no claim has ended it yet. If two runs do this, one of them gets the next lock.
        await self._backend.settle(
            [Outcome(id=row.job.id, version=row.version, state=State.FAILED, reason=EXPIRED, error="over")]
        )
        row = await self._backend.store(lock)
        check_place(row, lock.queue, None, None)
        return row

    async def give_back(self, *keys: str) -> None:
        """Release these locks, except those that this run did not get."""
        if any(key in self._held for key in keys):
            await self._calls.make(self._release(keys))

    async def _release(self, keys: Sequence[str]) -> None:
        async with self._in_order:
            rows = {key: self._held[key] for key in keys if key in self._held}
            if rows:
                await self._backend.settle(
                    [
                        Outcome(id=row.id, version=row.version, state=State.CANCELLED, reason=ASKED, error="given back")
                        for row in rows.values()
                    ]
                )
            for key in rows:  # not before: if the answer is lost, the locks are still to be released
                del self._held[key]
                self._unused.discard(key)
                self._note(self._kept.given_back(key))  # stored with the outcome

    def remaining(self, failed: bool) -> bool:
        """Whether `conclude` has anything to do."""
        return self._calls.in_progress or bool(self._held if failed else self._unused)

    async def conclude(self, failed: bool) -> None:
        """The run has ended: wait for its calls, and release its locks. A run that has not failed keeps those whose
        blocks have begun."""
        await self._calls.ended()
        await self.give_back(*(self._held if failed else self._unused))

    def lost(self) -> None:
        """Another run may hold the locks now: cut the calls short."""
        self._calls.cut()
