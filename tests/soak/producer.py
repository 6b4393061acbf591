"""A producer of the soak: it enqueues, cancels, signals and forks until it is stopped, and records all of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from tests.soak.skew import true
from tests.soak.tasks import BOUND, BOUNDED
from tests.waiting import random_moment
from treadle import App, JobSpec, Key, QueueFull, StorageError, TreadleError, at_least
from treadle.errors import Signalled, Stale
from treadle.testing.history import History, facts_of

MOST = 250  # unfinished jobs after which producers wait
REMEMBERED = 40  # own jobs that a producer may cancel
SINGLES = (  # tasks
    "work", "work", "thread", "tenant", "account", "paced", "costly", "batch", "trip", "impatient", "heavy", "light",
)  # fmt: skip
FORK_ALIVE = 20  # seconds that a forked copy may take


class Producer:
    """One process that enqueues.

    path  of the SQLite file, or the address of the PostgreSQL database, for users' transactions; None: no transactions
    """

    def __init__(self, app: App, history: History, rng: random.Random, database: str | None, plain: App) -> None:
        self._app, self._history, self._rng, self._database = app, history, rng, database
        self._plain = plain  # without a recorder: jobs of a transaction are acknowledged by its commit
        self._serial = rng.randrange(1_000_000) * 1_000
        self._recent: deque[str] = deque(maxlen=REMEMBERED)
        self._forks = 0
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until `stopping` is set."""
        acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (60, self._jobs),
            (6, self._crowd),
            (10, self._workflows),
            (8, self._joins),
            (5, self._cancel),
            (6, self._signal),
            (1, self._fork),
        ]
        if self._database is not None:
            acts += [(6, self._transaction), (5, self._books)]
            if self._database.startswith("postgresql"):  # on SQLite it would be an outage of all other writers
                acts.append((2, self._hold))
        weights, doing = zip(*acts, strict=True)
        turn = 0
        while not self.stopping.is_set():
            with contextlib.suppress(TreadleError):  # recorded where it was raised
                if turn % 25 == 0:
                    await self._wait_for_room()
                [act] = self._rng.choices(doing, weights)
                await act()
            turn += 1
            await random_moment(self._rng, 0.0, 0.02)

    async def _wait_for_room(self) -> None:
        while not self.stopping.is_set():
            page = await self._app.jobs.list(state=("ready", "waiting"), limit=1, count=True)
            if (page.total or 0) < MOST:
                return
            await asyncio.sleep(0.1)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _job(self, task: str, **options: Any) -> JobSpec[Any]:
        return self._app.find_task(task).options(**options).job(self._next())

    async def _send(self, *specs: JobSpec[Any]) -> None:
        """Repeat a call until there is an answer, as a caller should. Sometimes give up, as many callers do."""
        while True:
            try:
                await self._app.enqueue([*specs])
            except StorageError:
                if self.stopping.is_set() or self._rng.random() < 0.2:
                    return
                await asyncio.sleep(0.05)
            else:
                break
        self._recent.extend(spec.id for spec in specs if spec.new.task == "work")
        if self._rng.random() < 0.03:  # as if the answer was lost
            await self._app.enqueue([*specs])

    # --- jobs

    async def _jobs(self) -> None:
        rng, specs = self._rng, list[JobSpec[Any]]()
        for _ in range(rng.choice((1, 1, 1, 4, 12))):
            task = rng.choice(SINGLES)
            specs.append(self._job(task, **self._options(task)))
        await self._send(*specs)

    def _options(self, task: str) -> dict[str, Any]:
        rng = self._rng
        match rng.randrange(8) if task == "work" else 7:
            case 0:
                return {"delay": rng.random()}
            case 1:
                return {"priority": rng.randrange(-2, 3)}
            case 2:
                return {"lane": f"lane{rng.randrange(3)}"}
            case 3 | 4:
                conflict: Any = rng.choice(("keep", "keep", "replace", "raise"))
                return {"key": Key(f"key{rng.randrange(6)}", conflict=conflict)}
            case _:
                return {}

    async def _crowd(self) -> None:
        """More jobs than a bounded queue takes; it refuses some, or cancels others. Before the first job has ended, no
        worker may have stored the bounds."""
        if not (await self._app.jobs.list(state="succeeded", limit=1)).records:
            return
        queue = self._rng.choice(BOUNDED)
        for _ in range(BOUND + 4):
            with contextlib.suppress(QueueFull):
                await self._send(self._job(f"crowd.{queue}", priority=self._rng.randrange(3)))

    async def _workflows(self) -> None:
        await self._send(self._job(self._rng.choice(("tree", "chained", "gathered"))))

    async def _joins(self) -> None:
        n = self._next()
        leaf, join = self._app.find_task("leaf"), self._app.find_task("join")
        parts = [leaf.job(n), leaf.job(n + 1)]
        after: Any = parts
        await self._send(
            *parts, join.options(after=after).job(n), self._job("any", after=after, when=at_least(1, of="done"))
        )

    # --- other calls

    async def _cancel(self) -> None:
        if self._recent:
            id = self._rng.choice(self._recent)
            self._history.add("act", id, name="cancel")
            await self._app.jobs.cancel(id)
            self._history.add("acted", id, name="cancel")

    async def _signal(self) -> None:
        spec = self._job("approve")
        await self._send(spec)
        await asyncio.sleep(self._rng.choice((0.0, 0.1)))
        await give(self._app, self._history, spec.id, self._next())

    async def _fork(self) -> None:
        """Fork a copy of this process that enqueues at the same time."""
        self._forks += 1
        self._history.add("note", text="fork")
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(FORK_ALIVE)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self._history.actor += f"/fork{self._forks}"
                self._serial += 500_000
                for _ in range(3):
                    self._app.sync.enqueue(self._job("work"))
            finally:
                os._exit(0)
        await asyncio.to_thread(os.waitpid, pid, 0)

    # --- users' transactions

    async def _books(self) -> None:
        await self._send(self._job("book"))

    async def _transaction(self) -> None:
        """Write a row of the user's and enqueue a job in one transaction, which is committed or rolled back."""
        assert self._database is not None
        spec = self._plain.find_task("ordered").job(self._next())
        self._history.add("asked", spec.id, facts=facts_of(spec.new))
        commit = self._rng.random() < 0.7
        try:
            if self._database.startswith("postgresql"):
                await self._on_postgres(self._database, spec, commit)
            else:
                self._on_sqlite(self._database, spec, commit)
        except (psycopg.Error, sqlite3.Error, TreadleError):
            return  # it is unknown whether it committed
        if commit:
            self._history.add("stored", spec.id)
        else:
            self._history.add("refused", spec.id, text="rolled back")

    async def _hold(self) -> None:
        """Hold a key, an id, room in a bounded queue and a limit in a transaction that stays open, while another call
        needs the same id. The transaction is rolled back: calls that wait for it must be carried out."""
        assert self._database is not None
        plain, rng, id = self._plain.find_task, self._rng, f"held-{self._next()}-{os.getpid()}"
        conflict: Any = rng.choice(("keep", "replace"))
        specs = [
            plain("work").options(id=id).job(self._next()),
            plain("work").options(key=Key(f"key{rng.randrange(6)}", conflict=conflict)).job(self._next()),
            plain(f"crowd.{rng.choice(BOUNDED)}").job(self._next()),
            plain(rng.choice(("tenant", "account", "paced"))).job(self._next()),
        ]
        same = self._job("work", id=id)

        async def need_the_same() -> None:
            await random_moment(rng, 0.0, 0.2)
            await self._send(same)

        with contextlib.suppress(psycopg.Error, TreadleError, TimeoutError):
            await asyncio.gather(self._held(self._database, specs, rng.uniform(0.1, 3.0)), need_the_same())

    async def _held(self, address: str, specs: list[JobSpec[Any]], seconds: float) -> None:
        async with asyncio.timeout(10 + seconds):
            connection = await psycopg.AsyncConnection.connect(address)
            try:
                for spec in self._rng.sample(specs, len(specs)):
                    with contextlib.suppress(QueueFull):
                        await self._plain.enqueue(spec, within=connection)
                await asyncio.sleep(seconds)
                await connection.rollback()
            finally:
                await connection.close()

    async def _on_postgres(self, address: str, spec: JobSpec[Any], commit: bool) -> None:
        connection = None
        try:
            async with asyncio.timeout(10):
                connection = await psycopg.AsyncConnection.connect(address)
                await connection.execute(f"INSERT INTO soak_order VALUES ('{spec.id}')".encode())
                await self._plain.enqueue(spec, within=connection)
                await (connection.commit() if commit else connection.rollback())
        except TimeoutError as error:
            raise psycopg.OperationalError("no answer") from error
        finally:
            if connection is not None:
                await connection.close()

    def _on_sqlite(self, path: str, spec: JobSpec[Any], commit: bool) -> None:
        with contextlib.closing(sqlite3.connect(path, timeout=2)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO soak_order VALUES (?)", (spec.id,))
            self._plain.sync.enqueue(spec, within=connection)
            if commit:
                connection.commit()
            else:
                connection.rollback()


async def give(app: App, history: History, id: str, value: int) -> None:
    """Send the signal that a job waits for, and record it."""
    history.add("signal", id, name="go", text=json.dumps(value))
    with contextlib.suppress(Signalled, Stale):
        await app.jobs.signal(id, "go", value)
        history.add("signalled", id, name="go", at=true())
