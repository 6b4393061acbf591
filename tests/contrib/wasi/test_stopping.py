"""A runner that stops while it waits for a job leaves none claimed, even if the server does not notice that it left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.waiting import Signal
from treadle import App
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.contrib.wasi import Bounds
from treadle.contrib.wasi.client import Client
from treadle.contrib.wasi.runner import Runner
from treadle.server import Serving, Settings, make_site
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="bounds are kept by the system's own limits")


class Deaf:
    """A queue behind a proxy that does not pass on disconnects. It holds the responses of claims that wait."""

    def __init__(self) -> None:
        self.app = App("memory://")
        self.site = make_site(self.app, Settings(), protocols=[queue_routes(Rules())])
        self.began, self.answered, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.statuses: list[int] = []  # of the claims that waited

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != "/jobs/claim" or scope["query_string"] == b"wait=0":
            await self.site(scope, receive, send)
            return

        async def deaf() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                self.began.set()
                return message
            return await self.go.wait()

        async def held(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])
                self.answered.set()
            await self.go.wait()
            await send(message)

        await self.site(scope, deaf, held)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Client]:
        async with Serving(self, on_stop=self.site.state.waiting.stop) as serving:
            try:
                async with Client(serving.url) as client:
                    yield client
            finally:
                self.go.set()


@shows("a runner that is stopped releases a job that the queue claimed for it, even if the response was lost")
async def test_a_job_whose_claim_was_cut_off_by_a_stop_is_free_at_once() -> None:
    queue = Deaf()
    async with queue.serving() as client:
        job = (await client.create("0" * 64, None)).job_id
        runner = Runner(client, Bounds())
        running = asyncio.create_task(runner.run())
        await queue.answered.wait()
        assert (await client.get(job)).status == "active"
        runner.stop()
        await running
        found = await client.get(job)
        assert (found.status, found.run_attempts, found.runner_id) == ("pending", 0, None)


async def test_a_claim_whose_runner_was_stopped_takes_no_later_job() -> None:
    """The server does not notice that the runner left, and a job comes afterwards."""
    queue = Deaf()
    async with queue.serving() as client:
        runner = Runner(client, Bounds())
        running = asyncio.create_task(runner.run())
        await queue.began.wait()
        runner.stop()
        await running
        job = (await client.create("0" * 64, None)).job_id
        await queue.answered.wait()
        assert queue.statuses == [204]
        assert (await client.get(job)).status == "pending"


async def test_a_runner_stops_in_time_without_its_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("treadle.contrib.wasi.runner.RELEASE", 0.0)
    claims = Signal().around(monkeypatch, Client, "claim")
    async with Client("http://127.0.0.1:9") as client:
        runner = Runner(client, Bounds())
        running = asyncio.create_task(runner.run())
        await claims.until(lambda: claims.sent, "a claim")
        runner.stop()
        await running
    assert "could not repeat the last claim" in caplog.text
