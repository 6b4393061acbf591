"""Event listeners: a listener that fails or blocks does no harm."""

from __future__ import annotations

import asyncio
import threading

import pytest

from treadle import BadOption, Event
from treadle.core.events import Emitter
from treadle_testkit.shows import shows


def test_a_listener_gets_its_events_and_a_star_gets_all() -> None:
    emitter, one, every = Emitter(), list[str](), list[str]()
    emitter.on("failed", lambda event: one.append(event.id))
    emitter.on("*", lambda event: every.append(event.id))
    emitter.emit(Event(name="failed", id="a"))
    emitter.emit(Event(name="succeeded", id="b"))
    assert (one, every) == (["a"], ["a", "b"])


def test_an_event_without_a_listener_is_not_made() -> None:
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
async def test_a_listener_that_raises_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_stream_starts_with_its_call_and_leaves_nothing_behind() -> None:
    emitter = Emitter()
    stream = emitter.stream()
    emitter.emit(Event(name="failed", id="a"))
    emitter.emit(Event(name="failed", id="b"))
    assert [(await anext(stream)).id, (await anext(stream)).id] == ["a", "b"]
    await stream.aclose()  # type: ignore[attr-defined]
    assert not emitter.wants("failed")


def test_a_reader_is_woken_by_events_of_other_threads() -> None:
    """Such as the stream of a web server whose worker runs in a thread. Nothing else wakes the reader's loop."""
    emitter, got, listening = Emitter(), list[str](), threading.Event()

    async def read() -> None:
        stream = emitter.stream()
        asyncio.get_running_loop().call_soon(listening.set)  # runs once the reader waits
        got.extend([(await anext(stream)).id, (await anext(stream)).id])
        await stream.aclose()  # type: ignore[attr-defined]

    reader = threading.Thread(target=lambda: asyncio.run(read()), daemon=True)
    reader.start()
    assert listening.wait(60)
    emitter.emit(Event(name="failed", id="a"))
    emitter.emit(Event(name="failed", id="b"))
    reader.join(60)
    assert got == ["a", "b"]


def test_a_reader_whose_loop_has_ended_is_removed() -> None:
    emitter = Emitter()
    stream = emitter.stream()

    async def read() -> None:
        emitter.emit(Event(name="failed", id="a"))
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(read())
    loop.close()
    emitter.emit(Event(name="failed", id="b"))
    assert emitter.silent


async def test_listeners_of_another_loop_are_not_waited_for() -> None:
    emitter, free = Emitter(), threading.Event()

    async def slow(event: Event) -> None:
        await asyncio.to_thread(free.wait)

    emitter.on("failed", slow)
    emitted = threading.Event()

    async def other() -> None:
        emitter.emit(Event(name="failed"))
        emitted.set()
        await emitter.settle(60)

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    assert emitted.wait(60)
    await emitter.settle(60)
    assert thread.is_alive()
    free.set()
    thread.join(60)
    assert not emitter._tasks


async def test_a_reader_that_is_too_slow_misses_the_oldest() -> None:
    emitter = Emitter()
    stream = emitter.stream()
    for n in range(10_005):
        emitter.emit(Event(name="failed", id=str(n)))
    assert (await anext(stream)).id == "5"
    await stream.aclose()  # type: ignore[attr-defined]
