"""The faults of a fleet: a seed chooses faults, their order and how long each lasts.

Two run at the same time: one harms processes, one harms the server and the network. Each fault ends what it began.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from tests.faults.stages import PostgresStage, RedisStage, ShardsStage, SqliteStage, Stage
from tests.soak.clusters import ClusterShardsStage, ClusterStage
from tests.soak.failover import SentinelStage, StandbyStage
from tests.soak.fleet import Fleet
from tests.soak.full_disk import SmallDiskPostgresStage, SmallDiskStage, SmallDiskValkeyStage
from tests.soak.moving import MovingStage
from tests.soak.set_clock import SetClockStage
from tests.soak.tasks import LEASE
from tests.waiting import random_moment

TIMED_OUT = b"canceling statement due to statement timeout"  # what the server logs
Fault = Callable[[], Awaitable[None]]
STAGES: dict[str, type[Stage]] = {
    "sqlite": SqliteStage,
    "set clock": SetClockStage,
    "small disk": SmallDiskStage,
    "small disk postgres": SmallDiskPostgresStage,
    "small disk valkey": SmallDiskValkeyStage,
    "postgres": PostgresStage,
    "standby": StandbyStage,
    "valkey": RedisStage,
    "shards": ShardsStage,
    "sentinel": SentinelStage,
    "cluster": ClusterStage,
    "cluster shards": ClusterShardsStage,
    "moving": MovingStage,
}


class Nemesis:
    """Harms a fleet and its stage until it is cancelled.

    only  names of faults; (): all faults of the storage
    """

    def __init__(self, fleet: Fleet, stage: Stage, seed: int, only: tuple[str, ...] = ()) -> None:
        self._fleet, self._stage = fleet, stage
        self._move: asyncio.Task[None] | None = None
        self._on_processes, self._around = random.Random(f"{seed} processes"), random.Random(f"{seed} around")
        self.processes: dict[str, Fault] = {"kill": self._kill, "kill two": self._kill_two, "stall": self._stall}
        self.around: dict[str, Fault] = {way: self._outage(way) for way in stage.ways}
        if hasattr(stage, "proxy"):
            self.around |= {"cuts": self._cuts, "reset": self._reset, "slow": self._slow, "half-open": self._half_open}
        if isinstance(stage, PostgresStage):
            self.around["terminated"] = self._terminated
        if isinstance(stage, PostgresStage) and getattr(stage, "cancels", True):
            self.around |= {"cancelled statements": self._cancelled, "statement timeout": self._timed_out}
        if isinstance(stage, MovingStage):
            self.around["moved"] = self._moved
        if isinstance(stage, SetClockStage):
            self.around["clock set"] = self._set_clock
        for faults in (self.processes, self.around):
            for name in [name for name in faults if only and name not in only]:
                del faults[name]

    async def run(self) -> None:
        """Harm until cancelled; everything is repaired then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._go_on(self._on_processes, self.processes))
            group.create_task(self._go_on(self._around, self.around))

    async def heal(self) -> None:
        """Repair everything that may still be broken."""
        if self._move is not None:
            await self._move
        if self._fleet.clock is not None:
            self._step_to(0.0)
        if hasattr(self._stage, "proxy"):
            proxy = self._stage.proxy
            proxy.forget()
            proxy.delay = 0.0
            proxy.flow()
            await proxy.accept()
            for link in proxy.links:
                if link.silent:
                    link.reset()

    async def _go_on(self, rng: random.Random, faults: dict[str, Fault]) -> None:
        while faults:
            await random_moment(rng, 0.2, 2.5)
            name = rng.choice(sorted(faults))
            self._fleet.history.add("note", text=name)
            await faults[name]()

    # --- processes

    async def _kill(self) -> None:
        await self._fleet.kill(self._on_processes.choice(self._fleet.roles))

    async def _kill_two(self) -> None:
        roles = self._on_processes.sample(self._fleet.roles, 2)
        await asyncio.gather(*(self._fleet.kill(role) for role in roles))

    async def _stall(self) -> None:
        workers = [role for role in self._fleet.roles if role.startswith("worker")]
        await self._fleet.stall(self._on_processes.choice(workers), self._on_processes.choice((0.5, 1.5, 2.0)) * LEASE)

    # --- the server and the network

    def _outage(self, way: str) -> Fault:
        begin, end = self._stage_outage(way)

        async def harm() -> None:
            seconds = self._around.uniform(0.2, 2.5)
            beginning = asyncio.ensure_future(_finished(begin()))
            try:
                await asyncio.shield(beginning)  # it may run in a thread, which continues when this is cancelled
                await asyncio.sleep(seconds)
            finally:
                await asyncio.shield(_ended(beginning, end))
            self._fleet.done[way] += 1

        return harm

    def _stage_outage(self, way: str) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]:
        return self._stage.outages[way]

    async def _cuts(self) -> None:
        """A few requests are lost, and a few answers, some of them cut in the middle."""
        proxy, rng = self._stage.proxy, self._around
        for _ in range(rng.randint(2, 6)):
            call = rng.randint(1, 15)
            cut = proxy.lose_request(call=call) if rng.random() < 0.4 else proxy.lose_answer(call=call, after=call)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await cut.happened()
                self._fleet.done["cut"] += 1
        proxy.forget()

    async def _reset(self) -> None:
        self._stage.proxy.reset()
        self._fleet.done["reset"] += 1

    async def _slow(self) -> None:
        self._stage.proxy.delay = self._around.uniform(0.01, 0.15)
        try:
            await random_moment(self._around, 0.5, 2.0)
        finally:
            self._stage.proxy.delay = 0.0
        self._fleet.done["slow"] += 1

    async def _half_open(self) -> None:
        """One or two connections accept bytes and never answer again."""
        for _ in range(self._around.randint(1, 2)):
            self._stage.proxy.silence(call=self._around.randint(1, 10))
        await asyncio.sleep(0.5)
        self._stage.proxy.forget()
        self._fleet.done["half-open"] += 1

    # --- the machine

    async def _set_clock(self) -> None:
        self._step_to(self._around.choice(self._stage.settings))
        self._fleet.done["clock set"] += 1

    def _step_to(self, ahead: float) -> None:
        """The clock steps. Each process reads it at once."""
        assert self._fleet.clock is not None
        self._fleet.history.add("clock", seconds=self._fleet.clock.set(ahead))

    # --- moves

    async def _moved(self) -> None:
        """Move all jobs to another storage; then start each process again with the new URL. A move that has begun ends,
        even if this is cancelled."""
        self._move = asyncio.create_task(self._move_all())
        await asyncio.shield(self._move)

    async def _move_all(self) -> None:
        self._fleet.done["kill of a move"] += await self._stage.move(self._around)
        self._fleet.done["moved"] += 1
        self._fleet.url = self._stage.url
        await asyncio.gather(*(self._fleet.kill(role) for role in self._fleet.roles))

    # --- faults of PostgreSQL

    async def _on_backends(self, what: str, share: float) -> int:
        statement = (
            f"SELECT count({what}(pid)) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND pid <> pg_backend_pid() AND random() < {share}"
        )
        try:
            async with await psycopg.AsyncConnection.connect(self._stage.direct, autocommit=True) as connection:
                found = await (await connection.execute(statement.encode())).fetchone()
        except psycopg.OperationalError:
            return 0
        return int(found[0]) if found else 0

    async def _terminated(self) -> None:
        self._fleet.done["terminated"] += await self._on_backends("pg_terminate_backend", 0.5)

    async def _timed_out(self) -> None:
        """A lock is held for longer than the `statement_timeout` that Treadle sets. Counts the statements it ended."""
        (lock, unlock), log = self._stage.outages["locked"], self._stage.server.folder / "log"
        before = log.read_bytes().count(TIMED_OUT)
        locking = asyncio.ensure_future(_finished(lock()))
        try:
            await asyncio.shield(locking)
            await asyncio.sleep(self._fleet.patience + self._around.uniform(0.5, 1.5))
        finally:
            await asyncio.shield(_ended(locking, unlock))
        self._fleet.done["timed-out statements"] += log.read_bytes().count(TIMED_OUT) - before

    async def _cancelled(self) -> None:
        """The running statements are cancelled, as by an administrator."""
        for _ in range(15):
            self._fleet.done["cancelled"] += await self._on_backends("pg_cancel_backend", 0.7)
            await random_moment(self._around, 0.0, 0.05)


async def _finished(work: Awaitable[Any]) -> None:
    await work


async def _ended(beginning: asyncio.Future[None], end: Callable[[], Awaitable[Any]]) -> None:
    """End every fault that has begun, even one that begins late."""
    await beginning
    await end()
