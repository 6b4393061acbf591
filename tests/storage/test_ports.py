"""The storage made of ports: the laws of the contract, on ports in memory and on a queue in a file.

REFUSED names each law that bare ports cannot keep, with the reason. Lists by attribute and the exact
order of queues come from the log, which has one order for all processes. The suite skips laws about transactions of a
user's own database, as on every storage that is not an SQL database.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.storage.shards_kit import expect
from tests.waiting import Signal, turn
from treadle.core.query_model import Kind, Query
from treadle.errors import StorageUnavailable
from treadle.ports import Ports, file_queue, memory_backend, memory_pubsub, memory_store
from treadle.storage.composed import ComposedStorage
from treadle.storage.composed.log_entries import decode_base
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.kit import ids, job
from treadle_testkit.conformance.property import agrees_with_memory
from treadle_testkit.conformance.run import MakeStorage, SpoilCount

REFUSED = {
    "test_law08_a_call_advances_few_due_jobs": "a claim advances all due rows, as it did when the log was written",
}

KINDS = {"memory": 4096, "file": 3}  # entries after which a base is written


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.slow), "file"])
def make_storage(request: Any, tmp_path: Path) -> MakeStorage:
    expect(request, REFUSED)
    made: list[Ports] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            queue = file_queue(tmp_path / f"q{len(made)}", clock=clock)
            made.append(Ports(*memory_backend(clock)))
            if request.param == "file":
                made[-1] = Ports(queue, memory_pubsub(), memory_store(clock))
        storage = ComposedStorage(made[-1], now=clock, every=KINDS[request.param], piece=2000)
        await storage.open()
        return storage

    return make


@pytest.fixture
def two_loops() -> bool:
    return False


@pytest.fixture
def spoil_count() -> SpoilCount:
    async def spoil(storage: Storage, queue: str, task: str, kind: Kind, by: int) -> None:
        assert isinstance(storage, ComposedStorage)
        storage._replica.copy.tables.correct((queue, task, kind), by)

    return spoil


class Fleet:
    """Several storages on the same ports: each call goes to the next of them, and now and then one of them starts
    afresh."""

    def __init__(self, clock: HandClock) -> None:
        ports = Ports(*memory_backend(clock))
        self._new = lambda: ComposedStorage(ports, now=clock, every=5, piece=2000)
        self._all = [self._new() for _ in range(3)]
        self._calls = 0

    async def open(self) -> None:
        for storage in self._all:
            await storage.open()

    async def close(self) -> None:
        for storage in self._all:
            await storage.close()

    def __getattr__(self, verb: str) -> Any:
        async def call(*args: Any) -> Any:
            self._calls += 1
            at = self._calls % len(self._all)
            if self._calls % 7 == 0:
                await self._all[at].close()
                self._all[at] = self._new()
                await self._all[at].open()
            return await getattr(self._all[at], verb)(*args)

        return call


@pytest.mark.slow
def test_a_fleet_of_apps_agrees_with_memory() -> None:
    async def make(clock: HandClock) -> Storage:
        fleet: Any = Fleet(clock)
        await fleet.open()
        return fleet

    agrees_with_memory(make)


async def test_processes_agree_after_a_store_has_lost_the_end_of_the_log() -> None:
    """As after a fail-over: the lost entries are lost for all processes, and each that had read them reports it
    once."""
    clock = HandClock()
    queue, _, store = memory_backend(clock)
    one, other = (ComposedStorage(Ports(queue, memory_pubsub(), store), now=clock) for _ in range(2))
    await one.open()
    await one.enqueue([job("kept")])
    await other.open()
    await one.enqueue([job("x")])
    await one.enqueue([job("y")])
    for place in (2, 3):
        await store.delete(f"treadle:log:{place}")
    with pytest.raises(StorageUnavailable, match="lost the end"):
        await one.enqueue([job("z")])
    await one.enqueue([job("z")])
    for n in range(3):
        await other.enqueue([job(f"w{n}")])
        await one.enqueue([job(f"v{n}")])
    rows = [await storage.find(Query(order="oldest")) for storage in (one, other)]
    assert rows[0] == rows[1]
    assert ids(rows[0].records) == ["kept", "v0", "v1", "v2", "w0", "w1", "w2", "z"]
    for storage in (one, other):
        await storage.close()


async def test_a_process_that_only_reads_starts_from_the_new_base() -> None:
    clock = HandClock()
    queue, _, store = memory_backend(clock)
    one, other = (ComposedStorage(Ports(queue, memory_pubsub(), store), now=clock) for _ in range(2))
    await one.open()
    await other.open()
    await one.enqueue([job("x")])
    await store.delete("treadle:log:1")
    await other.enqueue([job("w")])
    await other.enqueue([job("w2")])
    assert ids((await one.find(Query(order="oldest"))).records) == ["w", "w2"]
    for storage in (one, other):
        await storage.close()


class Slow:
    """A store that loses nothing and answers each call after a few turns of the loop; a seed chooses how many."""

    def __init__(self, store: Any, seed: int) -> None:
        self._store, self._random = store, Random(seed)

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._store, verb)

        async def slowly(*args: Any, **options: Any) -> Any:
            await turn(self._random.randrange(8))
            answer = await call(*args, **options)
            await turn(self._random.randrange(8))
            return answer

        return slowly


@pytest.mark.parametrize("seed", range(6))
async def test_the_pointers_to_bases_have_no_gap(seed: int) -> None:
    """A process that was suspended detects it by the pointer after its own, so no pointer may be left out."""
    queue, pubsub, store = memory_backend(HandClock())
    storage = ComposedStorage(Ports(queue, pubsub, Slow(store, seed)), now=HandClock(), every=4)  # type: ignore[arg-type]
    await storage.open()
    for number in range(120):
        await storage.enqueue([job(f"j{number}", keep=0)] if number % 30 == 0 else [])
        await storage.set_limits([])
    await storage.close()
    bases = [number for number in range(1, 60) if await store.get(f"treadle:base:{number}") is not None]
    assert len(bases) > 5
    assert bases == list(range(1, len(bases) + 1))


async def test_a_pointer_that_the_store_lost_is_stored_again() -> None:
    queue, pubsub, store = memory_backend(HandClock())
    storage = ComposedStorage(Ports(queue, pubsub, store), now=HandClock(), every=4)
    await storage.open()
    while await store.get("treadle:base:1") is None:
        await storage.set_limits([])
    await store.delete("treadle:base:1")
    while await store.get("treadle:base:2") is None:
        await storage.set_limits([])
    assert await store.get("treadle:base:1") is not None
    await storage.close()


async def test_a_hint_to_a_missing_base_is_ignored() -> None:
    queue, pubsub, store = memory_backend(HandClock())
    await store.set("treadle:base", "7")
    storage = ComposedStorage(Ports(queue, pubsub, store), now=HandClock())
    await storage.open()
    await storage.enqueue([job("a")])
    assert ids([row for row in await storage.get(["a"]) if row is not None]) == ["a"]
    await storage.close()


@pytest.mark.parametrize("text", ["", "x", "²", "-1", "1.5"])
async def test_a_message_that_is_no_position_is_ignored(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every client that may publish there can send one."""
    ports = Ports(*memory_backend())
    storage = ComposedStorage(ports)
    await storage.open()
    await ports.pubsub.publish(f"{storage.namespace}:log", text)
    assert caplog.records == []
    await storage.close()


async def test_a_base_without_its_parts_raises_at_once() -> None:
    clock = HandClock()
    queue, pubsub, store = memory_backend(clock)
    storage = ComposedStorage(Ports(queue, pubsub, store), now=clock, every=4)
    await storage.open()
    while (text := await store.get("treadle:base:1")) is None:
        await storage.set_limits([])
    await storage.close()
    await store.delete(f"treadle:part:{decode_base(text).name}:0")
    other = ComposedStorage(Ports(queue, pubsub, store), now=clock)
    with pytest.raises(StorageUnavailable, match="parts that the store lacks"):
        await other.open()


async def test_a_process_that_missed_two_bases_starts_from_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place it would win was deleted: nobody reads there any more."""
    clock, rebased = HandClock(), Signal().after(monkeypatch, ComposedStorage, "_rebase")
    queue, _, store = memory_backend(clock)
    sleeper, other = (ComposedStorage(Ports(queue, memory_pubsub(), store), now=clock, every=3) for _ in range(2))
    await sleeper.open()
    await sleeper.enqueue([job("first")])
    await other.open()
    for _ in range(40):
        await other.set_limits([])
        await rebased.until(lambda: not other._tidying, "the next base")
    assert await store.get("treadle:log:2") is None
    with pytest.raises(StorageUnavailable, match="suspended"):
        await sleeper.enqueue([job("late")])
    await sleeper.enqueue([job("late")])
    rows = [await storage.find(Query(order="oldest", limit=100)) for storage in (sleeper, other)]
    assert rows[0] == rows[1]
    assert ids(rows[0].records) == ["first", "late"]
    for storage in (sleeper, other):
        await storage.close()
