"""What publish and subscribe must do: see `treadle.testing.ports`. Without it nobody would notice a deaf listener."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from treadle.testing.ports.kit import Desk, checks, until

check = checks("pubsub")


@pytest.fixture
def advance() -> Any:
    """None: the hand clock is the system's."""
    return None


async def _heard(heard: list[str], count: int) -> None:
    async def has() -> bool:
        return len(heard) >= count

    await until(has)


async def _ended(ending: Any) -> None:
    done = ending()
    if inspect.isawaitable(done):
        await done


@check
async def test_pubsub_listeners_hear_what_is_published(desk: Desk) -> None:
    heard: list[str] = []
    also: list[str] = []
    await desk.port.subscribe("c", heard.append)
    await desk.port.subscribe("c", also.append)
    await desk.port.publish("c", "hällo")
    await _heard(heard, 1)
    await _heard(also, 1)
    assert heard == also == ["hällo"]


@check
async def test_pubsub_channels_are_apart(desk: Desk) -> None:
    one: list[str] = []
    other: list[str] = []
    await desk.port.subscribe("one", one.append)
    await desk.port.subscribe("other", other.append)
    await desk.port.publish("other", "x")
    await desk.port.publish("one", "y")
    await _heard(one, 1)
    await _heard(other, 1)
    assert (one, other) == (["y"], ["x"])


@check
async def test_pubsub_nobody_need_listen(desk: Desk) -> None:
    await desk.port.publish("silent", "x")


@check
async def test_pubsub_who_has_ended_hears_no_more(desk: Desk) -> None:
    heard: list[str] = []
    still: list[str] = []
    ending = await desk.port.subscribe("c", heard.append)
    await desk.port.subscribe("c", still.append)
    await _ended(ending)
    await desk.port.publish("c", "x")
    await _heard(still, 1)
    assert heard == []


__all__ = ["advance", *(name for name in dir() if name.startswith("test_"))]  # noqa: PLE0604 - the names of the tests
