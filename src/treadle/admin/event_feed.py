"""A feed of the events of all processes, derived from changes of the stored rows.

It polls rows, so it can miss changes: of two changes between two polls it reports the later one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from typing import Final

from treadle.admin.job_filters import UNFINISHED
from treadle.core import defaults
from treadle.core.claim_ids import worker_name
from treadle.core.clock import Clock
from treadle.core.events import Event, reaped
from treadle.core.model import EXPIRED, Record, State
from treadle.core.query_model import Query
from treadle.policy.pauses import is_paused
from treadle.storage import pages
from treadle.storage.contract import Storage

TRACKED: Final = 10_000  # unfinished jobs that are polled; beyond that the oldest are dropped
LISTENED: Final = 500  # endings of the newest ones wake the feed; it finds endings of others with the next poll
PAGE: Final = 500
COUNTED: Final = 1_000  # jobs of each kind that a poll counts to find the queues in use
AHEAD: Final = 60.0  # s that clocks may differ; a row created further in the future came from a wrong clock


class EventFeed:
    """One reader of the events of all processes."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], now: Clock) -> None:
        self._storage, self._now = storage, now
        self._new_ones: dict[str, None] = {}  # the latest jobs reported as enqueued, so that none is reported twice
        self._told: dict[str, Record] = {}  # unfinished jobs, as last reported
        self._latest = 0.0  # the newest creation time seen
        self._at_latest: set[str] = set()

    async def stream(self) -> AsyncIterator[Event]:
        """Yield events from now on, without end. Raises StorageError."""
        storage = await self._storage()
        await self._begin(storage)
        while True:
            seen = await storage.glance(COUNTED)
            queues = {queue.name for queue in seen.queues} | {
                queue for worker in seen.workers for queue in worker.queues
            }
            topics = [f"queue:{queue}" for queue in sorted(queues - {defaults.SYSTEM_QUEUE})]
            topics += [f"job:{id}" for id in islice(reversed(self._told), LISTENED)]
            await storage.watch(topics, defaults.RESULT_POLL)
            for event in await self._look(storage):
                yield event

    async def _begin(self, storage: Storage) -> None:
        newest = await storage.find(Query(order="newest", limit=PAGE))
        self._note_newest(newest.records)
        self._new_ones.update(dict.fromkeys(row.job.id for row in newest.records))
        async for page in pages(storage, Query(state=UNFINISHED, order="newest", limit=PAGE)):
            self._told |= {row.job.id: row for row in page.records if _ours(row)}
            if len(self._told) >= TRACKED:
                break
        self._told = dict(reversed(self._told.items()))

    async def _look(self, storage: Storage) -> list[Event]:
        known, events = list(self._told), list[Event]()
        for start in range(0, len(known), PAGE):
            chunk = known[start : start + PAGE]
            for id, row in zip(chunk, await storage.get(chunk), strict=True):
                before = self._told[id]
                if row is None or row.state.final:
                    del self._told[id]
                if row is not None and (row.version, row.state) != (before.version, before.state):
                    events += _events(row, before)
                    if not row.state.final:
                        self._told[id] = row
        for row in await self._new(storage):
            events.append(_event(row, None))
            if not row.state.final:
                self._told[row.job.id] = row
        while len(self._told) > TRACKED:
            del self._told[next(iter(self._told))]
        return events

    async def _new(self, storage: Storage) -> list[Record]:
        """The user's jobs created since the last poll, oldest first."""
        if self._latest > self._now() + AHEAD:  # from a clock that was ahead: reset, or new rows would be missed
            self._latest, self._at_latest = self._now() - AHEAD, set()
        rows: list[Record] = []
        latest, at_latest = self._latest, self._at_latest
        async for page in pages(storage, Query(order="newest", limit=PAGE)):
            fresh = [
                row
                for row in page.records
                if row.created_at > latest or (row.created_at == latest and row.job.id not in at_latest)
            ]
            rows += fresh
            if len(fresh) < len(page.records) or len(rows) >= TRACKED:
                break
        self._note_newest(rows)
        new = [row for row in reversed(rows) if _ours(row) and row.job.id not in self._new_ones]
        self._new_ones.update(dict.fromkeys(row.job.id for row in new))
        while len(self._new_ones) > TRACKED:
            del self._new_ones[next(iter(self._new_ones))]
        return new

    def _note_newest(self, rows: list[Record] | tuple[Record, ...]) -> None:
        newest = max((row.created_at for row in rows), default=self._latest)
        at_newest = {row.job.id for row in rows if row.created_at == newest}
        self._at_latest = at_newest | (self._at_latest if newest == self._latest else set())
        self._latest = newest


def _ours(row: Record) -> bool:
    """Whether a row is a job of the user, not a promise and not one of Treadle's own rows."""
    return bool(row.job.task) and row.job.queue != defaults.SYSTEM_QUEUE


def _events(row: Record, before: Record) -> list[Event]:
    """The events of a row since the last poll.

    An expired lease is reported even if another worker has already claimed the job; the later event follows it. An
    expired job that is queued again causes no second event.
    """
    if row.lost <= before.lost:
        return [_event(row, before)]
    back_in_line = row.state is State.READY and row.version == before.version
    return [reaped(row)] if back_in_line else [reaped(row), _event(row, before)]


def _event(row: Record, before: Record | None) -> Event:
    job = row.job
    worker = worker_name(row.worker or "") if row.state is State.RUNNING else ""
    return Event(
        name=_name(row, before),
        id=job.id,
        task=job.task,
        queue=job.queue,
        worker=worker,
        error=row.error,
        record=row,
        attempt=row.attempt + (row.state is State.RUNNING),
    )


def _name(row: Record, before: Record | None) -> str:
    if row.state is State.FAILED:
        return "expired" if row.reason == EXPIRED else "failed"
    if row.state is State.RUNNING:
        return "started"
    if row.state.final:
        return str(row.state)
    if before is None or row.reopenings > before.reopenings:
        return "enqueued"
    if row.state is State.WAITING:
        return "waiting"
    if is_paused(row):
        return "paused"
    return "retrying" if row.attempt > before.attempt else "deferred"
