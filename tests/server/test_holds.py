"""One caller of the worker protocol cannot delay the others for long: lists are limited, and long work is done in
steps."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.served import host, memory_url
from tests.server.raw import Answer, ask
from tests.waiting import Turns
from treadle import App, BadOption, flow
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, State
from treadle.core.query_model import Query
from treadle.core.ranges import MOST_CALL, MOST_QUEUES
from treadle.server import Settings, time_slices
from treadle.server.row_checks import MOST_CHANGES, MOST_CLAIM, MOST_EDGES, MOST_ROWS, MOST_UPSTREAMS
from treadle.server.time_slices import in_parts
from treadle.storage.http import HttpStorage

HELD = {"sqlite": 400_000, "memory": 900_000}  # calls; up to 304,000 and 697,000 with 10,000 jobs in a batch
PRESENCE = {
    "worker": "w",
    "host": "h",
    "pid": 1,
    "queues": ["q"],
    "tasks": ["t"],
    "slots": 1,
    "running": 1,
    "uptime": 1.0,
    "ttl": 9.0,
    "gone": False,
}


def post(url: str, path: str, body: Any) -> Answer:
    return ask(url, "POST", path, json.dumps(body).encode(), content_type="application/json")


def job(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "task": "t", "queue": "q", **more}


def names(count: int, stem: str = "i") -> list[str]:
    return [f"{stem}{n:05}" for n in range(count)]


def claim(**more: Any) -> dict[str, Any]:
    return {"worker": "w#1", "queues": [["q", 1]], **more}


def change(name: str) -> dict[str, Any]:
    return {"type": "set", "rule": {"name": name, "slots": 1}}


def edges(count: int) -> list[dict[str, Any]]:
    """Jobs that each wait for this many others."""
    per = MOST_UPSTREAMS
    return [job(f"e{at}", wait_timeout=60, after=names(min(per, count - at))) for at in range(0, count, per)]


Made = Callable[[int], dict[str, Any]]
LISTS: dict[str, tuple[str, int, Made]] = {
    "jobs": ("enqueue", MOST_ROWS, lambda n: {"jobs": [job(id) for id in names(n)]}),
    "after of a job": ("enqueue", MOST_UPSTREAMS, lambda n: {"jobs": [job("a", wait_timeout=60, after=names(n))]}),
    "after of a call": ("enqueue", MOST_EDGES, lambda n: {"jobs": edges(n)}),
    "outcomes": ("settle", MOST_ROWS, lambda n: {"outcomes": [_out(id) for id in names(n)]}),
    "outcomes and a claim": (
        "settle_claim",
        MOST_ROWS,
        lambda n: {"outcomes": [_out(id) for id in names(n)], "claim": claim()},
    ),
    "renewals": (
        "heartbeat",
        MOST_ROWS,
        lambda n: {"worker": PRESENCE, "renewals": [{"id": id, "version": 1} for id in names(n)]},
    ),
    "ids": ("get", MOST_CALL, lambda n: {"ids": names(n)}),
    "topics": ("watch", MOST_CALL, lambda n: {"topics": [f"job:{id}" for id in names(n)], "timeout": 0}),
    "ids of a claim": ("claim", MOST_CALL, lambda n: claim(ids=names(n))),
    "running of a claim": ("claim", MOST_ROWS, lambda n: claim(running=names(n))),
    "limit of a claim": ("claim", MOST_CLAIM, lambda n: claim(limit=n)),
    "reach of a claim": ("claim", MOST_QUEUES, lambda n: claim(reach=names(n))),
    "reach of a job": ("enqueue", MOST_QUEUES, lambda n: {"jobs": [job("a", reach=["q", *names(n - 1)])]}),
    "limits": ("set_limits", MOST_CHANGES, lambda n: {"changes": [change(id) for id in names(n)]}),
    "rows of a page": ("find", MOST_CALL, lambda n: {"limit": n}),
    "rows to prune": ("prune", MOST_CALL, lambda n: {"limit": n}),
}
SPLIT = ("jobs", "after of a call", "outcomes", "outcomes and a claim", "renewals", "topics", "limits")


def _out(id: str) -> dict[str, Any]:
    return {"id": id, "version": 1, "state": "succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
async def test_a_list_of_the_worker_protocol_is_taken_up_to_its_bound(name: str) -> None:
    verb, most, made = LISTS[name]
    url = memory_url(None)
    more = await asyncio.to_thread(post, url, f"/v1/work/{verb}", made(most + 1))
    assert (more.status, more.body["error"]) == (422, "bad_option")
    assert f"{most:,}" in more.body["message"]
    assert f"{most + 1:,}" in more.body["message"] or f"found {most + 1}" in more.body["message"]
    assert ("send them in several calls" in more.body["message"]) == (name in SPLIT)
    count = await asyncio.to_thread(ask, url, "GET", "/v1/jobs?count=true&limit=0")
    assert count.body["total"] == 0
    assert (await asyncio.to_thread(post, url, f"/v1/work/{verb}", made(most))).status == 200


@pytest.mark.parametrize(
    "after", [[MOST_UPSTREAMS + 1], [MOST_UPSTREAMS, MOST_UPSTREAMS, 1]], ids=["of one", "together"]
)
async def test_a_batch_of_the_native_api_waits_for_as_many(after: list[int]) -> None:
    jobs = [{"task": "t", "wait_timeout": 60, "after": names(count)} for count in after]
    answer = await asyncio.to_thread(post, memory_url(None), "/v1/jobs/batch", {"jobs": jobs})
    assert (answer.status, answer.body["error"]) == (422, "bad_option")
    assert "'after': expected at most" in answer.body["message"]


async def test_an_outcome_with_too_many_jobs_is_refused_alone() -> None:
    url = memory_url(None)
    await asyncio.to_thread(post, url, "/v1/work/enqueue", {"jobs": [job("a"), job("b")]})
    much = {"id": "a", "version": 0, "state": "succeeded", "followups": [job(id) for id in names(MOST_ROWS + 1)]}
    wide = {"id": "a", "version": 0, "state": "succeeded", "followups": edges(MOST_EDGES + 1)}
    outcomes = [much, wide, {"id": "b", "version": 0, "state": "succeeded"}]
    said = (await asyncio.to_thread(post, url, "/v1/work/settle", {"outcomes": outcomes})).body["settled"]
    assert [each["status"] for each in said] == ["refused", "refused", "applied"]
    assert f"{MOST_ROWS:,}" in said[0]["reason"]
    assert f"{MOST_EDGES:,}" in said[1]["reason"]


@pytest.mark.slow
async def test_our_own_client_sends_more_in_several_calls() -> None:
    count = 2 * MOST_ROWS + 1
    ids = names(count)
    async with App(memory_url(None)) as app:
        storage = app.storage
        assert isinstance(storage, HttpStorage)
        await storage.enqueue([NewJob(id=id, task="t", queue="q") for id in ids[:MOST_ROWS]])
        with pytest.raises(BadOption, match="send them in several calls"):
            await storage.enqueue([NewJob(id=id, task="t", queue="q") for id in ids])
        ask = Claim(worker="w#1", queues=(("q", 1),), limit=2, lease=60.0)
        held = (await storage.claim(ask)).records
        worker = Presence(worker="w", host="h", pid=1, queues=("q",), tasks=("t",), slots=1, running=1)
        beat = await storage.heartbeat(worker, [LeaseRenewal(id=id, version=1) for id in ids], 60.0)
        assert beat.lost == set(ids) - {row.id for row in held}
        outcomes = [Outcome(id=id, version=1, state=State.SUCCEEDED) for id in ids]
        said = await storage.settle(outcomes[:1] + outcomes[2:])
        assert [number for number, each in enumerate(said) if each.status == "applied"] == [0]
        both, claimed = await storage.settle_claim(outcomes, Claim(worker="w#2", queues=(("q", 1),), limit=2))
        assert [number for number, each in enumerate(both) if each.status == "applied"] == [0, 1]
        assert len(claimed.records) == 2
        assert await storage.prune(10**6) == 0
        assert [row is not None for row in await storage.get(ids)].count(True) == MOST_ROWS
        assert (await storage.find(Query(state=(State.SUCCEEDED,), task="t", count=True))).total == 2


async def test_a_flow_of_ten_thousand_jobs_goes_over_http() -> None:
    async with App(memory_url(None)) as app:
        task = app.stub("t")
        sent = await flow([task.job(n) for n in range(10_000)]).enqueue()
        assert (await sent.workflow.progress()).total == 10_001


async def test_long_work_of_many_calls_runs_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an ordinary request, which needs several turns of the loop, would wait for all of them in each turn."""
    monkeypatch.setattr(time_slices, "TURN", 0.0)
    went = list[int]()

    async def long() -> None:
        mine = time_slices.TimeSlices()
        for _ in range(10):
            await mine.step()
            went.append(turns.count)

    with Turns() as turns:
        works = [asyncio.create_task(long()) for _ in range(5)]
        gone = asyncio.create_task(long())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(*works)
    assert len(went) == len(set(went)) == 50


def test_a_loop_that_has_ended_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "TURN", 0.0)

    async def long() -> weakref.ref[asyncio.AbstractEventLoop]:
        await time_slices.TimeSlices().step()
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(long())
    gc.collect()
    assert ended() is None


def test_parts_are_bounded_by_weight() -> None:
    assert [list(part) for part in in_parts([1, 2, 9, 1, 1, 1, 1], 3, int)] == [[1, 2], [9], [1, 1, 1], [1]]
    assert list(in_parts([], 3, int)) == []


# --- how long one call delays the others


class Watch:
    """Counts the function calls on the server's thread between two turns of its loop: a measure of work on any
    machine."""

    def __init__(self) -> None:
        self.longest = self._calls = 0
        self._over = asyncio.Event()

    def _count(self, _frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    async def run(self) -> None:
        sys.setprofile(self._count)
        try:
            with Turns(self._turned):
                await self._over.wait()
        finally:
            sys.setprofile(None)

    def _turned(self) -> None:
        self.longest, self._calls = max(self.longest, self._calls), 0

    def stop(self) -> None:
        host().loop.call_soon_threadsafe(self._over.set)


def longest(url: str, verb: str, body: Any) -> tuple[int, int]:
    watch = Watch()
    running = asyncio.run_coroutine_threadsafe(watch.run(), host().loop)
    try:
        status = post(url, f"/v1/{verb}", body).status
    finally:
        watch.stop()
        running.result(30)
    return status, watch.longest


DOORS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "jobs": ("work/enqueue", lambda s: {"jobs": [job(id) for id in names(MOST_ROWS, s)]}),
    "keyed jobs": ("work/enqueue", lambda s: {"jobs": [job(id, key=id) for id in names(MOST_ROWS, s)]}),
    "after of one": ("work/enqueue", lambda s: {"jobs": [job(s, wait_timeout=60, after=names(MOST_UPSTREAMS, s))]}),
    "after of a call": (
        "work/enqueue",
        lambda s: {"jobs": [job(f"{s}{n}", wait_timeout=60, after=names(MOST_UPSTREAMS, f"{s}{n}")) for n in range(2)]},
    ),
    "much too long an after": ("work/enqueue", lambda s: {"jobs": [job(s, wait_timeout=60, after=names(90_000, s))]}),
    "far too many jobs": ("work/enqueue", lambda s: {"jobs": [job(id) for id in names(90_000, s)]}),
    "a claim": ("work/claim", lambda s: claim(worker=f"{s}#1", queues=[["held", 1]], limit=MOST_CLAIM)),
    "settled": ("work/settle", lambda s: {"outcomes": [_out(id) for id in names(MOST_ROWS, "h")]}),
    "children": (
        "work/settle",
        lambda s: {
            "outcomes": [
                {
                    "id": f"{s}p",
                    "version": 0,
                    "state": "succeeded",
                    "followups": [job(id) for id in names(MOST_ROWS, s)],
                }
            ]
        },
    ),
    "a heartbeat": (
        "work/heartbeat",
        lambda s: {"worker": PRESENCE, "renewals": [{"id": id, "version": 1} for id in names(MOST_ROWS, "h")]},
    ),
    "topics": ("work/watch", lambda s: {"topics": [f"job:{id}" for id in names(MOST_CALL, s)], "timeout": 0}),
    "ids": ("work/get", lambda s: {"ids": names(MOST_CALL, "h")}),
    "a page": ("work/find", lambda s: {"queue": "held", "limit": MOST_CALL}),
    "limits": ("work/set_limits", lambda s: {"changes": [change(id) for id in names(MOST_CHANGES, s)]}),
    "old rows": ("work/prune", lambda s: {"limit": MOST_CALL}),
    "a batch": (
        "jobs/batch",
        lambda s: {
            "jobs": [
                {"task": "t", "queue": "q", "args": [n], "labels": ["a"], "lane": f"l{n % 7}"} for n in range(10_000)
            ]
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HELD)
async def test_no_call_keeps_the_others_waiting(kind: str, tmp_path: Path) -> None:
    url = host().add(App("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db"), Settings(max_wait=0.1))
    held = [{"id": id, "task": "t", "queue": "held"} for id in names(MOST_ROWS, "h")]
    await asyncio.to_thread(post, url, "/v1/work/enqueue", {"jobs": held})
    parents = [{"id": f"{name}p", "task": "t", "queue": "p"} for name in "abcdefghijklmnop"]
    await asyncio.to_thread(post, url, "/v1/work/enqueue", {"jobs": parents})
    found: dict[str, int] = {}
    for stem, (name, (path, made)) in zip("abcdefghijklmnop", DOORS.items(), strict=True):
        status, found[name] = await asyncio.to_thread(longest, url, path, made(stem))
        assert status < 500
    assert {name: calls for name, calls in found.items() if calls > HELD[kind]} == {}
