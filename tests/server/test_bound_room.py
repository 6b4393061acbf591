"""A token of one queue cannot take anything from another queue: no slot of its limit, no hint of a waiting runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.server.test_api import Client, session
from tests.server.test_crossing import MINE, OTHER, TOKENS, Sites, new, sites
from tests.waiting import Signal
from treadle import App
from treadle.server import Serving, Settings, make_site
from treadle.server.longpoll import WaitingLine

__all__ = ["session", "sites"]

SOON = 10.0  # seconds, far less than a claim waits


# --- slots of limits


@pytest.mark.parametrize("token", ["all", "admin"])
async def test_no_job_takes_room_of_the_own_limit_of_a_queue(sites: Sites, token: str) -> None:
    """A job that held such a slot would stop the queue. The answer is 422; in `followups` only the outcome is
    refused."""
    for name in (f"queue:{OTHER}", f"queue:{MINE}", "queue:", "queue"):
        raw = new(limits=[[name, 1]])
        for path, body in (
            ("/v1/jobs", {"task": "t", "queue": MINE, "limits": [name]}),
            ("/v1/work/enqueue", {"jobs": [raw]}),
            ("/v1/work/enqueue", {"jobs": [new(), raw]}),
        ):
            status, answer = await sites.native("POST", path, body, token)
            assert (status, answer["details"]["option"]) == (422, "limits"), (path, answer)
    await sites.native("POST", "/v1/jobs", {"task": "t", "queue": MINE, "id": "run"}, token)
    claim = {"worker": "w#1", "queues": [[MINE, 1]], "limit": 1}
    _, claimed = await sites.native("POST", "/v1/work/claim", claim, token)
    [row] = claimed["records"]
    outcome = {"id": "run", "version": row["version"], "state": "succeeded", "followups": [raw]}
    report = {"id": "run", "version": row["version"], "followups": [{**raw, "id": ""}]}
    for each in (outcome, report):
        _, said = await sites.native("POST", "/v1/work/settle", {"outcomes": [each]}, token)
        assert said["settled"][0]["status"] == "refused", said
    page = await sites.admin("/v1/work/find", {"queue": MINE})
    assert [each["job"]["id"] for each in page["records"]] == ["run"]


# --- hints


class Waits:
    """A server on which only hints wake the waiting claims."""

    def __init__(self, url: str, site: Any, session: aiohttp.ClientSession, rests: Signal) -> None:
        self.call, self._site, self._rests = Client(url, session), site, rests

    async def claim(self, token: str, worker: str, queue: str, **more: Any) -> list[str]:
        ask = {"worker": worker, "queues": [[queue, 1]], "limit": 1, "wait": 30, **more}
        status, answer = await self.call("POST", "/v1/work/claim", ask, token)
        assert status == 200, answer
        return [row["job"]["id"] for row in answer["records"]]

    def _seats(self) -> int:
        return sum(len(bench.seats) for bench in self._site.state.waiting._benches.values())

    async def seated(self, count: int) -> None:
        """Until so many claims have found nothing and wait."""
        await self._rests.until(lambda: self._seats() >= count, f"{count} claims that wait")


@pytest.fixture
async def waits(monkeypatch: pytest.MonkeyPatch, session: aiohttp.ClientSession) -> AsyncIterator[Waits]:
    monkeypatch.setattr("treadle.core.defaults.POLL", 3_600.0)
    rests = Signal().around(monkeypatch, WaitingLine, "rest")
    app = App("memory://")
    async with app:
        site = make_site(app, Settings(tokens=TOKENS, max_wait=30))
        async with Serving(site, on_stop=site.state.waiting.stop, grace=1) as serving:
            yield Waits(serving.url, site, session, rests)


@pytest.mark.parametrize(
    "more",
    [
        {"token": "all", "queue": OTHER, "ids": ["nothing"]},  # from a token without any right to the queue
        {"token": "admin", "queue": OTHER, "ids": ["nothing"]},
        {"token": "admin", "queue": OTHER, "tasks": {"another": [1, None]}},
    ],
)
async def test_a_claim_of_other_jobs_takes_no_notification(waits: Waits, more: dict[str, Any]) -> None:
    """Each hint wakes one of the claims that wait for the same jobs. It was lost if that claim wanted none of the
    jobs."""
    token, queue = more.pop("token"), more.pop("queue")
    others = [asyncio.ensure_future(waits.claim(token, f"o{n}#1", queue, **more)) for n in range(3)]
    await waits.seated(3)
    mine = asyncio.ensure_future(waits.claim("admin", "w#1", OTHER))
    await waits.seated(4)
    status, job = await waits.call("POST", "/v1/jobs", {"task": "t", "queue": OTHER}, "admin")
    assert status == 201
    async with asyncio.timeout(SOON):
        assert await mine == [job["id"]]
    assert not any(each.done() for each in others)
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_one_of_the_claims_for_the_same_jobs_is_woken(waits: Waits) -> None:
    """However many of the tasks they have room for; the next job wakes the next one."""
    asked = [asyncio.ensure_future(waits.claim("admin", f"w{n}#1", OTHER, tasks={"t": [n + 1, None]})) for n in (0, 1)]
    await waits.seated(2)
    _, job = await waits.call("POST", "/v1/jobs", {"task": "t", "queue": OTHER}, "admin")
    done, left = await asyncio.wait(asked, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result() for each in done] == [[job["id"]]]
    _, job = await waits.call("POST", "/v1/jobs", {"task": "t", "queue": OTHER}, "admin")
    async with asyncio.timeout(SOON):
        assert await left.pop() == [job["id"]]
