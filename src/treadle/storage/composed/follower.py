"""Follows the log: a replica of the rows that this process keeps up to date, or starts again from the newest base."""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.core.errors import StorageUnavailable
from treadle.storage.composed.log import AHEAD, Log
from treadle.storage.composed.log_entries import LogEntry
from treadle.storage.composed.replica import Replica
from treadle.storage.topic_waiters import TopicWaiters

RELOADS: Final = 100  # tries to find a base whose parts exist; each time another process may just have replaced it


class Follower:
    """The rows as of `replica.position`. A reload replaces `replica`, so do not keep it across an await."""

    def __init__(self, log: Log, namespace: str, waiters: TopicWaiters) -> None:
        self._log, self._namespace, self._waiters = log, namespace, waiters
        self.replica = Replica(waiters)

    async def catch_up(self) -> None:
        """Apply all entries up to the end of the log."""
        width = 1
        while True:
            entries = await self._log.read_on(self.replica.position, width)
            lost = not await self._apply(entries)
            self.replica.copy.tables.called.clear()  # the process that wrote the entry pushes the wakeups
            if lost or (len(entries) < width and await self._log.overtaken(self.replica.position)):
                await self.reload()
                width = 1
            elif len(entries) == width:
                width = min(2 * width, AHEAD)
            elif width == 1:
                return
            else:
                width = 1

    async def _apply(self, entries: list[LogEntry]) -> bool:
        """Apply these entries. False: the last entry that was applied is no longer in the log."""
        replica = self.replica
        for entry in entries:
            if entry.after != replica.last and await self._log.id_at(replica.position) != replica.last:
                return False
            replica.apply(entry)
        return True

    async def reload(self) -> None:
        """Start again from the newest base."""
        for _ in range(RELOADS):
            number, base = await self._log.find_base()
            text = await self._log.read_parts(base.name, base.parts) if number else ""
            if text is not None:
                break
            await asyncio.sleep(0)  # a newer base has replaced it
        else:
            raise StorageUnavailable(
                f"the newest base of {self._namespace!r} (number {number}) names parts that the store lacks. The store "
                "has lost acknowledged values, or its keys expire: restore it from a backup"
            )
        fresh = Replica(self._waiters)
        if number:
            fresh.read(text, base)
        self._log.number, self._log.base, self.replica = number, base, fresh
        self._waiters.wake(list(self._waiters.topics))  # anything may have changed in between

    async def check_won(self, place: int) -> None:
        """Raise StorageUnavailable if no process will apply the entry at a position that was won: the position was
        deleted meanwhile, or the store has lost the entry before it."""
        overtaken, before = await asyncio.gather(self._log.overtaken(place - 1), self._log.id_at(place - 1))
        if overtaken or before != self.replica.last:
            await self.reload()
            raise StorageUnavailable(
                "this process was suspended while others extended the log, or the store has lost the end of the log; "
                "it is unknown whether the last call was applied"
            )
