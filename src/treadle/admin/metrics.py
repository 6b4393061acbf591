"""`app.metrics`: counts and times of jobs over the last 90 days, as workers measured them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Literal

from treadle.admin.known_names import Names
from treadle.admin.moved_looks import Moved
from treadle.core.errors import BadOption
from treadle.core.ranges import FAR
from treadle.metrics import Metrics, SeriesBuilder, Totals, step_for
from treadle.policy.retry import seconds
from treadle.storage.contract import Storage

HOUR: Final = 3600.0
AT_ONCE: Final = 20  # rows between two turns of the event loop, about 4 ms with 50 tasks in each

Instant = datetime | float
"""An aware datetime, or seconds since 1970."""


class MetricsReader:
    """Metrics of jobs: how many ended and how, how long they ran, and how long they were queued.

    Counts are exact, times a sample. A worker stores its numbers every 10 s and when it stops, so a killed worker loses
    the last ones. The storage keeps them by minute for 2 hours, by 10 minutes for 3 days, and by hour for 90 days.
    Treadle's own jobs are not counted.
    """

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        now: Callable[[], float],
        moved: Moved,
        names: Names,
        queues: tuple[str, ...] | None = None,
    ) -> None:
        self._storage, self._now, self._moved, self._names, self._queues = storage, now, moved, names, queues

    def within(self, queues: tuple[str, ...]) -> MetricsReader:
        """A view for a caller whose rights cover these queues only; (): all queues."""
        return MetricsReader(self._storage, self._now, self._moved, self._names, queues) if queues else self

    async def read(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        step: Any = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> Metrics:
        """The metrics of all jobs, or of one queue, one task, or both.

        since, until  the range, as aware datetimes or seconds since 1970; default: the last hour, until now
        step          seconds between two points, 60 at least; None: at most 300 points. See `Metrics.step`
        Raises BadOption, StorageError.
        """
        builder = await self._built(since, until, step, None, queue, task)
        return builder.metrics()

    async def each(
        self,
        by: Literal["queue", "task"],
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        step: Any = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> dict[str, Metrics]:
        """The metrics of each queue or task that has any, by name. The arguments are those of `read`."""
        builder = await self._built(since, until, step, by, queue, task)
        return builder.each()

    async def totals(
        self,
        by: Literal["queue", "task"],
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> dict[str, Totals]:
        """The totals of each queue or task that has any, by name. The arguments are those of `read`."""
        builder = await self._built(since, until, None, by, queue, task)
        return builder.totals()

    async def _built(
        self,
        since: Instant | None,
        until: Instant | None,
        step: Any,
        by: Literal["queue", "task"] | None,
        queue: str | None,
        task: str | None,
    ) -> SeriesBuilder:
        end = self._now() if until is None else _instant("until", until)
        start = end - HOUR if since is None else _instant("since", since)
        if not start < end:
            raise BadOption("since", f"expected an instant before {end:.0f}, found {start:.0f}")
        wanted = None if step is None else seconds(step, "step")
        if by not in (None, "queue", "task"):
            raise BadOption("by", f"expected 'queue' or 'task', found {by!r}")
        rows = await (await self._storage()).read_metrics(start, end)
        await self._moved.looked("app.metrics")
        length = step_for(start, end, wanted, rows)
        builder = SeriesBuilder(start, end, length, by, queue, task, self._queues)
        for number, row in enumerate(rows, 1):
            builder.add(row)
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        if builder.is_empty and (queue is None or task is None):  # two names in use may have no job together
            await self._names.nothing_found(queue, task, None)
        return builder


def _instant(name: str, value: object) -> float:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < FAR:
        return float(value)
    raise BadOption(name, f"expected an aware datetime or seconds since 1970, found {value!r}")
