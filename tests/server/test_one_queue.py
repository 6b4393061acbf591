"""Clients with a token of few queues: lists, long names, reasons. And large batches, and runners that disconnected."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.served import host, memory_url
from tests.server.raw import ask
from tests.server.test_bound_worker import TOKENS
from treadle import App
from treadle.cli.root import run
from treadle.core.model import Claim, NewJob
from treadle.core.query_model import Query
from treadle.server import Settings, long_lists
from treadle.server.auth.rights import worker_of
from treadle.storage.memory import MemoryStorage


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def url(storage: MemoryStorage) -> str:
    return host().add(App(storage=storage), Settings(tokens=TOKENS, max_wait=5))


async def test_a_token_of_one_queue_means_that_queue(
    url: str, storage: MemoryStorage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.enqueue([NewJob(id=id, task="t", queue=queue) for id, queue in (("a", "mine"), ("b", "other"))])
    async with App(url, token="mine") as app:
        assert [row.id for row in (await app.jobs.list()).records] == ["a"]
        assert [row.id for row in (await app.storage.find(Query())).records] == ["a"]
    answer = await asyncio.to_thread(ask, url, "GET", "/v1/jobs?count=true", authorization="Bearer mine")
    assert (answer.status, answer.body["total"]) == (200, 1)
    several = await asyncio.to_thread(ask, url, "GET", "/v1/jobs", authorization="Bearer two")
    assert several.status == 403
    assert "mine, mine too" in several.body["message"]
    monkeypatch.setenv("TREADLE_TOKEN", "mine")
    assert await asyncio.to_thread(run, ["jobs", "list", "--url", url, "--json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["a"]


async def test_a_bound_client_reads_why_a_child_is_not_running(url: str, storage: MemoryStorage) -> None:
    id = f"{'0' * 32}-000001"  # an id as a run derives it: the server looks the run up
    await storage.enqueue([NewJob(id=id, task="t", queue="mine")])
    async with App(url, token="two") as app:
        assert "no worker" in await app.jobs.explain(id)


async def test_a_long_name_of_a_bound_worker_is_cut(url: str, storage: MemoryStorage) -> None:
    names = ["w" * 254 + "a", "w" * 254 + "b"]
    await storage.enqueue([NewJob(id=id, task="t", queue="mine") for id in ("a", "b")])
    async with App(url, token="mine") as app:
        for name, id in zip(names, ("a", "b"), strict=True):
            ask = Claim(worker=f"{name}#1", queues=(("mine", 1),), limit=1, lease=9.0)
            assert [row.id for row in (await app.storage.claim(ask)).records] == [id]
            # the same claim id returns the same job
            assert [row.id for row in (await app.storage.claim(ask)).records] == [id]
    [mine] = [each for each in TOKENS if each.name == "mine"]
    cut = [worker_of(mine, name) for name in names]
    assert len(set(cut)) == 2
    assert [worker_of(mine, f"{name}#7") for name in names] == [f"{name}#7" for name in cut]
    assert worker_of(mine, "short#7") == "mine/short#7"


async def test_the_answer_of_the_root_names_the_api() -> None:
    answer = await asyncio.to_thread(ask, memory_url(None), "GET", "/")
    assert answer.status == 404
    assert "/v1/jobs" in answer.body["message"]
    assert "/v1/jobs" not in (await asyncio.to_thread(ask, memory_url(None), "GET", "/x")).body["message"]


BATCHES = {
    "a job": b'{"jobs":[%s{"task":5}]}' % (b'{"task":"t"},' * 9_000),
    "its label": b'{"jobs":[%s{"task":"t","labels":["a",7]}]}' % (b'{"task":"t"},' * 9_000),
    "no object": b'{"jobs":[%s 5]}' % (b'{"task":"t"},' * 9_000),
    "another field": b'{"x":1,"jobs":[%s{"task":"t"}]}' % (b'{"task":"t"},' * 9_000),
    "an odd job": b'{"jobs":[%s{"task":"t","x":1}]}' % (b'{"task":"t"},' * 9_000),
}


@pytest.mark.parametrize("body", BATCHES.values(), ids=BATCHES)
async def test_a_large_batch_is_refused_like_a_small_one(body: bytes) -> None:
    url = memory_url(None)
    large = await asyncio.to_thread(ask, url, "POST", "/v1/jobs/batch", body, content_type="application/json")
    small = await asyncio.to_thread(
        ask, url, "POST", "/v1/jobs/batch", body.replace(b'{"task":"t"},' * 9_000, b""), content_type="application/json"
    )
    assert (large.status, large.body["message"].replace("[9000]", "[0]")) == (small.status, small.body["message"])
    assert (await asyncio.to_thread(ask, url, "GET", "/v1/jobs?count=true")).body["total"] == 0


async def test_long_lists_are_written_as_short_ones() -> None:
    url = memory_url(None)
    sent = [{"task": "t", "args": [n], "id": f"job-{n}"} for n in range(5_000)]
    answer = await asyncio.to_thread(
        ask, url, "POST", "/v1/jobs/batch", json.dumps({"jobs": sent}).encode(), content_type="application/json"
    )
    assert answer.status == 201
    assert [(job["id"], job["args"]) for job in answer.body["jobs"]] == [(f"job-{n}", [n]) for n in range(5_000)]
    page = await asyncio.to_thread(ask, url, "GET", "/v1/jobs?limit=1000&count=true&order=oldest")
    assert (len(page.body["jobs"]), page.body["total"], bool(page.body["cursor"])) == (1000, 5000, True)
    assert long_lists.LONG < 1000
