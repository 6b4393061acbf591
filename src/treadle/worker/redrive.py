"""Reopens failed jobs while the worker is idle: a few at a time, after growing delays, a limited number of times.

The row counts its reopenings, so the limit also holds after a restart and for several workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial

from msgspec.structs import force_setattr

from treadle.core.argument_names import Spelled
from treadle.core.errors import BadOption
from treadle.core.model import ERROR, LOST, Record, State
from treadle.core.query_model import Query
from treadle.policy.retry import seconds
from treadle.storage.contract import Storage
from treadle.worker.state import WorkerState
from treadle.workflow import after_cleanup, reopened, rows_of

log = logging.getLogger("treadle")

PAGES = 10  # pages read at each look; the next look continues there, and starts again after the last page
PAGE = 100  # rows


class Redrive(Spelled, frozen=True):
    """`Worker(app, redrive=Redrive())`: an idle worker reopens failed jobs that it can run.

    limit      jobs reopened at one look, at most
    backoff    seconds from the ending to the first reopening; doubled for each further one, `longest` at most
    max_times  reopenings of one job in all, including those by hand
    every      seconds between two looks
    reasons    failures to reopen: by default errors and lost workers, not aborted and expired jobs
    Raises BadOption.
    """

    limit: int = 10
    backoff: float | timedelta = 300.0
    max_times: int = 3
    longest: float | timedelta = 86_400.0
    every: float | timedelta = 30.0
    reasons: tuple[str, ...] = (ERROR, LOST)

    def __post_init__(self) -> None:
        numbers: tuple[tuple[str, object], ...] = (("limit", self.limit), ("max_times", self.max_times))
        for name, number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise BadOption(f"redrive.{name}", f"expected 1 or more, found {number!r}")
        for name, value in (("backoff", self.backoff), ("longest", self.longest), ("every", self.every)):
            duration = seconds(value, f"redrive.{name}")
            if not duration:
                raise BadOption(f"redrive.{name}", "expected more than 0 s")
            force_setattr(self, name, duration)

    def due(self, row: Record, now: float) -> bool:
        """Whether to reopen this failed job now."""
        assert isinstance(self.backoff, float)
        assert isinstance(self.longest, float)
        wait = min(self.backoff * 2.0 ** min(row.reopenings, 60), self.longest)
        return row.reason in self.reasons and row.reopenings < self.max_times and (row.ended_at or now) + wait <= now


class Redriver:
    """The loop of one worker that reopens failed jobs."""

    def __init__(
        self,
        rule: Redrive,
        state: WorkerState,
        storage: Storage,
        queues: Collection[str],
        tasks: Callable[[], Collection[str]],
        now: Callable[[], float],
        answered: Callable[[str], None] = lambda loop: None,
    ) -> None:
        self._answered = answered
        self._rule, self._state, self._storage, self._now = rule, state, storage, now
        self._queues, self._tasks = frozenset(queues), tasks
        # cursor of the last page; one for each queue if the token of this process is bound to queues
        self._cursors: dict[str | None, str | None] = dict.fromkeys(
            self._queues if storage.capabilities.queues else [None]
        )

    async def run(self) -> None:
        assert isinstance(self._rule.every, float)
        while True:
            await asyncio.sleep(self._rule.every * random.uniform(0.5, 1.5))  # spreads the workers
            if self._state.demand.watched and not self._state.running:
                await self.look()
            else:
                self._answered("redrive")  # this loop calls nothing now, so it must not prolong an outage

    async def look(self) -> int:
        """Reopen failed jobs that are due; returns how many. Of two workers only one reopens a job, because its version
        is checked."""
        due: list[Record] = []
        for queue in self._cursors:
            due += await self._due_rows(queue, self._rule.limit - len(due))
        due = due[: self._rule.limit]
        cleaned = await after_cleanup(partial(rows_of, self._storage.get), due) if due else {}
        chosen = [reopened(row, cleaned) for row in due if not cleaned.get(row.job.id)]
        outcomes = [outcome for outcome in chosen if outcome is not None]
        settled = await self._storage.settle(outcomes) if outcomes else []
        self._answered("redrive")
        done = sum(answer.status == "applied" for answer in settled)
        if done:
            log.info("worker %s reopened %d failed jobs", self._state.name, done)
        return done

    async def _due_rows(self, queue: str | None, limit: int) -> list[Record]:
        """The due jobs of the next pages, about `limit`."""
        due: list[Record] = []
        for _ in range(PAGES if limit > 0 else 0):
            query = Query(state=(State.FAILED,), queue=queue, order="oldest", limit=PAGE, cursor=self._cursors[queue])
            now = self._now()  # before the read: a job that becomes due meanwhile waits for the next look
            page, tasks = await self._storage.find(query), self._tasks()
            due += [
                row
                for row in page.records
                if row.job.queue in self._queues and row.job.task in tasks and self._rule.due(row, now)
            ]
            self._cursors[queue] = page.cursor
            if page.cursor is None or len(due) >= limit:
                break
        return due
