"""How long calls of Treadle wait for each other's locks on PostgreSQL, while several workers and an operator work.

    python3 dev.py bench waits [--url URL] [--rounds 3]

900 jobs of every kind: limits with and without partitions, rates, keys, lanes, joins, children, and parents that fail
because of them. Six workers on separate connections settle and claim 24 at a time; an operator sets limits, enqueues
into bounded queues, replaces, cancels, retries, stores metrics and prunes. A sampler asks the server every 2 ms which
backend waits for which, and how long. The goal: no wait over 100 ms, and no cycle of waits. The test suite runs the
same load and checks for cycles; durations are measured only here, because they depend on other load on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
from msgspec.structs import replace

from benchmarks.claim_cost import there
from treadle.core.limit_model import Limit
from treadle.core.model import ACT, Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.core.query_model import MetricsRow, Query
from treadle.errors import StorageError
from treadle.storage.postgres import PostgresStorage

WORKERS = 6
QUEUES = ("one", "two", "three")

RULES = (
    Limit("tenant", slots=2),
    Limit("account", slots=1, hold="ended"),
    Limit("user", rate=500, per=1.0),
    Limit("bucket", rate=500, per=1.0, how="bucket"),
    Limit("queue", slots=1_000),
    Limit("queue:three", max_waiting=250, when_full="drop_oldest"),
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
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


class Watcher:
    """Samples which backends wait for which, on a separate connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._circling = set[tuple[int, str]]()  # waits that were part of a cycle in the last sample
        self.samples = 0
        self.waits = dict[tuple[int, str], tuple[float, str]]()  # by process and beginning: its seconds and description
        self.cycles, self.idle = list[str](), set[str]()

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._over.wait(0.002):
                self._look(connection)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        rows = connection.execute(WAITING).fetchall()
        self.samples += 1
        behind = {pid: set(others) - {pid} for pid, others, *_ in rows}
        for pid, others, seconds, begun, lock, verb, idle in rows:
            said = f"{pid} waits in {verb} for {lock}, behind {others}"
            self.waits[pid, begun] = seconds or 0.0, said
            if idle:
                self.idle.add(f"{said}, of which {idle} wait for their clients")
        circling = {pid for pid in behind if pid in _reached(behind, pid)}
        waits = {(pid, begun) for pid, _, _, begun, *_ in rows if pid in circling}
        if waits and waits == self._circling:
            said = (self.waits[each][1] for each in sorted(waits))
            self.cycles.append(f"{sorted(circling)} wait for each other: {'; '.join(said)}")
        self._circling = waits

    def longest(self) -> list[tuple[float, str]]:
        """Seconds and description of all sampled waits, the longest first."""
        return sorted(self.waits.values(), reverse=True)

    def deadlocks(self) -> int:
        """How many deadlocks the server has detected in this database."""
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


def _reached(behind: dict[int, set[int]], start: int) -> set[int]:
    found, left = set[int](), list(behind[start])
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += behind.get(pid, ())
    return found


class Load:
    """Jobs of every kind, and the workers and operator that process them until none is left."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.rng = url, random.Random(seed)
        self.left = True
        self.more = 40  # calls of the operator that enqueue jobs and replace others with the same keys
        self.refused = list[str]()

    def new(self, prefix: str, number: int) -> NewJob:
        rng = self.rng
        tenant = f"tenant:{min(rng.randrange(60), rng.randrange(60))}"  # low numbers are far more frequent
        account, user = f"account:{rng.randrange(40)}", rng.randrange(500)
        names = rng.choice(
            [(), ("all",), (tenant,), (account,), (f"user:{user}",), (f"bucket:{user}", tenant), ("all", account)]
        )
        limits = tuple((name, 1) for name in names)
        lane = rng.choice([None, None, "a", "b", "c"])
        return NewJob(id=f"{prefix}{number:05}", task="t", queue=rng.choice(QUEUES), limits=limits, lane=lane)

    def joined(self, number: int, ups: list[NewJob]) -> NewJob:
        """A job with a key that waits for some of these."""
        after = tuple(sorted({up.id for up in self.rng.sample(ups, 4)}))
        return NewJob(
            id=f"join{number:04}",
            task="t",
            queue="one",
            after=after,
            failures_allowed=None,
            key=f"k{number % 25}",
            key_conflict="keep",
            wait_timeout=60.0,
        )

    def outcome(self, row: Record) -> Outcome:
        ended = Outcome(id=row.job.id, version=row.version, state=State.SUCCEEDED, attempt=row.attempt + 1)
        if row.function_done:  # it names its children: the operator may retry one before this outcome is stored
            return replace(ended, state=State.FAILED, error="e", reason="children", after=row.after)
        kind = self.rng.random()
        if kind < 0.1 and row.attempt == 0:
            return Outcome(id=row.job.id, version=row.version, state=State.READY, attempt=1, reason="error")
        if kind < 0.15:
            return Outcome(id=row.job.id, version=row.version, state=State.FAILED, attempt=1, error="e", reason="error")
        if kind < 0.3 and not row.job.id.startswith("child"):
            keys = self.rng.sample(range(200), 2)
            born = tuple([NewJob(id=f"child{row.job.id}-{key}", task="t", queue="two", key=f"c{key}") for key in keys])
            if kind < 0.2:
                return _waiting(replace(ended, followups=born), tuple(new.id for new in born))
            return replace(ended, followups=born)
        return ended

    def with_spent(self, row: Record, out: Outcome) -> Outcome:
        """The outcome, for every third job with real costs of its limits."""
        if self.rng.random() < 0.67:
            return out
        return replace(out, spent=tuple([(name, self.rng.randint(0, 2)) for name, _ in row.job.limits]))

    async def work(self, name: str) -> None:
        async with opened(f"{self.url}?pool=2&listen=off") as storage:
            await self._work(storage, name)

    async def _work(self, storage: PostgresStorage, name: str) -> None:
        outcomes: list[Outcome] = []
        claim_ids, idle = 0, 0
        while idle < 5:
            claim_ids += 1
            ask = Claim(worker=f"{name}#{claim_ids}", queues=tuple((queue, 8) for queue in QUEUES), limit=24)
            settled, found = await storage.settle_claim(outcomes, ask)
            answered = list(zip(outcomes, settled, strict=True))
            outcomes = [out for out, each in answered if each.again]
            self.refused += [out.id for out in outcomes]
            outcomes += [
                _instead(out, str(each.reason)) for out, each in answered if each.status == "stale" and out.after
            ]
            if found.records:
                renewals = [LeaseRenewal(row.job.id, row.version) for row in found.records]
                assert not (await storage.heartbeat(Presence(worker=name), renewals, 30.0)).lost
            outcomes += [self.with_spent(row, self.outcome(row)) for row in found.records]
            idle = 0 if outcomes or self.more else idle + 1
            if not outcomes:
                await asyncio.sleep(0.05)

    async def operate(self) -> None:
        """Set rules, cancel jobs and prune ended ones while the workers run."""
        async with opened(f"{self.url}?pool=2&listen=off") as storage:
            while self.left:
                await self._operate(storage)
                await asyncio.sleep(0.02)

    async def _operate(self, storage: PostgresStorage) -> None:
        await storage.set_limits([Limit("tenant", slots=self.rng.choice([1, 2, 3])), Limit("all", slots=40)])
        if self.more:
            new = [
                replace(self.new(f"m{self.more}-", number), key=f"r{self.rng.randrange(9)}", key_conflict="replace")
                for number in range(5)
            ]
            await storage.enqueue(new)
            await self._reopen(storage)
            self.more -= 1
        at = float(self.more // 4)
        await storage.store_metrics([MetricsRow(at=at, span=1.0, source=f"w{self.rng.randrange(9)}", data=b"x")])
        rows = (await storage.find(Query(state=(State.READY, State.WAITING), limit=200))).records
        some = self.rng.sample(list(rows), min(4, len(rows)))
        await storage.settle(
            [Outcome(id=row.job.id, version=row.version, state=State.CANCELLED, reason="asked") for row in some]
        )
        await storage.prune(100)

    async def _reopen(self, storage: PostgresStorage) -> None:
        """Retry some of the failed jobs and of those that were cancelled."""
        rows = (await storage.find(Query(state=(State.FAILED, State.CANCELLED), limit=50))).records
        some = self.rng.sample(list(rows), min(6, len(rows)))
        nonce = ((ACT, f"retry {self.more}"),)
        await storage.settle(
            [Outcome(id=row.job.id, version=row.version, state=State.READY, checkpoints=nonce) for row in some]
        )


def _instead(out: Outcome, why: str) -> Outcome:
    """The outcome of a parent of which a child that it names is open or has succeeded."""
    if why.endswith("succeeded"):
        return replace(out, state=State.SUCCEEDED, after=(), error=None, reason=None)
    return _waiting(out, out.after)


def _waiting(out: Outcome, after: tuple[str, ...]) -> Outcome:
    """The outcome that lets its job wait for these children instead of ending."""
    return replace(
        out, state=State.WAITING, error=None, reason=None, after=after, failures_allowed=None, function_done=True
    )


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStorage]:
    storage = PostgresStorage(url)
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


async def work_off(load: Load, watcher: Watcher) -> list[Record]:
    """Run the load to its end. Returns the unfinished jobs, of which there should be none."""
    async with opened(load.url) as storage:
        await storage.set_limits(RULES)
        new = [load.new("j", number) for number in range(900)]
        for at in range(0, len(new), 100):
            await storage.enqueue(new[at : at + 100])
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
        return list((await storage.find(Query(state=(State.READY, State.WAITING, State.RUNNING), limit=100))).records)


async def measure(url: str, rounds: int) -> None:
    print(
        "| round | waits seen | longest, ms | 99 of 100 below, ms | median, ms | circles |\n|---|---|---|---|---|---|"
    )
    for number in range(rounds):
        async with there(url) as place:
            watcher = Watcher(place)
            await work_off(Load(place, number), watcher)
        longest = watcher.longest()
        spans = [seconds * 1000 for seconds, _ in longest] or [0.0]
        cells = spans[0], spans[len(spans) // 100], statistics.median(spans)
        print(f"| {number + 1} | {len(longest)} | " + " | ".join(f"{each:.0f}" for each in cells), end=" | ")
        print(f"{len(watcher.cycles)} |", flush=True)
        for seconds, said in longest[:3]:
            print(f"  {seconds * 1000:.0f} ms: {said}", file=sys.stderr)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench waits", description=__doc__)
    parser.add_argument("--url", default="postgres")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(words)
    asyncio.run(measure(args.url, args.rounds))
