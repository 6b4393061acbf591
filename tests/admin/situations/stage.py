"""Means to make a situation: an app on some storage, a clock moved by hand, workers as calls of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.kit import Spy
from treadle import App, Job
from treadle.core.clock import moment_text
from treadle.core.model import Claim, NewJob, Outcome, Presence, Record, State
from treadle.testing import HandClock

Sentence = tuple[str, str]
"""The id of a job and the sentence about it."""
Situation = Callable[["Stage"], AsyncIterator[Sentence]]

START = "2023-11-14 22:13:20 UTC"  # where the clock begins


class Situations:
    """The situations of one module, by name. `queue_limits`: those that limit a queue, which shards refuse."""

    def __init__(self) -> None:
        self.all: dict[str, Situation] = {}
        self.queue_limits: set[str] = set()

    def add(self, made: Situation) -> Situation:
        self.all[made.__name__] = made
        return made

    def of_queue(self, made: Situation) -> Situation:
        self.queue_limits.add(made.__name__)
        return self.add(made)


class Stage:
    """One storage. The task `t` of the queue `default` does nothing; its jobs are named by their ids."""

    def __init__(self, app: App, spy: Spy, clock: HandClock) -> None:
        self.app, self.spy, self.clock = app, spy, clock

        @app.task(name="t")
        async def t() -> None: ...

        self.task = t
        self._begun = clock()
        self._claims = 0

    @property
    def storage(self) -> Spy:
        return self.spy

    def at(self, seconds: float) -> str:
        """The moment so many seconds after the clock began, as sentences show it."""
        return moment_text(self._begun + seconds)

    async def job(self, id: str = "a", task: Any = None, **options: Any) -> Job[Any, Any]:
        return await (task or self.task).options(id=id, **options).enqueue()

    async def row(self, id: str) -> Record:
        return await self.app.jobs.get(id)

    async def raw(self, id: str, **fields: Any) -> None:
        await self.storage.enqueue([NewJob(id=id, task="t", **fields)])

    async def beat(self, worker: str = "w1", queue: str = "default", **facts: Any) -> None:
        """A heartbeat of a worker with four slots that has the task."""
        known: dict[str, Any] = {"tasks": ("t",), "slots": 4, **facts}
        await self.storage.heartbeat(Presence(worker=worker, queues=(queue,), **known), [], 30)

    async def claim(self, *ids: str, worker: str = "w1", lease: float = 60, queue: str = "default") -> list[Record]:
        """Claim these jobs, or with none named, whatever there is."""
        self._claims += 1
        ask = Claim(worker=f"{worker}#{self._claims}", queues=((queue, 9),), limit=9, lease=lease, ids=ids)
        return list((await self.storage.claim(ask)).records)

    async def settle(self, row: Record, state: State = State.SUCCEEDED, attempt: int = 1, **fields: Any) -> None:
        [settled] = await self.storage.settle(
            [Outcome(id=row.job.id, version=row.version, state=state, attempt=attempt, **fields)]
        )
        assert settled.status == "applied", settled

    async def until(self, id: str, words: str) -> None:
        """Wait until the sentence contains this: a worker reports itself with its heartbeats."""

        async def said() -> bool:
            return words in await self.app.jobs.explain(id)

        await self.spy.until(said, f"a sentence with {words!r}")

    async def till(self, id: str, holds: Callable[[Record], bool]) -> Record:
        """Wait until the row of a job is so."""

        async def found() -> Record | None:
            row = await self.row(id)
            return row if holds(row) else None

        row: Record = await self.spy.until(found, f"the row of {id}")
        return row


class Gate:
    """Lets a run of a real worker begin, and end when the test says so."""

    def __init__(self) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.began.set()
        await self.go.wait()
