"""Dead letters get another chance when there is nothing else to do: a few at a time, later each time, not for ever.

Without it what failed because a service was down for an hour would wait for a person. How often a job was reopened
stands in its row, so neither a restart nor a second worker makes it more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from datetime import timedelta

from msgspec.structs import force_setattr

from treadle.core.argument_names import Spelled
from treadle.core.model import ERROR, LOST, Outcome, Query, Record, State
from treadle.errors import BadOption
from treadle.policy.retry import seconds
from treadle.storage.contract import Storage, confined
from treadle.worker.state import WorkerState

log = logging.getLogger("treadle")

PAGES = 10  # looked at each time; where it stopped it goes on, and begins anew at the end
PAGE = 100


class Redrive(Spelled, frozen=True):
    """`Worker(app, redrive=Redrive())`: an idle worker reopens failed jobs it could run.

    limit      how many at one look
    backoff    s after the ending until the first time, twice as long before each further one; `longest` at most
    max_times  how often a job is reopened in all, by hand included
    every      s between two looks
    reasons    which failures: by default those of an error and of lost workers, not the aborted and the expired
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
            length = seconds(value, f"redrive.{name}")
            if not length:
                raise BadOption(f"redrive.{name}", "expected more than 0 s")
            force_setattr(self, name, length)

    def due(self, row: Record, now: float) -> bool:
        """Whether its time has come."""
        assert isinstance(self.backoff, float)
        assert isinstance(self.longest, float)
        wait = min(self.backoff * 2.0 ** min(row.round, 60), self.longest)
        return row.reason in self.reasons and row.round < self.max_times and (row.ended_at or now) + wait <= now


class Redriver:
    """The loop of one worker."""

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
        # of the last page; where a token shows rows of some queues only, of each of them
        self._cursors: dict[str | None, str | None] = dict.fromkeys(self._queues if confined(storage) else [None])

    async def run(self) -> None:
        assert isinstance(self._rule.every, float)
        while True:
            await asyncio.sleep(self._rule.every * random.uniform(0.5, 1.5))  # not all workers at once
            if self._state.watched and not self._state.running:
                await self.look()
            else:
                self._answered("redrive")  # nothing is asked

    async def look(self) -> int:
        """One look; answers how many were reopened. Each is fenced by the version seen: of two workers one does it."""
        found: list[Record] = []
        for queue in self._cursors:
            found += await self._failed(queue, self._rule.limit - len(found))
        found = found[: self._rule.limit]
        outs = [Outcome(id=row.job.id, version=row.version, state=State.READY) for row in found]
        settled = await self._storage.settle(outs) if outs else []
        self._answered("redrive")
        done = sum(answer.status == "applied" for answer in settled)
        if done:
            log.info("worker %s: %d failed jobs get another round", self._state.name, done)
        return done

    async def _failed(self, queue: str | None, most: int) -> list[Record]:
        """Those of the next pages whose time has come, about `most`."""
        found: list[Record] = []
        for _ in range(PAGES if most > 0 else 0):
            query = Query(state=(State.FAILED,), queue=queue, order="oldest", limit=PAGE, cursor=self._cursors[queue])
            now = self._now()  # before the look: what comes due during it is the next look's
            page, tasks = await self._storage.find(query), self._tasks()
            found += [
                row
                for row in page.records
                if row.job.queue in self._queues and row.job.task in tasks and self._rule.due(row, now)
            ]
            self._cursors[queue] = page.cursor
            if page.cursor is None or len(found) >= most:
                break
        return found
