"""The tests of a store port: see `treadle_testkit.ports`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle_testkit.ports.kit import Desk, checks
from treadle_testkit.shows import shows

check = checks("store")


@pytest.fixture
def advance() -> Any:
    """None: the system uses the hand clock."""
    return None


@check
async def test_store_a_value_reads_back_as_it_was_set(desk: Desk) -> None:
    assert await desk.port.get("k") is None
    await desk.port.set("k", "ä\n€")
    assert await desk.port.get("k") == "ä\n€"
    await desk.port.set("k", "")
    assert await desk.port.get("k") == ""


@check
async def test_store_keys_of_all_their_characters_are_apart(desk: Desk) -> None:
    keys = ["a:b", "a.b", "a_b", "a-b", "a@b", "a/b", "A:b", "a:b:", "x" * 400]
    for key in keys:
        await desk.port.set(key, key)
    assert [await desk.port.get(key) for key in keys] == keys


@check
async def test_store_a_large_value_is_kept(desk: Desk) -> None:
    text = "0123456789abcdef" * 16_000
    await desk.port.set("k", text)
    assert await desk.port.get("k") == text


@check
async def test_store_a_deleted_key_has_no_value(desk: Desk) -> None:
    await desk.port.set("k", "v")
    await desk.port.delete("k")
    await desk.port.delete("k")
    assert await desk.port.get("k") is None
    assert await desk.port.set_if_absent("k", "w") is True


@check
async def test_store_set_if_absent_has_one_winner(desk: Desk) -> None:
    won = await asyncio.gather(*(desk.port.set_if_absent("k", str(n)) for n in range(20)))
    assert won.count(True) == 1
    assert await desk.port.get("k") == str(won.index(True))
    assert await desk.port.set_if_absent("k", "late") is False


@check
async def test_store_a_key_has_no_value_after_its_ttl(desk: Desk) -> None:
    await desk.port.set("k", "v", desk.lease)
    assert await desk.port.set_if_absent("n", "v", desk.lease) is True
    assert await desk.port.get("k") == "v"
    await desk.advance(desk.over)
    assert await desk.port.get("k") is None
    assert await desk.port.set_if_absent("n", "w") is True
    assert await desk.port.get("n") == "w"


@check
async def test_store_a_set_without_a_ttl_removes_the_ttl(desk: Desk) -> None:
    await desk.port.set("k", "v", desk.lease)
    await desk.port.set("k", "w")
    await desk.advance(desk.over)
    assert await desk.port.get("k") == "w"


@shows("a store counts each of ten concurrent increments")
@check
async def test_store_counts_every_increment(desk: Desk) -> None:
    if not hasattr(desk.port, "increment"):
        return  # this store cannot count; nothing requires it
    counted = await asyncio.gather(*(desk.port.increment("n") for _ in range(10)))
    assert sorted(counted) == list(range(1, 11))
    assert await desk.port.increment("n", -3) == 7
    assert await desk.port.get("n") == "7"


@check
async def test_store_a_count_restarts_after_its_ttl(desk: Desk) -> None:
    if not hasattr(desk.port, "increment"):
        return
    assert await desk.port.increment("n", 5, desk.lease) == 5
    await desk.advance(desk.over)
    assert await desk.port.increment("n") == 1


@check
async def test_store_the_clock_never_steps_back(desk: Desk) -> None:
    if not hasattr(desk.port, "now"):
        return
    first = await desk.port.now()
    await desk.advance(desk.lease)
    assert await desk.port.now() >= first + desk.lease * 0.9


__all__ = ["advance", *(name for name in dir() if name.startswith("test_"))]  # noqa: PLE0604 - the names of the tests
