"""`async with current().once(key)`: only one job gets True, until its lock expires.

A lock is a row of its own. The last keys that a job got are kept among its checkpoints, for its history. `RunLocks`
stores the locks of one run, and releases those that the run must not keep.

A storage may carry out a call whose caller was cancelled. So the calls here are not cut short, and the run waits for
them before its outcome is settled: otherwise a lock would stay held for an effect that never happened, or be released
while the next run of the job holds it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct, structs

from treadle.concurrency.uncut import UncutCalls
from treadle.core.errors import UNREADABLE
from treadle.core.model import ASKED, EXPIRED, NewJob, Outcome, Pairs, Record, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.workflow.signals import ONCE, check_place, once_lock, winner

T = TypeVar("T")

KEPT: Final = 10  # keys of a job


class KeptLock(Struct, frozen=True, omit_defaults=True):
    """A key that the job got. `until`: when its lock expires, by the storage's clock."""

    key: str
    number: int
    until: float | None = None
    given_back: bool = False


_read = msgspec.json.Decoder(KeptLock).decode


def locks_of(checkpoints: Pairs) -> list[KeptLock]:
    """The last keys that a job got, in order. Entries that cannot be read are left out."""
    locks = []
    for name, text in own_checkpoints(checkpoints).items():
        if name.startswith(ONCE):
            try:
                locks.append(_read(text))
            except UNREADABLE:  # another program has stored it
                continue
    return sorted(locks, key=lambda lock: lock.number)


class KeptLocks:
    """The keys that a job got, as its checkpoints keep them."""

    def __init__(self, checkpoints: Pairs) -> None:
        self._locks = {lock.key: lock for lock in locks_of(checkpoints)}

    def won(self, key: str, until: float | None) -> tuple[str, str]:
        """The checkpoint for a key that the job got."""
        return self._keep(structs.replace(self._known(key), until=until, given_back=False))

    def given_back(self, key: str) -> tuple[str, str]:
        """The checkpoint for a key that the job gave back."""
        return self._keep(structs.replace(self._known(key), given_back=True))

    def _known(self, key: str) -> KeptLock:
        return self._locks.get(key) or KeptLock(key, 1 + max((m.number for m in self._locks.values()), default=0))

    def _keep(self, lock: KeptLock) -> tuple[str, str]:
        self._locks = {key: m for key, m in self._locks.items() if m.number % KEPT != lock.number % KEPT}
        self._locks[lock.key] = lock
        # The number of the checkpoint is bounded, so that a job keeps the last keys only.
        return f"{ONCE}{lock.number % KEPT}", msgspec.json.encode(lock).decode()


class OnceLocks(Protocol):
    """The methods of a run's durable code that `Once` uses."""

    async def win(self, key: str, keep: float | timedelta) -> bool: ...
    async def give_back(self, key: str) -> None: ...
    def wait_here(self, work: Coroutine[Any, Any, T]) -> T: ...


class Once(AbstractAsyncContextManager[bool]):
    """`async with current().once(key) as first`, or `with` in threads."""

    def __init__(self, durable: OnceLocks, key: str, keep: float | timedelta) -> None:
        self._durable, self._key, self._keep = durable, key, keep

    async def __aenter__(self) -> bool:
        return await self._durable.win(self._key, self._keep)

    async def __aexit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            await self._durable.give_back(self._key)

    def __enter__(self) -> bool:
        is_first: bool = self._durable.wait_here(self._durable.win(self._key, self._keep))
        return is_first

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            self._durable.wait_here(self._durable.give_back(self._key))


class LockBackend(Protocol):
    """The calls of the worker that locks need. Each is repeated until the storage answers."""

    async def store(self, job: NewJob) -> Record: ...
    async def settle(self, outcomes: Sequence[Outcome]) -> object: ...


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
            for key in rows:  # only now: if the answer had been lost, the locks would still have to be released
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
