"""Streams over HTTP: a worker whose storage is a server writes them, and the server checks their rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from tests.kit import work
from tests.served import memory_url
from tests.server.test_incoming_rows import made, tokens, with_secret
from treadle import App, Chunk, Stale, StorageError, current
from treadle.core.errors import BadOption
from treadle.core.model import NewJob, Outcome, State
from treadle.server import Settings, Token
from treadle.server.auth.tokens import SCOPES, digest
from treadle.server.system_rows import born, sent
from treadle.workflow.streams import Page, page_id, page_row
from treadle_testkit.shows import shows


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def speaker(app: App) -> Any:
    @app.task(name="speak", queue="talk")
    async def speak(text: str) -> str:
        out = current().stream("out")

        async def say() -> None:
            for letter in text:
                await out.write(letter)

        await current().step("say", say)
        return text

    return speak


@shows("a worker whose storage is a server writes streams, with the rights of a worker of one queue")
async def test_a_bound_worker_over_http_writes_streams() -> None:
    settings = tokens(*SCOPES)
    worker = Token(name="w", digest=digest("w"), scopes=("work", "read"), queues=("talk",))
    reader = Token(name="r", digest=digest("r"), scopes=("read",), queues=("talk",))
    url = memory_url(None, Settings(tokens=(*settings.tokens, worker, reader), max_wait=5))
    async with (
        made(with_secret(url)) as app,
        App(url.replace("http://", "http://:w@")) as fleet,
        App(url.replace("http://", "http://:r@")) as people,
    ):
        speaker(fleet)
        job = await speaker(app).enqueue("hello")
        async with work(fleet, ["talk"], poll=0.05):
            entries = [entry async for entry in people.jobs.follow(job.id, "out")]
            assert await job.result(20) == "hello"
        assert entries == [Chunk(n, letter, "say") for n, letter in enumerate("hello")]
        assert await people.jobs.stream(job.id, "out") == list("hello")
        assert await people.jobs.streams(job.id) == ["out"]
        acts = await app.audit.list()
        assert acts.entries == () or not any("page" in entry.target for entry in acts.entries)


async def test_forged_pages_are_refused() -> None:
    url = memory_url(None, tokens("work", "enqueue", "read"))
    async with made(with_secret(url)) as app:
        job = await speaker(app).enqueue("hello")
        good = page_row("talk", job.id, "out", 1, 1_000.0)
        storage = await app._core.open()
        for bad in (
            replace(good, headers=()),
            replace(good, parent=job.id),
            replace(good, root=job.id),
            replace(good, id=page_id(job.id, "other", 1)),
            replace(good, key="k"),
        ):
            with pytest.raises(BadOption):
                sent(bad, {})
            with pytest.raises((StorageError, BadOption)):
                await storage.enqueue([bad])
        for other in (page_row("default", job.id, "out", 1, 1_000.0), page_row("talk", "nobody", "out", 1, 1_000.0)):
            with pytest.raises(Stale, match=r"is in queue|does not exist"):
                await storage.enqueue([other])
        await storage.enqueue([good])
        first = page_id(job.id, "out", 1)
        for number in (1, 3):
            out = Outcome(id=first, version=0, state=State.SUCCEEDED, result=Page(0, 1).text)
            with pytest.raises(BadOption):
                born(page_row("talk", job.id, "out", number, 1_000.0), out, None)
        assert born(page_row("talk", job.id, "out", 2, 1_000.0), out, None) == ""
        plain = NewJob(id=first, queue="talk")
        with pytest.raises(BadOption):
            sent(plain, {})
