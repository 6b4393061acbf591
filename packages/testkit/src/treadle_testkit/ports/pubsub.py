"""The tests of a publish/subscribe port: see `treadle_testkit.ports`."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from treadle_testkit.ports.kit import Desk, checks, until

check = checks("pubsub")


@pytest.fixture
def advance() -> Any:
    """None: the system uses the hand clock."""
    return None


async def _heard(heard: list[str], count: int) -> None:
    async def has() -> bool:
        return len(heard) >= count

    await until(has)


async def _ended(ending: Any) -> None:
    done = ending()
    if inspect.isawaitable(done):
        await done


@contextlib.contextmanager
def _logged() -> Iterator[list[BaseException]]:
    """The exceptions that are logged meanwhile, by any logger that propagates its records."""
    errors: list[BaseException] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info is not None and record.exc_info[1] is not None:
                errors.append(record.exc_info[1])

    handler = Keep()
    logging.getLogger().addHandler(handler)
    try:
        yield errors
    finally:
        logging.getLogger().removeHandler(handler)


@check
async def test_pubsub_listeners_receive_published_messages(desk: Desk) -> None:
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
async def test_pubsub_a_publish_needs_no_listener(desk: Desk) -> None:
    await desk.port.publish("silent", "x")


@check
async def test_pubsub_an_ended_subscription_receives_nothing(desk: Desk) -> None:
    heard: list[str] = []
    still: list[str] = []
    ending = await desk.port.subscribe("c", heard.append)
    await desk.port.subscribe("c", still.append)
    await _ended(ending)
    await desk.port.publish("c", "x")
    await _heard(still, 1)
    assert heard == []


@check
async def test_pubsub_a_listener_that_fails_is_logged_and_stops_no_other(desk: Desk) -> None:
    tries: list[str] = []
    heard: list[str] = []

    def fail(text: str) -> None:
        tries.append(text)
        raise LookupError("this listener fails")

    with _logged() as errors:
        await desk.port.subscribe("c", fail)
        await desk.port.subscribe("c", heard.append)
        await desk.port.publish("c", "x")
        await desk.port.publish("c", "y")
        await _heard(heard, 2)
        await _heard(tries, 2)
        assert heard == tries == ["x", "y"]
        assert [str(error) for error in errors if isinstance(error, LookupError)] == 2 * ["this listener fails"]


__all__ = ["advance", *(name for name in dir() if name.startswith("test_"))]  # noqa: PLE0604 - the names of the tests
