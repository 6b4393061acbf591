"""`GET /metrics` of the server: its formats, its scope, and what a token of some queues sees."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, TypeVar

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.served import host
from tests.server.test_api import session
from tests.server.test_crossing import token
from treadle import App, Limit
from treadle.errors import StorageUnavailable
from treadle.server import Settings
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import StorageProxy

__all__ = ["session"]

TOKENS = (token("reader", "read"), token("bound", "read", queues=("mine",)), token("sender", "enqueue"))


T = TypeVar("T")


class Away(StorageProxy):
    """Fails every call while it is away."""

    away = False

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if self.away and verb != "close":
            raise StorageUnavailable("no route to host")
        return await super().around(verb, call)


class Site(NamedTuple):
    app: App
    storage: Away
    url: str
    session: aiohttp.ClientSession

    async def get(self, name: str = "reader", **headers: str) -> tuple[int, str, str]:
        """Status, media type and body."""
        headers |= {"Authorization": f"Bearer {name}"} if name else {}
        async with self.session.get(f"{self.url}/metrics", headers=headers) as response:
            return response.status, response.headers["Content-Type"], await response.text()


@pytest.fixture
async def site(session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    storage = Away(MemoryStorage())
    app = App(storage=storage)

    @app.task(name="send", queue="mine")
    async def send() -> None: ...

    @app.task(name="secret.task", queue="secret", limits=["secret limit"])
    async def other() -> None: ...

    @app.cron("0 3 * * *", name="secret.schedule")
    @app.task(queue="secret")
    async def nightly() -> None: ...

    async def fill() -> None:
        await app.open()
        await app.limits.set(Limit("secret limit", slots=1))
        await app._core.prepare()
        await app.enqueue([send.job(), send.job(), other.job()])

    host().run(fill())
    yield Site(app, storage, host().add(app, Settings(tokens=TOKENS)), session)
    storage.away = False
    host().run(app.close())


def values(text: str) -> dict[str, float]:
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_stored_jobs_in_the_format_that_the_scraper_asks_for(site: Site) -> None:
    status, kind, text = await site.get()
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = values(text)
    assert found["treadle_jobs_queued mine send"] == 2
    assert found["treadle_limit_slots secret limit"] == 1
    assert found["treadle_storage_up"] == 1
    assert any(name.startswith("treadle_schedule_next") for name in found)
    asked = "application/openmetrics-text;version=1.0.0;q=0.7,text/plain;version=0.0.4;q=0.3"  # as Prometheus asks
    status, kind, text = await site.get(Accept=asked)
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert next(family.name for family in openmetrics_families(text)) == "treadle_jobs"
    for odd in ("*/*", "text/html", "application/openmetrics-text; version=x", ";;,,;", "a" * 5_000):
        assert (await site.get(Accept=odd))[0] == 200, odd


async def test_metrics_need_the_scope_read_and_show_a_bound_token_its_queues(site: Site) -> None:
    assert (await site.get(""))[0] == 401
    assert (await site.get("sender"))[0] == 403
    status, _, text = await site.get("bound")
    assert status == 200
    assert values(text)["treadle_jobs_queued mine send"] == 2
    assert "secret" not in text
    assert "treadle_schedule" not in text
    assert "secret" in (await site.get())[2], "the answer of one token is not kept for another"


async def test_an_unavailable_storage_is_shown_and_no_error_of_the_scrape(site: Site) -> None:
    site.storage.away = True
    status, _, text = await site.get()
    assert status == 200
    assert values(text) == {"treadle_storage_up": 0}


async def test_without_the_extra_the_server_runs_and_names_the_missing_package(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "treadle.server.prometheus.exposition", raising=False)
    status, _, text = await site.get()
    assert status == 501
    assert "pip install 'prometheus-client>=0.21', or the extra treadle[prometheus]" in text
