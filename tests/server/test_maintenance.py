"""Maintenance by a server without a Python worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contrib.discovery.test_discovery import LOOPBACK, PATIENCE, free_port, started
from tests.kit import heartbeats, presences
from tests.server.test_api import Client
from treadle import App, flow
from treadle.cli.server import MaintenanceWorker
from treadle.contrib.discovery import Network
from treadle.server.auth.tokens import ANYBODY
from treadle.server.longpoll import LongPoll
from treadle.server.overview import Looks
from treadle_testkit.shows import shows

OUT = Network((LOOPBACK, free_port()))


async def ended(call: Client, id: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            _, job = await call("GET", f"/v1/jobs/{id}/wait?timeout=20")
            if job["state"] in ("succeeded", "failed", "cancelled"):
                return job


@shows("a server ticks schedules and ends workflows when all its runners are foreign")
async def test_schedules_tick_and_compositions_end_with_runners_of_another_language_only(tmp_path: Path) -> None:
    words = ("server", "--url", f"sqlite:///{tmp_path / 'jobs.db'}", "--port", "0", "--quiet")
    async with started(tmp_path, OUT, *words) as server, aiohttp.ClientSession() as session:
        call = Client((await server.says(r"(http://\S+)")).group(1), session)
        schedule = {"job": {"task": "tick", "queue": "ticks"}, "every": 0.2}
        assert (await call("PUT", "/v1/schedules/often", schedule))[0] == 200
        ask = {"worker": "r#{}", "queues": [["ticks", 1]], "wait": 20, "max_lost": 3}
        for number in range(2):
            status, found = await call("POST", "/v1/work/claim", {**ask, "worker": f"r#{number}"})
            assert (status, [row["job"]["task"] for row in found["records"]]) == (200, ["tick"])
        async with App(call.url) as app:
            whole = await flow(app.stub("part").job(n) for n in range(3)).enqueue()
            for number in range(3):
                claim = {**ask, "worker": f"p#{number}", "queues": [["default", 1]], "tasks": {"part": [1, 30]}}
                _, found = await call("POST", "/v1/work/claim", claim)
                [row] = found["records"]
                report = {"id": row["job"]["id"], "version": row["version"], "succeed": 7}
                await call("POST", "/v1/work/settle", {"outcomes": [report]})
            assert (await ended(call, whole.id))["state"] == "succeeded"


async def test_the_worker_of_a_server_serves_no_queue(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a queue whose workers are all gone looks served, and no alert fires."""
    beats = heartbeats(monkeypatch)
    job = await app.stub("mail").enqueue()
    async with MaintenanceWorker(app):
        [worker] = await beats.until(lambda: presences(app.storage), "the worker of the server")
        assert (worker.queues, worker.slots) == ((), 0)
        looks = Looks(app._core, LongPoll(lambda: app._core.storage))
        assert [each.text for each in (await looks.overview(ANYBODY)).notices] == [
            "No worker serves queue 'default', which has 1 queued job."
        ]
        assert "no worker serves its queue 'default'" in str(await app.jobs.explain(job))
