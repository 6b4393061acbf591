"""However the task that writes ends, each caller gets an answer or an error, and the next call works."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import each_turn
from treadle import StorageError
from treadle.core.model import NewJob
from treadle.core.query_model import Query
from treadle.errors import EventLoopError
from treadle.ports import Ports, file_queue, file_store, memory_pubsub, memory_queue, memory_store
from treadle.ports.disk import Disk
from treadle.storage.composed import ComposedStorage

LONG = 60.0  # seconds after which a test counts as hung


class Gate:
    """Holds writes in progress while it is shut."""

    def __init__(self) -> None:
        self.shut, self.reached, self.go = False, threading.Event(), threading.Event()
        self.inside = self.most = 0  # writes at the same time

    def write(self, work: Callable[[], Any]) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if self.shut:
                self.reached.set()
                assert self.go.wait(LONG)
            return work()
        finally:
            self.inside -= 1


class Queue:
    def __init__(self, folder: Path, gate: Gate) -> None:
        class Slow(Disk):
            def append(self, path: Path, data: bytes) -> None:
                gate.write(lambda: Disk.append(self, path, data))

        self._port = file_queue(folder / "q", fs=Slow())

    async def put(self, name: str) -> None:
        await self._port.push(name, dedupe_key=name)

    async def names(self) -> set[str]:
        return {one.body for one in await self._port.pop(100, 60)}

    async def close(self) -> None:
        await self._port.close()


class Store:
    def __init__(self, folder: Path, gate: Gate) -> None:
        self._port = file_store(folder / "s.db", clock=lambda: gate.write(time.time))

    async def put(self, name: str) -> None:
        await self._port.set(name, name)

    async def names(self) -> set[str]:
        return {name for name in ("a", "b", "c", "d") if await self._port.get(name) is not None}

    async def close(self) -> None:
        await self._port.close()


class Composed:
    def __init__(self, folder: Path, gate: Gate) -> None:
        store = memory_store()
        put = store.set_if_absent

        async def set_if_absent(key: str, value: str, ttl: float | None = None) -> bool:
            if gate.shut:
                gate.reached.set()
                await asyncio.to_thread(gate.go.wait, LONG)
            return await put(key, value, ttl)

        store.set_if_absent = set_if_absent  # type: ignore[method-assign]
        self._storage = ComposedStorage(Ports(memory_queue(), memory_pubsub(), store))

    async def put(self, name: str) -> None:
        await self._storage.open()
        await self._storage.enqueue([NewJob(id=name, task="t")])

    async def names(self) -> set[str]:
        await self._storage.open()
        return {row.job.id for row in (await self._storage.find(Query())).records}

    async def close(self) -> None:
        await self._storage.close()


KINDS: dict[str, Callable[[Path, Gate], Any]] = {"queue": Queue, "store": Store, "composed": Composed}


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go.set()


@pytest.fixture(params=[*KINDS])
def port(request: pytest.FixtureRequest, tmp_path: Path, gate: Gate) -> Any:
    return KINDS[request.param](tmp_path, gate)


async def _ended(*calls: asyncio.Task[None]) -> set[str]:
    """The names of the calls that returned; each of the others must have raised an error that a caller can act on."""
    done, pending = await asyncio.wait(calls, timeout=LONG)
    assert not pending, "nobody answers"
    for call in done:
        if not call.cancelled() and call.exception() is not None:
            assert isinstance(call.exception(), StorageError), repr(call.exception())
    return {call.get_name() for call in done if not call.cancelled() and call.exception() is None}


def _put(port: Any, name: str) -> asyncio.Task[None]:
    return asyncio.create_task(port.put(name), name=name)


def _cancel_others(*kept: asyncio.Task[None] | None) -> int:
    others = asyncio.all_tasks() - {asyncio.current_task(), *kept}
    return sum(task.cancel() for task in others)


async def _until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LONG)


async def _goes_on(port: Any, answered: set[str]) -> None:
    async with asyncio.timeout(LONG):
        await port.put("d")
        assert answered | {"d"} <= await port.names()
        await port.close()


async def test_cancelled_before_its_first_step(port: Any) -> None:
    await port.put("a")
    call, other = _put(port, "b"), _put(port, "c")
    async for _ in each_turn(lambda: not _cancel_others(call, other)):
        pass  # in the turn in which the task is made
    await _goes_on(port, await _ended(call, other) | {"a"})


@pytest.mark.parametrize("times", [1, 3])  # 3: programs that cancel until every task has ended
async def test_cancelled_in_the_middle_of_a_step(port: Any, gate: Gate, times: int) -> None:
    await port.put("a")
    gate.shut = True
    call = _put(port, "b")
    await _until(gate.reached)
    behind = _put(port, "c")
    await asyncio.sleep(0)
    for _ in range(times):
        _cancel_others(call, behind)
        await asyncio.sleep(0)
    gate.shut = False
    gate.go.set()
    answered = await _ended(call, behind)
    assert times > 1 or "c" in answered, "a request behind the group that was cut off is carried out"
    await _goes_on(port, answered | {"a"})
    assert gate.most <= 1


def test_the_event_loop_ends_in_the_middle(port: Any, gate: Gate) -> None:
    """`asyncio.run` cancels all remaining tasks and waits for them; one of them makes another call as it ends."""
    answered = {"a"}

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gate.shut = False
            gate.go.set()
            with contextlib.suppress(StorageError):
                await port.put("c")
                answered.add("c")

    async def main() -> None:
        await port.put("a")
        gate.shut = True
        kept.extend([_put(port, "b"), asyncio.create_task(last())])
        await _until(gate.reached)

    kept: list[Any] = []
    asyncio.run(main())
    assert all(task.done() for task in kept)
    asyncio.run(_goes_on(port, answered))
    assert gate.most <= 1


@pytest.mark.parametrize("write_ends", ["before", "after"])
def test_an_event_loop_that_is_closed_in_the_middle(port: Any, gate: Gate, write_ends: str) -> None:
    """Nothing was cancelled: the tasks stop where they are, and the thread continues. The next loop waits for the
    thread."""

    async def main() -> None:
        await port.put("a")
        gate.shut = True
        left.append(_put(port, "b"))
        await _until(gate.reached)

    left: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the test's own doing
    loop.close()
    gate.shut = False
    if write_ends == "before":
        gate.go.set()

    async def again() -> None:
        going = asyncio.create_task(_goes_on(port, {"a"}))
        await asyncio.sleep(0)
        gate.go.set()
        await going

    asyncio.run(again())
    assert gate.most <= 1
    left.clear()
    gc.collect()


async def test_the_call_of_another_loop_that_is_under_way_is_an_error_and_no_hang(tmp_path: Path, gate: Gate) -> None:
    port = Store(tmp_path, gate)
    await port.put("a")
    gate.shut = True
    call = _put(port, "b")
    await _until(gate.reached)
    with pytest.raises(EventLoopError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, port.put("c"))
    gate.shut = False
    gate.go.set()
    await _goes_on(port, await _ended(call))


@pytest.mark.parametrize("kind", [Queue, Store])
async def test_a_close_in_the_middle_of_a_step_waits_for_it(
    tmp_path: Path, gate: Gate, kind: Callable[[Path, Gate], Any]
) -> None:
    port = kind(tmp_path, gate)
    gate.shut = True
    call = _put(port, "a")
    await _until(gate.reached)
    closing = asyncio.create_task(port.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.shut = False
    gate.go.set()
    await asyncio.wait_for(closing, LONG)
    assert await _ended(call) == {"a"}
    await _goes_on(port, {"a"})


async def _each(*calls: Awaitable[Any]) -> list[Any]:
    return [None if answer is None else type(answer) for answer in await asyncio.gather(*calls, return_exceptions=True)]


async def test_a_message_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    queue = file_queue(tmp_path / "q")
    await queue.push("a")
    assert await _each(queue.push("b"), queue.push("\ud800"), queue.push("c")) == [None, UnicodeEncodeError, None]
    pulled = await queue.pop(10, 60)
    assert [one.body for one in pulled] == ["a", "b", "c"]
    assert await queue.dead_letter(pulled[0].handle, "no text: \ud800")
    await queue.close()
    assert [one.body for one in await queue.pop(10, 60)] == ["b", "c"]
    assert [one.body for one in await queue.dead()] == ["a"]
    await queue.close()


async def test_a_change_that_cannot_be_made_fails_alone(tmp_path: Path) -> None:
    store = file_store(tmp_path / "s.db")
    await store.set("word", "many")
    assert await _each(store.set("a", "1"), store.increment("word"), store.set("b", "2")) == [None, ValueError, None]
    assert [await store.get(key) for key in ("a", "word", "b")] == ["1", "many", "2"]
    await store.close()
