"""No two calls wait for each other, and none waits long; see the order of locks in docs/internals/postgres.md.

Several workers on connections of their own, and an operator, under a mixed load. A sampler asks the server which
backend waits for which. Calls that wait for each other show as a cycle, or as a deadlock that the server breaks up;
neither is allowed. The server reads its locks anew for each backend of a look, so a cycle counts if the same waits form
it in two looks. A lock that is held while its holder waits for its client shows as a transaction that is idle;
that is not allowed either. No call waits long for a lock, counted in the processor time of the lock's holder: most of
the rest, on a loaded machine, is the wait for a processor and for the disk. The bound is 250 ms; on an idle machine the
longest wait is below 100 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import postgres
from treadle.errors import StorageError
from treadle.model import Claim, Hold, Limit, NewJob, Outcome, Presence, Query, Record, State
from treadle.storage.postgres import PostgresStorage

WORKERS = 6
QUEUES = ("one", "two", "three")

RULES = (
    Limit("tenant", slots=2),
    Limit("account", slots=1, hold="ended"),
    Limit("user", rate=500, per=1.0),
    Limit("bucket", rate=500, per=1.0, how="bucket"),
    Limit("queue", slots=1_000),
    Limit("all", slots=40),
)
WAITING = (
    "SELECT l.pid, pg_blocking_pids(l.pid), extract(epoch FROM clock_timestamp() - l.waitstart)::float8,"
    " l.waitstart::text,"
    " concat_ws(' ', l.locktype, l.relation::regclass), substring(a.query FROM '\\.(\\w+)_'),"
    " ARRAY(SELECT b.pid FROM pg_stat_activity b"
    " WHERE b.pid = ANY (pg_blocking_pids(l.pid)) AND b.state LIKE 'idle in%')"
    " FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()"
)
LONG = 0.25  # s
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


class Watcher:
    """Samples which backends wait for which, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._ran = dict[int, float]()  # s that each backend has had a processor
        self._holders = dict[tuple[int, str], set[int]]()  # of each wait of the last look
        self._waited = Counter[tuple[int, str]]()  # s that holders ran in each wait, by its process and beginning
        self._said = dict[tuple[int, str], str]()
        self._circling = set[tuple[int, str]]()  # waits of the last look that led back to themselves
        self.samples, self.longest = 0, 0.0
        self.cycles, self.idle = list[str](), set[str]()

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._over.wait(0.002):
                self._look(connection)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        rows = connection.execute(WAITING).fetchall()
        self.samples += 1
        behind = {pid: set(others) - {pid} for pid, others, *_ in rows}
        self._measure(set(behind).union(*behind.values()))
        for pid, others, seconds, begun, lock, verb, idle in rows:
            self.longest = max(self.longest, seconds or 0.0)
            self._holders[pid, begun] = _reached(behind, pid) - set(behind)
            said = self._said[pid, begun] = f"{pid} waits in {verb} for {lock}, behind {others}"
            if idle:
                self.idle.add(f"{said}, of which {idle} wait for their clients")
        circling = {pid for pid in behind if pid in _reached(behind, pid)}
        waits = {(pid, begun) for pid, _, _, begun, *_ in rows if pid in circling}
        if waits and waits == self._circling:
            self.cycles.append(f"{sorted(circling)} wait for each other")
        self._circling = waits

    def _measure(self, pids: set[int]) -> None:
        """Add to the waits of the last look for how long their holders have run since.

        The system may count that when it is over, so a wait that has ended is looked at once more."""
        ran = {pid: _ran(pid) for pid in {*self._ran, *pids}}
        for wait, holders in self._holders.items():
            self._waited[wait] += max([0.0, *(ran[pid] - self._ran.get(pid, ran[pid]) for pid in holders)])
        self._ran, self._holders = ran, {}

    @property
    def longest_held(self) -> float:
        """Of the longest wait, the seconds in which its holders had a processor."""
        return max(self._waited.values(), default=0.0)

    def long(self) -> dict[str, float]:
        """Waits that lasted too long, and the ms that their holders had a processor."""
        return {self._said[wait]: seconds * 1000 for wait, seconds in self._waited.most_common() if seconds > LONG}

    def deadlocks(self) -> int:
        """How many the server has broken up in this database."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            [(found,)] = connection.execute(DEADLOCKS).fetchall()
        return int(found)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def _ran(pid: int) -> float:
    """Seconds that this process has had a processor."""
    if not Path("/proc/self/schedstat").exists():
        return time.monotonic()
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):  # it has ended
        return 0.0


def _reached(behind: dict[int, set[int]], start: int) -> set[int]:
    found, left = set[int](), list(behind[start])
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += behind.get(pid, ())
    return found


class Load:
    """Jobs of every kind, worked off by several, until none is left."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.chance = url, random.Random(seed)
        self.left = True
        self.refused = list[str]()

    def new(self, prefix: str, number: int) -> NewJob:
        chance = self.chance
        tenant = f"tenant:{min(chance.randrange(60), chance.randrange(60))}"  # some are far busier than others
        account, user = f"account:{chance.randrange(40)}", chance.randrange(500)
        names = chance.choice([
            (), ("all",), (tenant,), (account,), (f"user:{user}",), (f"bucket:{user}", tenant), ("all", account)
        ])  # fmt: skip
        limits = tuple((name, 1) for name in names)
        return NewJob(id=f"{prefix}{number:05}", task="t", queue=chance.choice(QUEUES), limits=limits)

    def joined(self, number: int, ups: list[NewJob]) -> NewJob:
        """Waits for some of these, under a key."""
        after = tuple(sorted({up.id for up in self.chance.sample(ups, 4)}))
        return NewJob(id=f"join{number:04}", task="t", queue="one", after=after, slack=None, key=f"k{number % 25}",
                      key_conflict="keep", wait_timeout=60.0)  # fmt: skip

    def outcome(self, row: Record) -> Outcome:
        ended = Outcome(id=row.job.id, version=row.version, state=State.SUCCEEDED, attempt=row.attempt + 1)
        kind = self.chance.random()
        if kind < 0.1 and row.attempt == 0:
            return Outcome(id=row.job.id, version=row.version, state=State.READY, attempt=1, reason="error")
        if kind < 0.15:
            return Outcome(id=row.job.id, version=row.version, state=State.FAILED, attempt=1, error="e", reason="error")
        if kind < 0.3 and not row.job.id.startswith("child"):
            keys = self.chance.sample(range(200), 2)
            born = [NewJob(id=f"child{row.job.id}-{key}", task="t", queue="two", key=f"c{key}") for key in keys]
            return Outcome(id=row.job.id, version=row.version, state=State.SUCCEEDED, attempt=1, then=tuple(born))
        return ended

    async def work(self, name: str) -> None:
        async with _opened(f"{self.url}?pool=2&listen=off") as storage:
            await self._work(storage, name)

    async def _work(self, storage: PostgresStorage, name: str) -> None:
        outcomes: list[Outcome] = []
        tickets, idle = 0, 0
        while idle < 5:
            tickets += 1
            ask = Claim(worker=f"{name}#{tickets}", queues=tuple((queue, 8) for queue in QUEUES), limit=24)
            settled, found = await storage.settle_claim(outcomes, ask)
            again = [out for out, each in zip(outcomes, settled, strict=True) if each.again]
            self.refused += [out.id for out in again]
            outcomes = again
            if found.records:
                holds = [Hold(row.job.id, row.version) for row in found.records]
                assert not (await storage.heartbeat(Presence(worker=name), holds, 30.0)).lost
            outcomes += [self.outcome(row) for row in found.records]
            idle = 0 if outcomes else idle + 1
            if not outcomes:
                await asyncio.sleep(0.05)

    async def operate(self) -> None:
        """Rules are set, jobs cancelled, ended ones pruned, while the others work."""
        async with _opened(f"{self.url}?pool=2&listen=off") as storage:
            while self.left:
                await self._operate(storage)
                await asyncio.sleep(0.02)

    async def _operate(self, storage: PostgresStorage) -> None:
        await storage.set_limits([Limit("tenant", slots=self.chance.choice([1, 2, 3])), Limit("all", slots=40)])
        rows = (await storage.find(Query(state=(State.READY, State.WAITING), limit=200))).records
        some = self.chance.sample(list(rows), min(4, len(rows)))
        await storage.settle([
            Outcome(id=row.job.id, version=row.version, state=State.CANCELLED, reason="asked") for row in some
        ])  # fmt: skip
        await storage.prune(100)


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[PostgresStorage]:
    storage = PostgresStorage(url)
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


def test_the_sampler_sees_two_that_wait_for_each_other() -> None:
    url = postgres.database()
    watcher = Watcher(url)

    def lock(first: int, second: int, both: threading.Barrier) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("SET deadlock_timeout = '20s'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [first])
            both.wait(60)
            connection.execute("SET statement_timeout = '10s'")
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [second])

    both = threading.Barrier(2)
    threads = [threading.Thread(target=lock, args=(*pair, both)) for pair in ((1, 2), (2, 1))]
    with watcher.watching():
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not watcher.cycles:
            time.sleep(0.01)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
        for thread in threads:
            thread.join()
    assert watcher.cycles


@pytest.mark.parametrize("seed", range(2))
async def test_calls_never_wait_for_each_other(seed: int) -> None:
    url = postgres.database()
    load, watcher = Load(url, seed), Watcher(url)
    async with _opened(url) as storage:
        await storage.set_limits(RULES)
        new = [load.new("j", number) for number in range(900)]
        await storage.enqueue(new)
        for number in range(60):
            with contextlib.suppress(StorageError):
                await storage.enqueue([load.joined(number, new)])
        with watcher.watching():
            operator = asyncio.create_task(load.operate())
            try:
                async with asyncio.timeout(120), asyncio.TaskGroup() as workers:
                    for number in range(WORKERS):
                        workers.create_task(load.work(f"w{number}"))
            finally:
                load.left = False
                await operator
                assert watcher.cycles == []
        rows = (await storage.find(Query(state=(State.READY, State.WAITING, State.RUNNING), limit=100))).records
    print(
        f"{watcher.samples} samples, the longest wait {watcher.longest * 1000:.0f} ms,"
        f" {watcher.longest_held * 1000:.0f} ms of processor time of its holders;"
        f" {len(load.refused)} outcomes settled again after a lock timeout"
    )
    assert [(row.job.id, row.state, row.parked) for row in rows] == []
    assert watcher.deadlocks() == 0
    assert watcher.samples > 20
    assert watcher.idle == set()
    assert watcher.long() == {}
