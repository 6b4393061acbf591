"""Basic behaviour of a server: statuses while the storage is unavailable, a log line for each request, TLS, a clean
stop."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.contrib.discovery.test_discovery import LOOPBACK, free_port, started
from tests.served import host, memory_url
from tests.server.test_api import Client, token
from tests.servers.tls import CA, FOLDER
from tests.waiting import Signal
from treadle import App
from treadle.contrib.discovery import Network
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core.model import NewJob, Record
from treadle.errors import StorageFull
from treadle.server import Serving, Settings, make_site
from treadle.server.longpoll import WaitingLine
from treadle.storage.memory import MemoryStorage
from treadle_testkit.faults import Faulty, before
from treadle_testkit.shows import shows


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Full(MemoryStorage):
    """A storage that raises StorageFull while `full`."""

    full = True

    async def enqueue(self, jobs: list[NewJob]) -> list[Record]:  # type: ignore[override]
        if self.full:
            raise StorageFull("the disk is full")
        return await super().enqueue(jobs)


@shows("a request that the storage has no room for gets 503 and stores nothing")
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/jobs", {"task": "t"}), ("/jobs/create", {"binary_addr": "a"})], ids=["native", "queuey"]
)
async def test_a_request_without_room_in_the_storage_gets_503_and_succeeds_later(
    session: aiohttp.ClientSession, path: str, body: object
) -> None:
    storage = Full()
    call = Client(host().add(App(storage=storage), Settings(), [queue_routes(Rules())]), session)
    async with session.post(call.url + path, json=body) as answer:
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await answer.json())["error"] == "storage_full"
    assert (await call("GET", "/v1/jobs?count=true"))[1]["total"] == 0
    storage.full = False
    assert (await call("POST", path, body))[0] in (200, 201)
    assert (await call("GET", "/v1/jobs?count=true"))[1]["total"] == 1


async def test_an_unavailable_storage_is_503_and_the_process_stays_healthy(session: aiohttp.ClientSession) -> None:
    storage = Faulty(MemoryStorage(), [before("get", 1), before("find", 1)])
    call = Client(host().add(App(storage=storage), Settings()), session)
    assert (await call("GET", "/healthz"))[0] == 200
    assert [(await call("GET", "/readyz"))[0] for _ in range(2)] == [503, 200]
    assert [(await call("GET", "/v1/jobs"))[0] for _ in range(2)] == [503, 200]


async def test_readyz_without_a_token_does_not_name_the_storage(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Faulty(MemoryStorage(), [before("get", 1)])
    call = Client(host().add(App(storage=storage), Settings(tokens=(token("web", "read"),))), session)
    status, said = await call("GET", "/readyz")
    assert (status, said["message"]) == (503, "storage unavailable; the server's log says why")
    assert any("storage unavailable: " in each.getMessage() for each in list(caplog.records))


async def test_each_request_is_a_line_of_the_log(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Client(memory_url(None, Settings(tokens=(token("web", "read"),))), session)
    logged = Signal().after(monkeypatch, caplog.handler, "emit")

    def entries() -> int:
        return sum("mine-" in each.getMessage() for each in list(caplog.records))

    with caplog.at_level(logging.INFO, "treadle.access"):
        await call("GET", "/v1/jobs", token="web", headers={"X-Request-Id": "mine-1"})
        await call("GET", "/v1/jobs", headers={"X-Request-Id": "mine-2"})
        await logged.until(lambda: entries() == 2, "an entry for each request, written once its answer is sent")
    first, second = sorted(
        (each.getMessage().split() for each in caplog.records if "mine-" in each.getMessage()),
        key=lambda line: line[-1],
    )
    assert (first[0], first[2], first[-2:]) == ("GET", "200", ["web", "mine-1"])
    assert (second[0], second[2], second[-2:]) == ("GET", "401", ["-", "mine-2"])


async def test_a_server_serves_tls_with_a_certificate_of_a_file(tmp_path: Path) -> None:
    pair = ("--tls-cert", str(FOLDER / "server.pem"), "--tls-key", str(FOLDER / "server.key"))
    words = ("server", "--url", "memory://", "--port", "0", *pair)
    async with started(tmp_path, Network((LOOPBACK, free_port())), *words) as server:
        url = (await server.says(r"(https://\S+)")).group(1)
        trust = ssl.create_default_context(cafile=CA)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz", ssl=trust) as answer:
            assert (answer.status, await answer.text()) == (200, "ok")


async def test_a_server_that_stops_answers_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")
    site = make_site(app, Settings())
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: object = None) -> tuple[int, str]:
            async with session.request(method, serving.url + path, json=body) as answer:
                return answer.status, await answer.text()

        waiting = site.state.waiting
        waits = Signal().around(monkeypatch, WaitingLine, "rest").around(monkeypatch, waiting, "unless_stopped")
        async with Serving(site, grace=90, on_stop=waiting.stop) as serving:
            job = json.loads((await ask("POST", "/v1/jobs", {"task": "t", "queue": "elsewhere"}))[1])["id"]
            asked = [
                asyncio.create_task(ask("POST", "/v1/work/claim", {"worker": "r#1", "wait": 80})),
                asyncio.create_task(ask("GET", f"/v1/jobs/{job}/wait?timeout=80")),
                asyncio.create_task(ask("GET", f"/v1/jobs/{job}/events")),
                asyncio.create_task(ask("POST", "/v1/work/watch", {"topics": [f"job:{job}"], "timeout": 80})),
            ]
            await waits.until(lambda: waiting._benches and len(waiting._limits) == 3, "four that wait")
            stopping = loop.time()
        claimed, waited, streamed, watched = await asyncio.gather(*asked)
        assert loop.time() - stopping < 25  # the first had 30 s left, the last no limit
    assert (claimed[0], json.loads(claimed[1])["records"]) == (200, [])
    assert (watched[0], json.loads(watched[1])) == (200, {"topics": []})
    assert (waited[0], json.loads(waited[1])["state"]) == (200, "ready")
    assert (streamed[0], streamed[1].count("data:")) == (200, 1)
