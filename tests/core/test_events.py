"""Event listeners: a listener that fails or blocks does no harm."""

from __future__ import annotations

import asyncio

import pytest

from treadle import BadOption, Event
from treadle.core.events import Emitter
from treadle.testing.shows import shows


def test_a_listener_hears_its_events_and_a_star_hears_all() -> None:
    emitter, one, every = Emitter(), list[str](), list[str]()
    emitter.on("failed", lambda event: one.append(event.id))
    emitter.on("*", lambda event: every.append(event.id))
    emitter.emit(Event(name="failed", id="a"))
    emitter.emit(Event(name="succeeded", id="b"))
    assert (one, every) == (["a"], ["a", "b"])


def test_an_event_nobody_wants_costs_nothing() -> None:
    emitter = Emitter()
    assert not emitter.wants("failed")
    listener = lambda event: None  # noqa: E731
    emitter.on("failed", listener)
    assert emitter.wants("failed")
    emitter.off("failed", listener)
    emitter.off("failed", listener)
    assert not emitter.wants("failed")


def test_an_event_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadOption, match=r"'finished'.*succeeded"):
        Emitter().on("finished", lambda event: None)


@shows("a listener that raises is logged and keeps no other listener from its event")
async def test_a_listener_that_raises_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    emitter, heard = Emitter(), list[str]()

    def broken(event: Event) -> None:
        raise ValueError("plain")

    async def broken_later(event: Event) -> None:
        raise ValueError("later")

    for listener in (broken, broken_later, lambda event: heard.append(event.id)):
        emitter.on("failed", listener)
    emitter.emit(Event(name="failed", id="a"))
    await emitter.settle(5)
    assert heard == ["a"]
    assert "plain" in caplog.text
    assert "later" in caplog.text


@pytest.mark.parametrize("wrong", [SystemExit(1), asyncio.CancelledError(), GeneratorExit()], ids=repr)
async def test_a_listener_may_raise_anything(wrong: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A SystemExit would otherwise end the worker that emits the event."""
    emitter, heard = Emitter(), list[str]()

    def broken(event: Event) -> None:
        raise wrong

    async def broken_later(event: Event) -> None:
        raise SystemExit(2)

    for listener in (broken, broken_later, lambda event: heard.append(event.id)):
        emitter.on("failed", listener)
    emitter.emit(Event(name="failed", id="a"))
    await emitter.settle(5)
    assert heard == ["a"]
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [type(wrong), SystemExit]


async def test_a_listener_that_never_ends_is_not_waited_for() -> None:
    emitter = Emitter()

    async def forever(event: Event) -> None:
        await asyncio.Event().wait()

    emitter.on("failed", forever)
    emitter.emit(Event(name="failed"))
    await emitter.settle(0.01)
    [task] = emitter._tasks
    task.cancel()
    await asyncio.wait([task])


async def test_a_stream_begins_when_it_is_asked_for_and_leaves_nothing_behind() -> None:
    emitter = Emitter()
    stream = emitter.stream()
    emitter.emit(Event(name="failed", id="a"))
    emitter.emit(Event(name="failed", id="b"))
    assert [(await anext(stream)).id, (await anext(stream)).id] == ["a", "b"]
    await stream.aclose()  # type: ignore[attr-defined]
    assert not emitter.wants("failed")


async def test_a_reader_that_is_too_slow_misses_the_oldest() -> None:
    emitter = Emitter()
    stream = emitter.stream()
    for n in range(10_005):
        emitter.emit(Event(name="failed", id=str(n)))
    assert (await anext(stream)).id == "5"
    await stream.aclose()  # type: ignore[attr-defined]
