"""The ports in memory: the suites of all ports."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.ports import MemoryPubSub, MemoryQueue, MemoryStore, memory_backend, memory_queue, three
from treadle.ports.leases import Held, Item
from treadle.testing import HandClock
from treadle_testkit.ports.pubsub import *  # noqa: F403
from treadle_testkit.ports.queue import *  # noqa: F403
from treadle_testkit.ports.store import *  # noqa: F403
from treadle_testkit.shows import shows


@pytest.fixture
def make_queue() -> Any:
    return MemoryQueue


@pytest.fixture
def make_pubsub() -> Any:
    return lambda clock: MemoryPubSub()


@pytest.fixture
def make_store() -> Any:
    return MemoryStore


@shows("a memory queue keeps the body and the reason of a dead letter")
async def test_dead_letters_keep_body_and_reason() -> None:
    queue = memory_queue()
    await queue.push("half a me")
    [pulled] = await queue.pop(1, 30)
    await queue.dead_letter(pulled.handle, "not JSON")
    assert [tuple(dead) for dead in queue.dead] == [("half a me", "not JSON")]
    assert await queue.size() == 0


async def test_a_key_holds_its_message_back_only_while_the_first_is_there() -> None:
    queue = memory_queue()
    await queue.push("a", dedupe_key="k")
    await queue.push("b", dedupe_key="k")
    assert await queue.size() == 1
    [pulled] = await queue.pop(5, 30)
    await queue.push("c", dedupe_key="k")
    assert await queue.size() == 1
    await queue.ack(pulled.handle)
    await queue.push("d", dedupe_key="k")
    assert [one.body for one in await queue.pop(5, 30)] == ["d"]


async def test_an_invalid_handle_acknowledges_nothing() -> None:
    queue = memory_queue()
    await queue.push("a")
    await queue.pop(1, 30)
    assert [await queue.ack(handle) for handle in ("", "x", "²", "²/m.1", "1", "-1/m.1")] == 6 * [False]


async def test_lapsed_leases_come_before_fresh_messages() -> None:
    clock = HandClock()
    queue = MemoryQueue(clock)
    for body in "ab":
        await queue.push(body)
    await queue.pop(1, 10)
    clock.advance(11)
    assert [(one.body, one.attempt) for one in await queue.pop(2, 10)] == [("a", 2), ("b", 1)]


async def test_a_released_message_keeps_its_position_and_its_count() -> None:
    queue = memory_queue()
    for body in "ab":
        await queue.push(body)
    [first] = await queue.pop(1, 10)
    await queue.release(first.handle)
    assert [(one.body, one.attempt) for one in await queue.pop(2, 10)] == [("a", 1), ("b", 1)]


async def test_the_memory_queue_has_the_bounds_of_real_ones() -> None:
    clock = HandClock()
    queue = MemoryQueue(clock, max_batch=2, max_delay=10, max_lease=5)
    for body in "abc":
        await queue.push(body, delay=100)
    clock.advance(10)
    assert len(await queue.pop(10, 100)) == 2
    clock.advance(5)
    assert [one.attempt for one in await queue.pop(10, 100)] == [2, 2]


async def test_one_clock_moves_all_three() -> None:
    clock = HandClock()
    queue, _, store = backend = memory_backend(clock)
    await queue.push("a", delay=5)
    await store.set("k", "v", ttl=5)
    clock.advance(5)
    assert [one.body for one in await queue.pop(1, 1)] == ["a"]
    assert await store.get("k") is None
    assert len(store) == 0
    assert three(backend).store is store


class Reopened:
    """Makes queues that pop `b` before `a`. A queue that is opened again has popped `b` `attempts` times."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def __call__(self, clock: HandClock) -> MemoryQueue:
        class Swapped(MemoryQueue):
            async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
                await super().push({"a": "b", "b": "a"}[body], delay=delay, dedupe_key=dedupe_key)

        return Swapped(clock)

    async def reopen(self, clock: HandClock) -> MemoryQueue:
        queue = MemoryQueue(clock)
        await queue.push("other")  # so that no handle of the first queue is valid in this one
        [other] = await queue.pop(1, 1)
        await queue.ack(other.handle)
        await queue.push("b")
        for _ in range(self.attempts):
            await queue.pop(1, 1)
            clock.advance(1)
        await queue.push("a")
        return queue


def test_the_check_of_reopening_accepts_any_first_message() -> None:
    check = test_queue_a_reopened_one_has_its_messages  # noqa: F405
    check(make_queue=Reopened(1), advance=None)
    with pytest.raises(AssertionError):
        check(make_queue=Reopened(0), advance=None)


@pytest.mark.parametrize("given", [None, (), (1, 2), "queue"])
def test_fewer_than_three_are_refused_with_the_reason(given: Any) -> None:
    with pytest.raises(ValueError, match=r"expected \(queue, pubsub, store\).*private to"):
        three(given)


def test_a_port_without_its_methods_is_refused_by_what_it_lacks() -> None:
    queue, pubsub, _ = memory_backend()
    with pytest.raises(ValueError, match="a store with get, set, delete, set_if_absent"):
        three((queue, pubsub, object()))


def test_a_pop_from_a_long_queue_reads_few_messages() -> None:
    held = Held()
    for number in range(1, 10_001):
        held.put(Item(number, "x"))
    taken = [held.take(1, 10, 0.0, "t")[0].number for _ in range(100)]
    assert taken == list(range(1, 101))
