"""A cluster as a stage: nodes are killed and frozen, and the slot that holds all jobs moves while they run."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Sequence
from typing import ClassVar

import redis

from tests.faults.stages import Stage
from tests.servers.cluster import Cluster
from tests.servers.valkey import Valkey
from tests.waiting import until_blocking

_numbers = itertools.count()


class ClusterStage(Stage):
    """Three nodes, all of whose data survives a kill. One namespace has one slot, so one node has all the jobs."""

    name = "cluster"
    ways: ClassVar[tuple[str, ...]] = ("node killed", "node frozen", "slot moved")
    patience: ClassVar[tuple[str, ...]] = ()

    def __init__(self, shared: bool = False) -> None:
        self.server = self.cluster = Cluster(fsync="always")
        self._namespace = f"stage-{os.getpid()}-{next(_numbers)}"
        self._victim: Valkey | None = None
        self._chance = random.Random(1)  # which node; the nemesis chooses when
        self.url = self.direct = f"{self.cluster.url}?ns={self._namespace}"
        self.outages = {
            "node killed": (self._kill, self._start),
            "node frozen": (self._freeze, self._thaw),
            "slot moved": (self._move, self._stay),
        }

    async def open(self) -> None:
        await asyncio.to_thread(self.cluster.start)

    async def close(self) -> None:
        await asyncio.to_thread(self.cluster.close)

    async def _kill(self) -> None:
        self._victim = self._chance.choice(self.cluster.nodes)
        await asyncio.to_thread(self._victim.kill)

    async def _start(self) -> None:
        assert self._victim is not None
        await asyncio.to_thread(self._victim.start)
        await asyncio.to_thread(until_blocking, self._whole, "the cluster is whole again")

    def _whole(self) -> bool:
        try:
            return self.cluster.whole()
        except redis.RedisError:
            return False

    async def _freeze(self) -> None:
        self._victim = self._chance.choice(self.cluster.nodes)
        self._victim.freeze()

    async def _thaw(self) -> None:
        assert self._victim is not None
        self._victim.thaw()
        await asyncio.to_thread(until_blocking, self._whole, "the cluster is whole again")

    async def _move(self) -> None:
        await asyncio.to_thread(self._move_slot, self.cluster.nodes)

    def _move_slot(self, nodes: Sequence[Valkey]) -> None:
        slot = self.cluster.slot(f"{{treadle:{self._namespace}}}:job")
        owner = self.cluster.owner(slot)
        self.cluster.move(slot, self._chance.choice([node for node in nodes if node is not owner]))

    async def _stay(self) -> None:
        """A slot that has moved stays where it is."""
