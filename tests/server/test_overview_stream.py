"""One look for all readers: its pace, its events, and what ends a stream. The clock of the looks moves by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.kit import Spy
from tests.served import host
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from tests.waiting import Signal, patient
from treadle import App
from treadle.core.clock import wall
from treadle.core.limit_model import Limit, Pause
from treadle.core.model import NewJob, Presence
from treadle.core.placement import Needs
from treadle.server import Serving, Settings, Token, kept_answer, make_site
from treadle.server.auth.tokens import ANYBODY, SCOPES, digest
from treadle.server.errors import Refused
from treadle.server.longpoll import EventStream, LongPoll
from treadle.server.overview import Looks, looks
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

__all__ = ["session"]

Event = tuple[str, Any]
BOUND = token("bound", "read", queues=("mine",))


class Rests:
    """The pauses between two looks, each of which ends when a test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.changed = Signal()
        self._go = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.changed.send()
        await self._go.wait()
        self._go.clear()

    def end(self) -> None:
        self._go.set()


class Stage:
    """Looks at a storage that counts its calls."""

    def __init__(self) -> None:
        self.spy = Spy(MemoryStorage())
        self.app = App(storage=self.spy)
        self.rests, self.waiting = Rests(), LongPoll(lambda: self.spy)
        self.looks = Looks(self.app._core, self.waiting, self.rests)

    @property
    def glances(self) -> int:
        return self.spy.calls["glance"]

    async def another(self) -> None:
        """Let the next look begin."""
        number = len(self.rests.asked)
        self.rests.end()
        await self.rests.changed.until(lambda: len(self.rests.asked) > number, "the next pause")

    @asynccontextmanager
    async def reader(self, token: Token = ANYBODY) -> AsyncIterator[Callable[[], Awaitable[Event]]]:
        """A reader, as the function that reads its next event."""
        stream = self.looks.follow(token)

        async def read() -> Event:
            async with patient("the next event", 20):
                return parsed(await anext(stream))

        try:
            assert await read() == ("retry", 2000)
            yield read
        finally:
            await stream.aclose()


def parsed(text: bytes) -> Event:
    """The name and value of an event; ("comment", text) or ("retry", milliseconds)."""
    lines = text.decode().splitlines()
    if lines[0].startswith(":"):
        return "comment", lines[0][2:]
    name, _, value = lines[0].partition(": ")
    if name == "retry":
        return name, int(value)
    assert lines[1].startswith("data: ")
    return value, json.loads(lines[1].removeprefix("data: "))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    found = Stage()
    async with found.app:
        yield found


@shows("one look at the storage serves all open dashboards of a server, and none is made while nobody looks")
async def test_one_look_serves_all_readers_and_none_is_made_without_one(stage: Stage) -> None:
    assert stage.glances == 0
    async with stage.reader() as first, stage.reader() as second, stage.reader() as third:
        seen = [await read() for read in (first, second, third)]
        assert [name for name, _ in seen] == ["overview"] * 3
        assert stage.glances == 1
        await stage.another()
        assert stage.glances == 2
        for read in (first, second, third):
            assert (await read())[0] == "overview"
    before = stage.glances
    assert asyncio.all_tasks() == {asyncio.current_task()}  # the looking has ended with its last reader
    assert stage.glances == before


async def test_the_pace_is_fifty_times_the_cost_but_two_seconds_at_least(stage: Stage) -> None:
    await stage.looks.overview(ANYBODY)
    assert kept_answer.pace(0.001) == 2.0
    assert kept_answer.pace(0.2) == pytest.approx(10.0)
    assert kept_answer.pace(5.0) == kept_answer.LONGEST
    async with stage.reader() as read:
        _, overview = await read()
        assert overview["every"] == 2.0
        await stage.rests.changed.until(lambda: stage.rests.asked, "a pause")
        assert 0 < stage.rests.asked[0] <= 2


async def test_one_answer_is_as_fresh_as_a_stream(stage: Stage) -> None:
    await asyncio.gather(*[stage.looks.overview(ANYBODY) for _ in range(20)])
    assert stage.glances == 1
    async with stage.reader() as read:
        await read()
        assert stage.glances == 1  # the answer was fresh


async def test_a_slow_reader_skips_looks(stage: Stage) -> None:
    async with stage.reader() as slow:
        await slow()
        for _ in range(5):
            await stage.another()
        await stage.spy.enqueue([NewJob(id="a", task="t", queue="mail")])
        await stage.another()
        _, overview = await slow()
        assert [queue["name"] for queue in overview["queues"]] == ["mail"]
        stage.looks.publish("operation", "x", {"id": "x"}, lambda token: True)
        assert (await slow())[0] == "operation"


async def test_a_bound_token_gets_its_part_and_each_part_is_encoded_once(stage: Stage) -> None:
    await stage.spy.enqueue([NewJob(id=id, task="t", queue=id) for id in ("mine", "other")])
    also = token("also", "read", queues=("mine",))
    async with stage.reader() as whole, stage.reader(BOUND) as part, stage.reader(also) as same:
        _, everything = await whole()
        _, mine = await part()
        assert [queue["name"] for queue in everything["queues"]] == ["mine", "other"]
        assert [queue["name"] for queue in mine["queues"]] == ["mine"]
        assert (await same())[1] == mine
        assert stage.glances == 1


async def test_events_reach_those_who_may_see_them(stage: Stage) -> None:
    async with stage.reader() as everybody, stage.reader(BOUND) as bound:
        await everybody()
        await bound()
        for number in range(3):
            stage.looks.publish("operation", "a", {"id": "a", "done": number}, lambda token: not token.queues)
        stage.looks.publish("operation", "b", {"id": "b"}, lambda token: True)
        assert await everybody() == ("operation", {"id": "a", "done": 2})  # a reader that is behind gets the last one
        assert await everybody() == ("operation", {"id": "b"})
        assert await bound() == ("operation", {"id": "b"})


async def test_events_for_a_reader_that_reads_nothing_are_bounded(stage: Stage) -> None:
    async with stage.reader() as read:
        await read()
        for number in range(looks.PENDING + 100):
            stage.looks.publish("operation", str(number), number, lambda token: True)
        for number in range(looks.PENDING):
            assert await read() == ("operation", number)


async def test_an_idle_stream_gets_comments(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "BEAT", 0.01)
    async with stage.reader() as read:
        await read()
        assert await read() == ("comment", "still here")
        assert stage.glances == 1


@shows("a dashboard stays connected while the storage is away, and says since when")
async def test_a_failing_read_is_an_event_and_the_stream_continues(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.spy.enqueue([NewJob(id="a", task="t", queue="mail")])
    async with stage.reader() as read:
        _, before = await read()
        stage.spy.away["glance"] = 2
        for _ in range(2):
            await stage.another()
        _, away = await read()
        assert away["at"] == before["at"]
        assert away["queues"][0]["queued"] == 1
        assert away["notices"][0]["level"] == "error"
        assert "has not answered" in away["notices"][0]["text"]
        await stage.another()
        _, after = await read()
        assert after["at"] > before["at"]
        assert all(notice["level"] != "error" for notice in after["notices"])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # its begin and its end


async def test_a_storage_that_was_never_available_is_an_event(stage: Stage) -> None:
    stage.spy.away["glance"] = 1
    async with stage.reader() as read:
        _, away = await read()
        assert (away["queues"], away["notices"][0]["level"]) == ([], "error")


async def test_a_fault_of_the_server_is_logged_and_the_stream_continues(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Looks, "_read", broken)
    async with stage.reader() as read:
        assert (await read())[1]["notices"][0]["level"] == "error"
    assert caplog.records[0].exc_info is not None


async def test_a_stopping_server_ends_its_streams_with_an_event(stage: Stage) -> None:
    async with stage.reader() as read:
        await read()
        stage.waiting.stop()
        assert await read() == ("bye", {})
        with pytest.raises(StopAsyncIteration):
            await read()


async def test_a_stream_ends_with_its_token(stage: Stage) -> None:
    ends = Token(name="brief", digest="", scopes=("read",), expires=wall() + 0.3)
    async with stage.reader(ends) as read:
        await read()
        with pytest.raises(StopAsyncIteration):
            await read()
    over = Token(name="over", digest="", scopes=("read",), expires=wall() - 1)
    async with stage.reader(over) as read:
        with pytest.raises(StopAsyncIteration):
            await read()


async def test_streams_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "READERS", 2)
    async with stage.reader(), stage.reader():
        with pytest.raises(Refused) as refused:
            stage.looks.check_room()
        assert refused.value.status == 503
    stage.looks.check_room()


async def test_schedules_that_failed_are_noticed(stage: Stage) -> None:
    """All schedules are read every 30 s, not with each look."""
    finds = stage.spy.calls["find"]
    await stage.looks.overview(ANYBODY)
    first = stage.spy.calls["find"] - finds
    async with stage.reader() as read:
        await read()
        for _ in range(3):
            await stage.another()
    assert stage.spy.calls["find"] - finds == first
    assert first <= 2


async def test_a_server_over_a_bound_token_reads_what_the_token_may_read() -> None:
    """Its storage is another server, which answers 403 for rows of all queues."""
    inner = App(storage=MemoryStorage())
    url = host().add(inner, Settings(tokens=(token("mine", *SCOPES, queues=("mine",)), token("all", *SCOPES))))
    async with App(url, token="mine") as app:
        await app._core.storage.enqueue([NewJob(id="a", task="t", queue="mine")])
        found = await Looks(app._core, LongPoll(lambda: app._core.storage)).overview(ANYBODY)
        assert [(queue.name, queue.queued) for queue in found.queues] == [("mine", 1)]
        assert [notice.level for notice in found.notices] == ["warning"]  # no worker
    host().run(inner.close())


async def test_pauses_are_in_the_next_look(stage: Stage) -> None:
    await stage.spy.set_limits([Limit("queue:mail", slots=0)])
    overview = await stage.looks.overview(ANYBODY)
    assert [(queue.name, queue.paused) for queue in overview.queues] == [("mail", True)]


# --- the response


async def test_a_response_closes_its_source_with_its_client() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            closed.set()

    sent: list[Any] = []
    first = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):
            first.set()

    async def receive() -> Any:
        await first.wait()
        return {"type": "http.disconnect"}

    async with patient("the end of the response", 20):
        await EventStream(source())({"type": "http", "method": "GET"}, receive, send)
    assert closed.is_set()
    assert sent[0]["status"] == 200
    assert (b"x-accel-buffering", b"no") in sent[0]["headers"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_of_a_source_is_raised() -> None:
    async def source() -> AsyncGenerator[bytes, None]:
        yield b"a"
        raise RuntimeError("a fault")

    async def send(message: Any) -> None: ...

    async def receive() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="a fault"):
        await EventStream(source())({"type": "http", "method": "GET"}, receive, send)


# --- a real server


async def events(response: aiohttp.ClientResponse, number: int) -> list[Event]:
    found: list[Event] = []
    async with patient("events of the stream", 20):
        while len(found) < number:
            text = await response.content.readuntil(b"\n\n")
            found.append(parsed(text))
    return found


async def test_the_stream_of_a_server_and_its_scopes(session: aiohttp.ClientSession) -> None:
    app = App(storage=MemoryStorage())
    tokens = (token("all", *SCOPES), BOUND, token("sender", "enqueue"))
    url = host().add(app, Settings(tokens=tokens))
    call = Client(url, session)
    assert (await call("GET", "/v1/overview", None, "sender"))[0] == 403
    assert (await call("GET", "/v1/overview/events", None, "sender"))[0] == 403
    assert (await call("GET", "/v1/overview/events"))[0] == 401
    await call(
        "POST", "/v1/jobs/batch", {"jobs": [{"task": "t", "queue": "mine"}, {"task": "t", "queue": "other"}]}, "all"
    )
    status, overview = await call("GET", "/v1/overview", None, "all")
    assert (status, overview["totals"]["queued"]) == (200, 2)
    headers = {"Authorization": "Bearer bound"}
    async with session.get(f"{url}/v1/overview/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        [(_, _), (name, mine)] = await events(response, 2)
    assert (name, [queue["name"] for queue in mine["queues"]]) == ("overview", ["mine"])
    host().run(app.close())


async def test_a_server_stops_at_once_with_readers(session: aiohttp.ClientSession) -> None:
    app = App(storage=MemoryStorage())
    site = make_site(app, Settings())
    async with app:
        async with Serving(site, grace=20, on_stop=site.state.waiting.stop) as serving:
            response = await session.get(f"{serving.url}/v1/overview/events")
            await events(response, 2)
        [last] = await events(response, 1)
        assert last == ("bye", {})
        response.close()


async def test_a_session_that_ends_ends_its_stream(session: aiohttp.ClientSession) -> None:
    app = App(storage=MemoryStorage())
    brief = Token(name="brief", digest=digest("brief"), scopes=("read",), expires=wall() + 2.5)
    url = host().add(app, Settings(tokens=(brief,)))
    async with session.post(f"{url}/v1/session", json={"token": "brief"}) as response:
        cookie = response.headers["set-cookie"].partition(";")[0]
    async with session.get(f"{url}/v1/overview/events", headers={"Cookie": cookie}) as response:
        assert response.status == 200
        async with patient("the end of the stream", 20):
            content = await response.content.read()
        assert b"event: bye" not in content
    async with session.get(f"{url}/v1/me", headers={"Cookie": cookie}) as response:
        assert response.status == 401
    host().run(app.close())


@shows("the figure at Health is the number of warnings on that page")
async def test_the_number_of_warnings_is_that_of_the_doctor(session: aiohttp.ClientSession) -> None:
    app = App(storage=MemoryStorage())
    call = Client(host().add(app, Settings(tokens=(token("all", "read"),))), session)
    needs = Needs("train", (("gpu", ()),))
    worker = Presence(worker="cpu", queues=("ml", "mail"), needs=(needs,))

    async def furnish() -> None:
        await app.storage.enqueue([NewJob(id="j", task="train", queue="ml"), NewJob(id="k", task="t", queue="far")])
        await app.storage.heartbeat(worker, [], 30.0)
        await app.storage.set_limits([Limit("queue:mail", slots=0), Pause("queue:mail"), Limit("api", slots=0)])

    host().run(furnish())
    _, overview = await call("GET", "/v1/overview", token="all")
    _, doctor = await call("GET", "/v1/doctor", token="all")
    bad = [check for check in doctor["checks"] if check["verdict"] != "ok"]
    assert overview["health"] == len(bad) >= 2, (overview["health"], bad)
    host().run(app.close())
