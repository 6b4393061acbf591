"""A queue port without the optional methods: the suite of all queues, an app on it, and what needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.waiting import Signal
from treadle import App, BadOption, Unsupported, Worker
from treadle.blobs import DirectoryBlobs
from treadle.ports import DeadLetters, MemoryQueue, Pulled, Sized, memory_pubsub, memory_store
from treadle.ports.large_messages import with_blobs
from treadle_testkit.ports.queue import *  # noqa: F403
from treadle_testkit.shows import shows


class Lean:
    """Only the methods that each queue must have."""

    def __init__(self, *clock: Any) -> None:
        self._inner = MemoryQueue(*clock)

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        await self._inner.push(body, delay=delay, dedupe_key=dedupe_key)

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        return await self._inner.pop(limit, lease)

    async def extend(self, handle: str, lease: float) -> bool:
        return await self._inner.extend(handle, lease)

    async def ack(self, handle: str) -> bool:
        return await self._inner.ack(handle)

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        return await self._inner.release(handle, delay)


@pytest.fixture
def make_queue() -> Any:
    return Lean


@shows("an app runs on a queue without `dead_letter` and `size`; a message that is not Treadle's is logged and deleted")
async def test_an_app_on_a_lean_queue(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    acked = Signal().after(monkeypatch, MemoryQueue, "ack")
    queue = Lean()
    app = App(ports=(queue, memory_pubsub(), memory_store()))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    await queue.push("not ours")
    async with app, Worker(app):
        assert await (await double.enqueue(4)).result(30) == 8
        await acked.until(lambda: not len(queue._inner._held), "no message is left")
    assert "has no dead_letter, is deleted: expected a wake-up with the id of a job" in caplog.text
    assert "'not ours'" in caplog.text


class Counted(Lean):
    async def dead_letter(self, handle: str, reason: str) -> bool:
        return await self._inner.dead_letter(handle, reason)


async def test_the_optional_methods_are_named_where_they_are_needed(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    with pytest.raises(BadOption, match="expected a queue with dead_letter"):
        with_blobs(Lean(), blobs)
    large = with_blobs(Counted(), blobs)
    with pytest.raises(Unsupported, match="the queue Counted does not support size"):
        await large.size()
    assert not isinstance(Lean(), DeadLetters | Sized)
    with pytest.raises(BadOption, match="expected a queue with push, pop, extend, ack, release, found"):
        App(ports=(object(), memory_pubsub(), memory_store()))
