"""Streams over HTTP: as pages and as server-sent events, from any offset, also when connections are cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS
from tests.kit import work
from tests.server.places import a_place
from tests.waiting import Signal, patient
from treadle import App, Job, Retry, current
from treadle.server import Serving, Settings, Token, make_site
from treadle.server.auth.tokens import SCOPES, digest
from treadle.server.routes import streams
from treadle_testkit.shows import shows

EVENTS = {"Accept": "text/event-stream"}
TOKENS = (
    Token(name="all", digest=digest("all"), scopes=tuple(SCOPES)),
    Token(name="mine", digest=digest("mine"), scopes=("read", "work"), queues=("mine",)),
    Token(name="shapes", digest=digest("shapes"), scopes=("read",), payloads=False),
    Token(name="sender", digest=digest("sender"), scopes=("enqueue",)),
)

Event = tuple[str, str, Any]  # its id, its name and its data


class Site:
    """A server, an app on the same storage, and a job that speaks as far as the test lets it."""

    def __init__(self, app: App, session: aiohttp.ClientSession) -> None:
        self.app, self.session, self.port = app, session, 0
        self.allowed, self.moved = 0, Signal()
        self.attempts = 0

        @app.task(name="speak")
        async def speak(words: list[str]) -> str:
            async def say() -> str:
                out = current().stream("tokens")
                for number, word in enumerate(words):
                    await self.moved.until(lambda number=number: self.allowed > number, f"word {number} is allowed")
                    await out.write(word)
                return "".join(words)

            return await current().step("say", say)

        @app.task(name="stutter", retry=Retry(attempts=2, base=0.0))
        async def stutter() -> str:
            async def say() -> str:
                out, self.attempts = current().stream("tokens"), self.attempts + 1
                for word in ("a", "b", "c")[: 2 if self.attempts == 1 else 3]:
                    await out.write(word)
                if self.attempts == 1:
                    raise ValueError("no")
                return "abc"

            return await current().step("say", say)

        self.speak, self.stutter = speak, stutter

    def allow(self, words: int) -> None:
        self.allowed = words
        self.moved.send()

    async def serve(self) -> None:
        site = make_site(self.app, Settings(tokens=TOKENS, max_wait=5))
        self.serving = Serving(site, port=self.port, grace=1, on_stop=site.state.waiting.stop)
        await self.serving.__aenter__()
        self.port = self.serving.port

    async def stop(self) -> None:
        await self.serving.__aexit__(None, None, None)

    # --- requests

    def path(self, job: Job[Any] | str, name: str = "tokens", query: str = "") -> str:
        id = job if isinstance(job, str) else job.id
        return f"http://127.0.0.1:{self.port}/v1/jobs/{id}/streams/{name}{query}"

    async def page(self, job: Job[Any] | str, name: str = "tokens", query: str = "", token: str = "all") -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(self.path(job, name, query), headers=headers) as answer:
            return await answer.json()

    async def follow(self, job: Job[Any], last: str | None = None, **headers: str) -> Follower:
        sent = {"Authorization": "Bearer all", **EVENTS, **headers}
        if last is not None:
            sent["Last-Event-ID"] = last
        answer = await self.session.get(self.path(job), headers=sent)
        return Follower(answer)


class Follower:
    """A reader of server-sent events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self._lines = aiter(answer.content)

    async def next(self) -> Event | None:
        """The next event; None: the response has ended."""
        fields: dict[str, str] = {}
        async with patient("the next event", 30):
            async for raw in self._lines:
                line = raw.decode().rstrip("\n")
                if not line and "event" in fields:
                    return fields.get("id", ""), fields["event"], json.loads(fields["data"])
                name, _, value = line.partition(": ")
                fields[name] = value
        return None

    async def some(self, number: int) -> list[Event]:
        return [event for _ in range(number) if (event := await self.next()) is not None]

    async def rest(self) -> list[Event]:
        found = list[Event]()
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    def cut(self) -> None:
        self.answer.close()


def text_of(events: list[Event]) -> str:
    """The text that a reader has at the end."""
    chunks = dict[int, str]()
    for id, name, data in events:
        if name == "chunk":
            assert int(id) == data["offset"] not in chunks
            chunks[data["offset"]] = data["value"]
        elif name == "reset":
            chunks = {offset: value for offset, value in chunks.items() if offset < data["to"]}
    return "".join(chunks.values())


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    with a_place(request.param, tmp_path) as storage:
        async with App(storage=storage) as app, aiohttp.ClientSession() as session:
            site = Site(app, session)
            await site.serve()
            yield site
            await site.stop()


@shows("a reader of server-sent events gets each chunk of a running job, and `end` with its state")
async def test_events_follow_a_stream_to_the_end_of_its_job(site: Site) -> None:
    job = await site.speak.enqueue(["one ", "two ", "three"])
    async with work(site.app):
        site.allow(1)
        reader = await site.follow(job)
        assert reader.answer.headers["content-type"].startswith("text/event-stream")
        assert reader.answer.headers["cache-control"] == "no-store"
        assert await reader.next() == ("0", "chunk", {"offset": 0, "value": "one ", "step": "say"})
        site.allow(3)
        assert [event[2]["value"] for event in await reader.some(2)] == ["two ", "three"]
        assert await reader.rest() == [("end", "end", {"state": "succeeded"})]
    assert text_of(await (await site.follow(job)).rest()) == "one two three"  # also afterwards
    again = await site.follow(job, "end")
    assert again.answer.status == 204  # an EventSource that connects again stops


@shows("a reader whose connection is cut after any event, or whose server restarts, misses and doubles nothing")
async def test_a_reader_that_is_cut_off_continues_with_the_last_id(site: Site) -> None:
    words = [f"{number} " for number in range(8)]
    job = await site.speak.enqueue(words)
    found = list[Event]()
    async with work(site.app):
        for number in range(len(words)):
            site.allow(number + 1)
            reader = await site.follow(job, found[-1][0] if found else None)
            found += await reader.some(1)
            reader.cut()
            if number % 4 == 3:
                await site.stop()
                await site.serve()
        found += await (await site.follow(job, found[-1][0])).rest()
    assert text_of(found) == "".join(words)
    assert found[-1][1] == "end"


async def test_a_server_that_stops_ends_its_streams_at_once(site: Site) -> None:
    job = await site.speak.enqueue(["one", "two"])
    async with work(site.app):
        site.allow(1)
        reader = await site.follow(job)
        await reader.some(1)
        await site.stop()
        assert await reader.rest() == []
        await site.serve()
        site.allow(2)
        assert text_of(await (await site.follow(job, "0")).rest()) == "two"


@shows("an event names the chunks that are void when a step runs again")
async def test_a_reset_is_an_event(site: Site) -> None:
    job = await site.stutter.enqueue()
    async with work(site.app):
        events = await (await site.follow(job)).rest()
    assert [name for _, name, _ in events].count("reset") == 1
    assert text_of(events) == "abc"
    page = await site.page(job)
    assert page["ended"]
    assert page["next"] == len(page["entries"]) == len(events) - 1
    [reset] = [entry for entry in page["entries"] if "to" in entry]
    assert (reset["to"], reset["step"]) == (0, "say")


@shows("100 readers follow one stream at the same time, and each gets all of it")
async def test_a_hundred_readers_get_everything(site: Site) -> None:
    words = [f"{number} " for number in range(50)]
    job = await site.speak.enqueue(words)
    async with work(site.app):
        readers = await asyncio.gather(*(site.follow(job) for _ in range(100)))
        site.allow(len(words))
        found = await asyncio.gather(*(reader.rest() for reader in readers))
    assert {text_of(events) for events in found} == {"".join(words)}


@shows("a stream is read page by page, from any offset, and a call may wait for the next entries")
async def test_pages(site: Site) -> None:
    job = await site.speak.enqueue(["a", "b", "c", "d"])
    assert await site.page(job) == {"entries": [], "next": 0, "ended": False}
    waiting = asyncio.create_task(site.page(job, query="?wait=5&limit=2"))
    async with work(site.app):
        site.allow(2)
        first = await waiting
        assert first["entries"][0] == {"offset": 0, "value": "a", "step": "say"}
        assert not first["ended"]
        site.allow(4)
        await job.ended(30)
    first = await site.page(job, query="?limit=3")
    assert ([entry["value"] for entry in first["entries"]], first["next"], first["ended"]) == (
        ["a", "b", "c"],
        3,
        False,
    )
    rest = await site.page(job, query="?from=3&wait=5")
    assert ([entry["value"] for entry in rest["entries"]], rest["next"], rest["ended"]) == (["d"], 4, True)
    assert await site.page(job, query="?from=9&wait=5") == {"entries": [], "next": 9, "ended": True}
    async with site.session.get(site.path(job, "", "").rstrip("/"), headers={"Authorization": "Bearer all"}) as answer:
        assert await answer.json() == {"names": ["tokens"]}


async def test_a_comment_keeps_an_idle_stream_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BEAT", 0.01)
    job = await site.speak.enqueue(["one"])
    reader = await site.follow(job)
    async with patient("a comment", 30):
        assert await reader.answer.content.readline() == b": still here\n"
    site.allow(1)
    async with work(site.app):
        assert text_of(await reader.rest()) == "one"


async def test_the_rights_of_a_reader(site: Site) -> None:
    job = await site.speak.enqueue(["secret"])
    site.allow(1)
    async with work(site.app):
        await job.ended(30)
    for headers in ({}, EVENTS):
        for token, status in (("mine", 404), ("sender", 403)):
            sent = {"Authorization": f"Bearer {token}", **headers}
            async with site.session.get(site.path(job), headers=sent) as answer:
                assert answer.status == status
    shapes = await site.page(job, token="shapes")
    assert [entry["value"] for entry in shapes["entries"]] == ["text(6)"]
    problem = await site.page(job, "other")
    assert (problem["error"], problem["message"]) == (
        "not_found",
        f"job {job.id} has ended without a stream 'other'; it has tokens",
    )
    assert (await site.page("none"))["error"] == "no_such_job"
    assert (await site.page(job, query="?from=-1"))["error"] == "wrong_query"
    reader = await site.follow(job, "nonsense")
    assert reader.answer.status == 422
