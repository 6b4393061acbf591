"""A runner that disconnects while it waits for work takes no job with it, whatever requests it had pipelined."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from tests.server.raw import Answer, ask, head
from tests.server.test_port_bounds import HOST, JOB, gone
from tests.waiting import Signal, each_turn
from treadle import App
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core.model import Claim, Claimed, NewJob, Outcome, Settled, State
from treadle.core.query_model import Query
from treadle.server import Serving, Settings, make_site
from treadle.server.longpoll import LongPoll, WaitingLine
from treadle.server.routes.runner_claims import SameClaim
from treadle.storage.memory import MemoryStorage

RUNNER = b'{"runner_id": "0f0e0d0c-0b0a-4908-8706-050403020100"}'


def body(number: int) -> bytes:
    return json.dumps({"worker": f"r#{number}", "wait": 20, "lease": 300}).encode()


def claims(number: int) -> bytes:
    """This many claims, one after the other on one connection."""
    bodies = [body(each) for each in range(number)]
    return b"".join(head("POST", "/v1/work/claim", {**JOB, "Content-Length": str(len(each))}) + each for each in bodies)


class Gone:
    """A server, and a runner that sent several claims on one connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._rests = monkeypatch, Signal().around(monkeypatch, WaitingLine, "rest")
        self.app = App("memory://")
        self.site = make_site(self.app, Settings(), protocols=[queue_routes(Rules())])
        self.serving = Serving(self.site, on_stop=self.site.state.waiting.stop)

    def hold_claims(self) -> tuple[asyncio.Event, asyncio.Semaphore]:
        """Hold claims before they reach the storage. Each sets the event, and waits for the semaphore."""
        claim, begun, go = self.app.storage.claim, asyncio.Event(), asyncio.Semaphore(0)

        async def held(asked: Claim) -> Claimed:
            begun.set()
            await go.acquire()
            return await claim(asked)

        self._patch.setattr(self.app.storage, "claim", held)
        return begun, go

    async def rests(self) -> None:
        """Until a claim has found nothing and waits for a hint."""
        benches = self.site.state.waiting._benches
        await self._rests.until(lambda: any(bench.seats for bench in benches.values()), "a claim that waits")

    async def next_one(self) -> list[Any]:
        """The job that a connected runner gets."""
        answer: Answer = await asyncio.to_thread(
            ask, self.serving.url, "POST", "/v1/work/claim", body(99), content_type="application/json"
        )
        assert answer.status == 200, json.dumps(answer.body)
        return [(row["job"]["id"], row["attempt"]) for row in answer.body["records"]]


def open_all(go: asyncio.Semaphore) -> None:
    for _ in range(100):
        go.release()


@pytest.mark.parametrize("number", [1, 2, 5])
async def test_a_job_found_for_a_runner_that_left_goes_to_the_next(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Gone(monkeypatch)
    async with case.serving as serving:
        await case.app.storage.enqueue([NewJob(id="j", task="t")])
        begun, go = case.hold_claims()
        with socket.create_connection((serving.host, serving.port)) as runner:
            runner.sendall(claims(number))
            await begun.wait()
        await gone(serving)
        open_all(go)
        assert await case.next_one() == [("j", 0)]


@pytest.mark.parametrize("number", [1, 2, 5])
async def test_a_runner_that_left_while_it_waited_gets_no_job(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Gone(monkeypatch)
    async with case.serving as serving:
        with socket.create_connection((serving.host, serving.port)) as runner:
            runner.sendall(claims(number))
            await case.rests()
        await gone(serving)
        await case.app.storage.enqueue([NewJob(id="j", task="t")])
        assert await case.next_one() == [("j", 0)]


async def test_a_claim_behind_one_that_was_answered_takes_nothing_for_a_runner_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first claim has its job, and the next one begins as the connection ends."""
    case = Gone(monkeypatch)
    async with case.serving as serving:
        with socket.create_connection((serving.host, serving.port)) as runner:
            runner.sendall(claims(2))
            await case.rests()
            begun, go = case.hold_claims()
            await case.app.storage.enqueue([NewJob(id="first", task="t")])
            await begun.wait()
            begun.clear()
            go.release()
            await begun.wait()  # the second claim
        await gone(serving)
        await case.app.storage.enqueue([NewJob(id="j", task="t")])
        open_all(go)
        assert await case.next_one() == [("j", 0)]


async def test_a_job_found_for_a_runner_of_the_queue_protocol_goes_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Gone(monkeypatch)
    runner_id = b'{"runner_id": "0f0e0d0c-0b0a-4908-8706-050403020100"}'
    async with case.serving as serving:
        made = json.dumps({"binary_addr": "abc"}).encode()
        job = await asyncio.to_thread(ask, serving.url, "POST", "/jobs/create", made, content_type="application/json")
        begun, go = case.hold_claims()
        with socket.create_connection((serving.host, serving.port)) as runner:
            sent = {**JOB, "Content-Length": str(len(runner_id))}
            runner.sendall(head("POST", "/jobs/claim?wait=20", sent) + runner_id)
            await begun.wait()
        await gone(serving)
        open_all(go)
        found = await asyncio.to_thread(
            ask, serving.url, "POST", "/jobs/claim?wait=20", runner_id, content_type="application/json"
        )
        assert (found.status, found.body["job_id"]) == (200, job.body["job_id"])


@pytest.mark.parametrize(
    ("make", "made", "path", "body"),
    [
        ("/jobs/create", b'{"binary_addr": "abc"}', "/jobs/claim?wait=20", RUNNER),
        ("/v1/jobs", b'{"task": "f", "args": []}', "/v1/work/claim", body(1)),
    ],
    ids=["queuey", "worker protocol"],
)
async def test_a_job_of_a_repeated_claim_stays_claimed_when_the_first_connection_ends(
    make: str, made: bytes, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner lost its connection during the claim, and repeated it under the same id: the job is its own."""
    entered = Signal().after(monkeypatch, SameClaim, "enter")
    ended = Signal().after(monkeypatch, LongPoll, "until_found")
    case = Gone(monkeypatch)
    async with case.serving as serving:
        await asyncio.to_thread(ask, serving.url, "POST", make, made, content_type="application/json")
        begun, go = case.hold_claims()
        with socket.create_connection((serving.host, serving.port)) as runner:
            sent = {**JOB, "Content-Length": str(len(body)), "Idempotency-Key": "k"}
            runner.sendall(head("POST", path, sent) + body)
            await begun.wait()
        await gone(serving)
        again = functools.partial(ask, content_type="application/json", idempotency_key="k")
        repeated = asyncio.create_task(asyncio.to_thread(again, serving.url, "POST", path, body))
        await entered.until(lambda: entered.sent == 2, "the repeated claim")
        settle, answered = case.app.storage.settle, asyncio.Event()

        async def late(outcomes: Sequence[Outcome]) -> list[Settled]:
            await answered.wait()
            return await settle(outcomes)

        monkeypatch.setattr(case.app.storage, "settle", late)
        open_all(go)
        assert (await repeated).status == 200
        answered.set()
        await ended.until(lambda: ended.sent == 2, "the end of both requests")
        [row] = (await case.app.storage.find(Query())).records
        assert row.state is State.RUNNING


async def test_a_runner_that_is_cancelled_before_its_watcher_starts_leaves_none() -> None:
    polls = LongPoll(MemoryStorage)

    async def poll() -> None:
        async with polls.bench(["default"]):
            raise AssertionError("it was not cancelled in time")

    polling = asyncio.create_task(poll())
    async for _ in each_turn(lambda: not polls._benches):
        pass  # an eager task has joined already
    [line] = polls._benches.values()
    assert line.watcher is not None
    polling.cancel()
    await asyncio.wait([polling])
    assert (polling.cancelled(), polls._benches, line.here) == (True, {}, 0)
    await asyncio.wait([line.watcher])


class Watched(MemoryStorage):
    """Sends `begun` and `over` for each watch."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over = Signal(), Signal()

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        self.begun.send()
        try:
            return await super().watch(topics, timeout)
        finally:
            self.over.send()


WATCH = b'{"topics": ["job:j"], "timeout": 600}'


@pytest.mark.parametrize(
    "asked",
    [
        head("GET", "/v1/jobs/j/wait?timeout=600", HOST),
        head("POST", "/v1/work/watch", {**JOB, "Content-Length": str(len(WATCH))}) + WATCH,
    ],
    ids=["wait", "watch"],
)
async def test_a_call_that_waits_ends_with_its_client(asked: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that give up early would leave many of them."""
    monkeypatch.setattr("treadle.server.routes.jobs.BEAT", 600.0)
    app = App(storage=(storage := Watched()))
    site = make_site(app, Settings(max_wait=600.0))
    async with Serving(site, on_stop=site.state.waiting.stop) as serving:
        await storage.enqueue([NewJob(id="j", task="t")])
        with socket.create_connection((serving.host, serving.port)) as client:
            client.sendall(asked)
            await storage.begun.until(lambda: storage.begun.sent, "a call that waits")
        await storage.over.until(lambda: storage.over.sent, "the end of the call")
