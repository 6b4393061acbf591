"""The tests of a queue port: see `treadle_testkit.ports`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle_testkit.ports.kit import Desk, checks, close, opened, until
from treadle_testkit.shows import shows

check = checks("queue")


@pytest.fixture
def advance() -> Any:
    """None: the system uses the hand clock."""
    return None


@check
async def test_queue_a_pushed_message_is_popped(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one()
    assert (message.body, message.attempt) == ("a", 1)


@check
async def test_queue_any_text_is_returned_unchanged(desk: Desk) -> None:
    text = '{"a": "ä \\u0001 \\" €𝄞"}\n\tx'
    await desk.port.push(text)
    assert (await desk.pop_one()).body == text


@check
async def test_queue_a_pop_of_an_empty_one_returns_nothing(desk: Desk) -> None:
    assert await desk.port.pop(5, 60.0) == []


@check
async def test_queue_a_pop_returns_no_more_than_its_limit(desk: Desk) -> None:
    for n in range(5):
        await desk.port.push(str(n))
    assert len(await desk.port.pop(2, 60.0)) <= 2


@check
async def test_queue_a_leased_message_is_not_popped_again(desk: Desk) -> None:
    for n in range(20):
        await desk.port.push(str(n))
    pops = [await desk.pop_all(10), await desk.pop_all(10)]
    assert sorted(int(one.body) for some in pops for one in some) == list(range(20))
    assert await desk.port.pop(10, 60.0) == []


@check
async def test_queue_many_readers_at_once_share_without_overlap(desk: Desk) -> None:
    await asyncio.gather(*(desk.port.push(str(n)) for n in range(40)))
    pops = await asyncio.gather(*(desk.pop_all(10) for _ in range(4)))
    assert sorted(int(one.body) for some in pops for one in some) == list(range(40))


@check
async def test_queue_an_acked_message_is_deleted(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one(desk.lease)
    assert await desk.port.ack(message.handle) is True
    await desk.advance(desk.over)
    assert await desk.port.pop(5, 60.0) == []


@check
async def test_queue_a_message_whose_lease_lapsed_is_popped_and_counted(desk: Desk) -> None:
    await desk.port.push("a")
    first = await desk.pop_one(desk.lease)
    await desk.advance(desk.over)
    second = await desk.pop_one()
    assert (second.body, second.attempt) == ("a", 2)
    assert second.handle != first.handle


@shows("a reader whose lease expired gets `False` from each call and changes nothing")
@check
async def test_queue_calls_of_a_stale_reader_return_false_and_change_nothing(desk: Desk) -> None:
    await desk.port.push("a")
    stale = await desk.pop_one(desk.lease)
    await desk.advance(desk.over)
    held = await desk.pop_one(60.0)
    assert await desk.port.ack(stale.handle) is False
    assert await desk.port.release(stale.handle) is False
    assert await desk.port.extend(stale.handle, 1.0) is False
    assert not desk.has("dead_letter") or await desk.port.dead_letter(stale.handle, "no reason") is False
    assert await desk.port.pop(5, 60.0) == []
    assert await desk.port.ack(held.handle) is True


@check
async def test_queue_a_second_ack_returns_false(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one()
    assert await desk.port.ack(message.handle) is True
    assert await desk.port.ack(message.handle) is False


@check
async def test_queue_an_extended_lease_lasts_longer(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one(desk.lease)
    assert await desk.port.extend(message.handle, desk.lease * 20) is True
    await desk.advance(desk.over)
    assert await desk.port.pop(5, 60.0) == []
    assert await desk.port.ack(message.handle) is True


@check
async def test_queue_a_released_message_is_popped_at_once(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one()
    assert await desk.port.release(message.handle) is True
    assert (await desk.pop_one()).body == "a"


@check
async def test_queue_a_message_released_with_a_delay_is_popped_after_it(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one()
    assert await desk.port.release(message.handle, desk.lease) is True
    assert await desk.port.pop(5, 60.0) == []
    await desk.advance(desk.over)
    assert (await desk.pop_one()).body == "a"


@check
async def test_queue_a_delayed_message_is_popped_when_it_is_due(desk: Desk) -> None:
    await desk.port.push("later", delay=desk.lease)
    await desk.port.push("now")
    assert (await desk.pop_one()).body == "now"
    assert await desk.port.pop(5, 60.0) == []
    await desk.advance(desk.over)
    assert (await desk.pop_one()).body == "later"


@checks("queue", needs="dead_letter")
async def test_queue_a_dead_letter_is_not_popped_again(desk: Desk) -> None:
    await desk.port.push("a")
    message = await desk.pop_one(desk.lease)
    assert await desk.port.dead_letter(message.handle, "cannot be read") is True
    await desk.advance(desk.over)
    assert await desk.port.pop(5, 60.0) == []
    assert await desk.port.ack(message.handle) is False


@checks("queue", needs="size")
async def test_queue_its_size_counts_visible_delayed_and_leased(desk: Desk) -> None:
    await desk.port.push("a")
    await desk.port.push("b")
    await desk.port.push("c", delay=300)
    await desk.pop_one()

    async def is_three() -> bool:
        return bool(await desk.port.size() == 3)

    await until(is_three)


@check
async def test_queue_a_reopened_one_has_its_messages(desk: Desk) -> None:
    reopen = getattr(desk.make, "reopen", None)
    if reopen is None:
        return  # not durable
    await desk.port.push("a")
    await desk.port.push("b")
    held = await desk.pop_one()
    await close(desk.port)
    desk.port = await opened(reopen, desk.clock)
    attempts = {one.body: one.attempt for one in await desk.pop_all(2)}
    assert attempts == {"a": 1, "b": 1} | {held.body: 2}
    assert await desk.port.ack(held.handle) is False


__all__ = ["advance", *(name for name in dir() if name.startswith("test_"))]  # noqa: PLE0604 - the names of the tests
