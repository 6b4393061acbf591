"""Metrics and attempts of runners in other languages, whose reports the server judges; and of workers over HTTP."""

from __future__ import annotations

import aiohttp

from tests.kit import Told, work
from tests.served import host
from tests.server.test_api import Client
from tests.server.test_children import claim, settle
from treadle import App, Retry
from treadle.metrics import Totals
from treadle.server import Settings
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows


@shows("the server counts the jobs that a runner in another language reports, once each")
async def test_reports_of_runners_are_counted_and_their_attempts_kept() -> None:
    storage = MemoryStorage()
    served = App(storage=storage, retry=Retry(attempts=2, base=0.0))
    url = host().add(served, Settings())
    async with aiohttp.ClientSession() as session:
        call = Client(url, session)
        status, _ = await call("POST", "/v1/jobs", {"task": "f", "args": [1]})
        assert status == 201
        [row] = await claim(call, 1)
        assert await settle(call, row, fail="ValueError: no") == "applied"
        assert await settle(call, row, fail="ValueError: no") == "applied"  # repeated: its answer was lost
        [row] = await claim(call, 2)
        assert await settle(call, row, succeed=7) == "applied"
        host().run(served.close())
        found = await App(storage=storage).metrics.totals("task")
        assert found["f"] == Totals(
            succeeded=1, retried=1, run=found["f"].run, wait=found["f"].wait, sampled=found["f"].sampled
        )
        runs = (await App(storage=storage).jobs.history(row["job"]["id"])).attempts
    assert [(each.outcome, each.worker) for each in runs] == [("retrying", "r"), ("succeeded", "r")]
    assert runs[0].error == "ValueError: no"


async def test_a_worker_over_http_stores_its_own_metrics() -> None:
    storage = MemoryStorage()
    url = host().add(App(storage=storage), Settings())
    async with App(url) as app:
        told = Told(app)

        @app.task(name="f")
        async def f() -> None: ...

        await f.enqueue()
        async with work(app, name="remote"):
            await told.until("succeeded")
        assert (await app.metrics.totals("task"))["f"].succeeded == 1
    assert [row.source.partition("#")[0] for row in await storage.read_metrics(0, 1e11)] == ["remote"]
