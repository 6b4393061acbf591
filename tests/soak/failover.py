"""Stages whose server fails over: a PostgreSQL standby and a Redis replica are promoted while the fleet works."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from typing import ClassVar

from tests.faults.stages import PostgresStage, Stage
from tests.servers.sentinel import MASTER, Sentinels
from tests.servers.standby import Pair
from tests.servers.valkey import Valkey
from treadle_testkit.proxy import Proxy

PAUSE = 120_000  # ms for which a primary refuses writes at most, until it is a replica or is killed
_numbers = itertools.count()


class StandbyStage(PostgresStage):
    """A primary with a synchronous standby; the proxies lead to the current primary, as a virtual address does.

    No statement is cancelled here: PostgreSQL acknowledges a commit that was cancelled while it waited for the standby.
    A terminated backend acknowledges nothing.
    """

    name = "standby"
    ways: ClassVar[tuple[str, ...]] = ("promoted", "standby killed", "refused", "black hole")
    cancels: ClassVar[bool] = False

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self.pair = Pair()
        self.server = self.pair.primary
        self.proxy, self._past = Proxy("127.0.0.1", self.server.port), Proxy("127.0.0.1", self.server.port)
        self.outages = {
            "promoted": (self._fail_over, self._restore),
            "standby killed": (self._kill_standby, self._start_standby),
            "refused": (self.proxy.refuse, self.proxy.accept),
            "black hole": (self._swallow, self._flow),
        }

    async def open(self) -> None:
        await asyncio.to_thread(self.pair.start)
        database = await asyncio.to_thread(self.server.database)
        for proxy in (self.proxy, self._past):
            await proxy.accept()
        self.url, self.direct = (re.sub(r":\d+/", f":{proxy.port}/", database) for proxy in (self.proxy, self._past))

    async def close(self) -> None:
        await self.proxy.close()
        await self._past.close()
        await asyncio.to_thread(self.pair.close)

    async def _fail_over(self) -> None:
        await asyncio.to_thread(self.pair.fail_over)
        self.server = self.pair.primary
        for proxy in (self.proxy, self._past):
            proxy.to = self.server.port
            proxy.reset()

    async def _restore(self) -> None:
        await asyncio.to_thread(self.pair.restore)

    async def _kill_standby(self) -> None:
        assert self.pair.standby is not None
        await asyncio.to_thread(self.pair.standby.kill)

    async def _start_standby(self) -> None:
        assert self.pair.standby is not None
        await asyncio.to_thread(self.pair.standby.start)
        await asyncio.to_thread(self.pair.restore)

    async def _swallow(self) -> None:
        self.proxy.swallow()

    async def _flow(self) -> None:
        self.proxy.flow()


class SentinelStage(Stage):
    """A primary, a replica and three Sentinels.

    Replication is asynchronous: writes that the primary acknowledges in its last moments are lost with it, as Treadle's
    guides say. So here the primary refuses writes until its replica has them all; then it is demoted, or killed.
    """

    name = "sentinel"
    ways: ClassVar[tuple[str, ...]] = ("demoted", "primary killed", "replica killed", "watcher killed")
    patience: ClassVar[tuple[str, ...]] = ()

    def __init__(self, shared: bool = False) -> None:
        self.server = self.sentinels = Sentinels(fsync="always")
        self.url = self.direct = (
            f"redis+sentinel://{self.sentinels.addresses}/{MASTER}?ns=stage-{os.getpid()}-{next(_numbers)}"
        )
        self._down: Valkey | None = None
        self.outages = {
            "demoted": (self._demote, self._settle),
            "primary killed": (self._kill_primary, self._start),
            "replica killed": (self._kill_replica, self._start),
            "watcher killed": (self._kill_watcher, self._start),
        }

    async def open(self) -> None:
        await asyncio.to_thread(self.sentinels.start)

    async def close(self) -> None:
        await asyncio.to_thread(self.sentinels.close)

    async def _demote(self) -> None:
        old = await asyncio.to_thread(self._paused)
        await asyncio.to_thread(self.sentinels.fail_over)
        await asyncio.to_thread(self._follow, old)

    def _follow(self, old: Valkey) -> None:
        """Make it a replica at once; the Sentinels would do so some 8 s later."""
        old.do("REPLICAOF", "127.0.0.1", self.sentinels.primary.port)
        old.do("CLIENT", "KILL", "TYPE", "normal")
        old.do("CLIENT", "UNPAUSE")

    async def _kill_primary(self) -> None:
        self._down = old = await asyncio.to_thread(self._paused)
        new = await asyncio.to_thread(lambda: self.sentinels.replica)
        await asyncio.to_thread(old.kill)
        await asyncio.to_thread(self.sentinels.promoted, new)

    def _paused(self) -> Valkey:
        """The primary, after it refuses writes and its replica has all of them."""
        primary = self.sentinels.primary
        primary.do("CLIENT", "PAUSE", PAUSE, "WRITE")
        self.sentinels.settled()
        return primary

    async def _kill_replica(self) -> None:
        self._down = await asyncio.to_thread(lambda: self.sentinels.replica)
        await asyncio.to_thread(self._down.kill)

    async def _kill_watcher(self) -> None:
        self._down = self.sentinels.watchers[-1]
        await asyncio.to_thread(self._down.kill)

    async def _start(self) -> None:
        assert self._down is not None
        await asyncio.to_thread(self._down.start)
        await self._settle()

    async def _settle(self) -> None:
        """Return when every Sentinel sees a primary and a replica that follows it."""
        await asyncio.to_thread(self.sentinels.whole)
