"""A cluster as a stage: nodes are killed and frozen, and a slot that holds jobs moves while they run."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Sequence
from typing import ClassVar

import redis

from tests.faults.stages import Stage
from tests.servers.cluster import NODES, Cluster
from tests.servers.process import PATIENCE
from tests.servers.valkey import Valkey
from tests.waiting import until_blocking
from treadle_testkit.proxy import Cut, Link, Proxy

_numbers = itertools.count()


class Proxies:
    """A proxy before each node, used as one. A single request fails where most connections are."""

    def __init__(self, each: Sequence[Proxy]) -> None:
        self.each = each

    async def accept(self) -> None:
        for proxy in self.each:
            await proxy.accept()

    async def close(self) -> None:
        for proxy in self.each:
            await proxy.close()

    @property
    def links(self) -> list[Link]:
        return [link for proxy in self.each for link in proxy.links]

    @property
    def delay(self) -> float:
        return self.each[0].delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        for proxy in self.each:
            proxy.delay = seconds

    def reset(self) -> None:
        for proxy in self.each:
            proxy.reset()

    def flow(self) -> None:
        for proxy in self.each:
            proxy.flow()

    def forget(self) -> None:
        for proxy in self.each:
            proxy.forget()

    def lose_request(self, call: int) -> Cut:
        return self._busiest.lose_request(call=call)

    def lose_answer(self, call: int, after: int) -> Cut:
        return self._busiest.lose_answer(call=call, after=after)

    def silence(self, call: int) -> Cut:
        return self._busiest.silence(call=call)

    @property
    def _busiest(self) -> Proxy:
        return max(self.each, key=lambda proxy: len(proxy.links))


class ClusterStage(Stage):
    """Three nodes whose data survives a kill. One namespace has one slot, so one node has all the jobs."""

    name = "cluster"
    ways: ClassVar[tuple[str, ...]] = ("node killed", "node frozen", "slot moved")
    shards: ClassVar[int] = 1
    patience: ClassVar[tuple[str, ...]] = ()

    def __init__(self, shared: bool = False) -> None:
        self.proxy = Proxies([Proxy("127.0.0.1", 0) for _ in range(NODES)])
        self.server = self.cluster = Cluster(fsync="always", ports=[each.port for each in self.proxy.each])
        for proxy, node in zip(self.proxy.each, self.cluster.nodes, strict=True):
            proxy.to = node.port
        self._namespace = f"stage-{os.getpid()}-{next(_numbers)}"
        self._victim: Valkey | None = None
        self._rng = random.Random(1)  # which node; the nemesis chooses when
        self.url = self.direct = f"{self.cluster.url}?ns={self._namespace}&shards={self.shards}"
        self.outages = {
            "node killed": (self._kill, self._start),
            "node frozen": (self._freeze, self._thaw),
            "slot moved": (self._move, self._stay),
        }

    async def open(self) -> None:
        await asyncio.to_thread(self.cluster.start)
        await self.proxy.accept()

    async def close(self) -> None:
        await self.proxy.close()
        await asyncio.to_thread(self.cluster.close)

    async def _kill(self) -> None:
        self._victim = self._rng.choice(self.cluster.nodes)
        await asyncio.to_thread(self._victim.kill)

    async def _start(self) -> None:
        assert self._victim is not None
        await asyncio.to_thread(self._victim.start)
        await asyncio.to_thread(until_blocking, self._whole, "the cluster heals", PATIENCE)

    def _whole(self) -> bool:
        try:
            return self.cluster.whole()
        except redis.RedisError:
            return False

    async def _freeze(self) -> None:
        self._victim = self._rng.choice(self.cluster.nodes)
        self._victim.freeze()

    async def _thaw(self) -> None:
        assert self._victim is not None
        self._victim.thaw()
        await asyncio.to_thread(until_blocking, self._whole, "the cluster heals", PATIENCE)

    async def _move(self) -> None:
        await asyncio.to_thread(self._move_slot, self.cluster.nodes)

    def _move_slot(self, nodes: Sequence[Valkey]) -> None:
        shard = self._rng.randrange(self.shards)
        slot = self.cluster.slot(f"{{treadle:{self._namespace}{f'/{shard}' if shard else ''}}}:job")
        owner = self.cluster.owner(slot)
        self.cluster.move(slot, self._rng.choice([node for node in nodes if node is not owner]))

    async def _stay(self) -> None:
        """A slot that has moved stays where it is."""


class ClusterShardsStage(ClusterStage):
    """Each shard has a slot of its own: one of them moves while calls take several."""

    name = "cluster shards"
    shards: ClassVar[int] = 3
