"""The queue protocol, as its runners and senders see it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.served import host, memory_url
from treadle import App
from treadle.blobs import DirectoryBlobs
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.blobs import blob_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core.model import NewJob, Outcome, State
from treadle.server import Settings
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.shows import shows

A, B = "0f0e0d0c-0b0a-4908-8706-050403020100", "1f1e1d1c-1b1a-4918-9716-151413121110"


class Queue:
    """One client of the queue."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            named.setdefault("Content-Type", "application/json")
        async with self.session.request(method, self.url + path, data=data, headers=named) as answer:
            content = await answer.read()
            return answer.status, json.loads(content) if content[:1] in (b"{", b"[") else content.decode()

    async def create(self, binary: str = "abc", **more: Any) -> Any:
        status, job = await self("POST", "/jobs/create", {"binary_addr": binary, **more})
        assert status == 200, job
        return job

    async def claim(self, runner: str = A) -> Any:
        status, job = await self("POST", "/jobs/claim", {"runner_id": runner})
        return job if status == 200 else status


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def serve(session: aiohttp.ClientSession, clock: HandClock, **rules: Any) -> Queue:
    return Queue(session, memory_url(clock, Settings(max_wait=5), [queue_routes(Rules(**rules))]))


@pytest.fixture
def queue(session: aiohttp.ClientSession, clock: HandClock) -> Queue:
    return serve(session, clock)


@shows("`GET /ping` answers `pong`")
async def test_ping_answers_pong(queue: Queue) -> None:
    assert await queue("GET", "/ping") == (200, "pong")


@shows(
    "a job shows its addresses, its state in lower case and its times in milliseconds from create to complete",
    "the same runner may complete a job twice, and ids are read in any case",
)
async def test_the_life_of_a_job(queue: Queue, clock: HandClock) -> None:
    job = await queue.create("bin", input_addr="in")
    born = int(clock() * 1000)
    assert job == {
        "job_id": job["job_id"],
        "binary_addr": "bin",
        "input_addr": "in",
        "output_addr": None,
        "created_at": born,
        "updated_at": born,
        "completed_at": None,
        "status": "pending",
        "run_attempts": 0,
        "abandon_count": 0,
        "failure": None,
        "runner_id": None,
    }
    uuid.UUID(job["job_id"])
    clock.advance(1)
    active = await queue.claim(A.upper())
    assert (active["status"], active["run_attempts"], active["runner_id"]) == ("active", 1, A.upper())
    assert active["updated_at"] == born + 1000
    clock.advance(100)
    status, tickled = await queue("POST", f"/jobs/{job['job_id'].upper()}/tickle")
    assert (status, tickled["updated_at"]) == (200, born + 101_000)
    clock.advance(50)
    done = {"status": "Completed", "output_addr": "out", "runner_id": A}
    status, ended = await queue("POST", f"/jobs/{job['job_id']}/complete", done)
    assert (status, ended["status"], ended["output_addr"], ended["runner_id"]) == (200, "completed", "out", A.upper())
    assert (ended["completed_at"], ended["updated_at"]) == (born + 151_000, born + 101_000)
    assert await queue("GET", f"/jobs/{job['job_id']}") == (200, ended)
    assert await queue("POST", f"/jobs/{job['job_id']}/complete", done) == (200, ended)
    assert (await queue("POST", f"/jobs/{job['job_id']}/complete", {"status": "completed"}))[0] == 400
    assert await queue.claim() == 204


@pytest.mark.slow
@shows("fifty runners claim a thousand jobs, each job once and the oldest first")
@pytest.mark.parametrize("stored", ["memory", "sqlite"])
async def test_fifty_runners_claim_a_thousand_jobs_each_once_the_oldest_first(
    session: aiohttp.ClientSession, tmp_path: Path, stored: str
) -> None:
    url = "memory://" if stored == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    queue = Queue(session, host().add(App(url), Settings(), [queue_routes(Rules())]))
    made = [(await queue.create(str(number)))["job_id"] for number in range(1000)]
    turn = {id: number for number, id in enumerate(made)}
    runs: list[list[int]] = [[] for _ in range(50)]
    claimed = 0

    async def runner(mine: list[int]) -> None:
        nonlocal claimed
        id = str(uuid.uuid4())
        while (job := await queue.claim(id)) != 204:
            mine.append(turn[job["job_id"]])
            claimed += 1
            # Only jobs that another runner is receiving right now may be missing among the older ones.
            assert mine[-1] < claimed + len(runs)

    await asyncio.gather(*[runner(mine) for mine in runs])
    assert sorted(each for mine in runs for each in mine) == list(range(1000))
    assert all(mine == sorted(mine) for mine in runs)


@shows("a job is abandoned after more than 300 s of silence, and not before")
async def test_a_job_is_abandoned_after_more_than_its_age_of_silence(queue: Queue, clock: HandClock) -> None:
    job = await queue.create()
    await queue.claim(A)
    clock.advance(300)
    assert (await queue("GET", f"/jobs/{job['job_id']}"))[1]["status"] == "active"
    clock.advance(0.001)
    status, seen = await queue("GET", f"/jobs/{job['job_id']}")
    assert (status, seen["status"], seen["runner_id"], seen["abandon_count"]) == (200, "pending", None, 1)
    for call, body in (("tickle", None), ("complete", {"status": "completed"})):
        status, problem = await queue("POST", f"/jobs/{job['job_id']}/{call}", body)
        assert (status, problem["error"]) == (400, "not_active")


@shows("a runner whose job another one has claimed gets 409 and changes nothing")
async def test_a_runner_that_was_presumed_dead_changes_nothing(queue: Queue, clock: HandClock) -> None:
    job = await queue.create()
    await queue.claim(A)
    clock.advance(301)
    active = await queue.claim(B)
    for call, body in (("tickle", {"runner_id": A}), ("complete", {"runner_id": A, "status": "completed"})):
        status, problem = await queue("POST", f"/jobs/{job['job_id']}/{call}", body)
        assert (status, problem["error"]) == (409, "not_owner")
    assert await queue("GET", f"/jobs/{job['job_id']}") == (200, active)


@shows("a job that is abandoned too often fails, in both ways of counting")
@pytest.mark.parametrize(
    ("counting", "seen"),
    [
        ("literal", [(1, "active"), (2, "pending"), (3, "active"), (4, "failed")]),
        ("claims", [(1, "active"), (1, "pending"), (2, "active"), (2, "pending"), (3, "active"), (3, "failed")]),
    ],
)
@pytest.mark.parametrize("found_by", ["get", "claim"])
async def test_a_job_that_is_abandoned_too_often_fails(
    session: aiohttp.ClientSession, clock: HandClock, counting: str, seen: list[tuple[int, str]], found_by: str
) -> None:
    queue = serve(session, clock, counting=counting)
    job = await queue.create()
    found = []
    while not found or found[-1][1] != "failed":
        await queue.claim(A)
        for _ in range(2):
            _, row = await queue("GET", f"/jobs/{job['job_id']}")
            found.append((row["run_attempts"], row["status"]))
            clock.advance(151 if len(found) % 2 == 0 else 301)
            if found_by == "claim" and len(found) == len(seen) - 1:
                assert await queue.claim(B) == 204
            if found[-1][1] == "failed":
                break
    assert found == seen


@shows("a job that was abandoned keeps its queue position")
async def test_a_returned_job_keeps_its_position(queue: Queue, clock: HandClock) -> None:
    first = await queue.create()
    await queue.create()
    await queue.claim(A)
    clock.advance(301)
    assert (await queue.claim(B))["job_id"] == first["job_id"]


@shows("a claim may wait for a job, and a repeated claim returns the same job")
async def test_a_claim_may_wait_and_may_be_repeated(queue: Queue) -> None:
    waiting = asyncio.create_task(queue("POST", "/jobs/claim?wait=5", {"runner_id": A}, Idempotency_Key="k"))
    job = await queue.create()
    status, found = await waiting
    assert (status, found["job_id"]) == (200, job["job_id"])
    assert await queue("POST", "/jobs/claim", {"runner_id": A}, Idempotency_Key="k") == (200, found)
    assert await queue.claim() == 204


@shows("a claim repeated with another spelling of its runner is the same claim")
async def test_a_repeated_claim_may_spell_its_runner_differently(queue: Queue) -> None:
    job, other = await queue.create(), await queue.create()
    for runner in (A, A.upper(), A.title(), A):
        status, claimed = await queue("POST", "/jobs/claim", {"runner_id": runner}, Idempotency_Key="k")
        assert (status, claimed["job_id"], claimed["runner_id"]) == (200, job["job_id"], runner)
        assert (await queue("GET", f"/jobs/{job['job_id']}"))[1] == claimed
        assert claimed["run_attempts"] == 1
    assert (await queue.claim(A.upper()))["job_id"] == other["job_id"]
    done = {"status": "completed", "output_addr": "out", "runner_id": A.upper()}
    status, ended = await queue("POST", f"/jobs/{job['job_id']}/complete", done)
    assert (status, ended["runner_id"]) == (200, A)


@shows("a job that its runner claims again shows the spelling of the new claim")
async def test_a_later_claim_has_its_own_spelling_of_the_runner(queue: Queue) -> None:
    job = await queue.create()
    for runner in (A.upper(), A):
        assert (await queue("POST", "/jobs/claim", {"runner_id": runner}, Idempotency_Key=runner))[0] == 200
        assert (await queue("GET", f"/jobs/{job['job_id']}"))[1]["runner_id"] == runner
        await queue("POST", f"/jobs/{job['job_id']}/release", {"runner_id": A})


@shows("`create` repeated with its `Idempotency-Key` makes one job, and another body under it gets 422")
async def test_creating_may_be_repeated(queue: Queue) -> None:
    first = await queue("POST", "/jobs/create", {"binary_addr": "a"}, Idempotency_Key="k")
    assert await queue("POST", "/jobs/create", {"binary_addr": "a"}, Idempotency_Key="k") == first
    assert (await queue("POST", "/jobs/create", {"binary_addr": "b"}, Idempotency_Key="k"))[0] == 422


@shows("`release` returns a job to its queue position and counts no attempt")
async def test_a_released_job_keeps_its_position_and_counts_no_attempt(queue: Queue) -> None:
    job, other = await queue.create(), await queue.create()
    await queue.claim(A)
    assert (await queue("POST", f"/jobs/{job['job_id']}/release", {"runner_id": B}))[0] == 409
    status, back = await queue("POST", f"/jobs/{job['job_id']}/release", {"runner_id": A})
    assert (status, back["status"], back["run_attempts"], back["runner_id"]) == (200, "pending", 0, None)
    assert (await queue("POST", f"/jobs/{job['job_id']}/release", {"runner_id": A}))[0] == 400
    assert (await queue.claim(B))["job_id"] == job["job_id"]
    assert (await queue.claim(B))["job_id"] == other["job_id"]


@shows("`priority` and `delay` decide when a job is claimed")
async def test_priority_and_delay_decide_when_a_job_is_claimed(queue: Queue, clock: HandClock) -> None:
    await queue.create("later", delay=60)
    await queue.create("old")
    await queue.create("urgent", priority=5)
    assert [(await queue.claim())["binary_addr"] for _ in range(2)] == ["urgent", "old"]
    assert await queue.claim() == 204
    clock.advance(60)
    assert (await queue.claim())["binary_addr"] == "later"


@shows("`failure` says whether a job was reported, abandoned or cancelled")
async def test_a_failure_names_its_reason(queue: Queue, clock: HandClock) -> None:
    reported, abandoned, cancelled = [(await queue.create())["job_id"] for _ in range(3)]
    await queue("POST", f"/jobs/{cancelled}/cancel")
    await queue.claim(A)
    await queue("POST", f"/jobs/{reported}/complete", {"status": "failed"})
    for _ in range(2):
        assert (await queue.claim(A))["job_id"] == abandoned
        clock.advance(301)
    for id, why in ((reported, "reported"), (abandoned, "abandoned"), (cancelled, "cancelled")):
        _, job = await queue("GET", f"/jobs/{id}")
        assert (job["status"], job["failure"]) == ("failed", why)


@shows("a result that comes after the job was abandoned is refused")
async def test_a_result_after_the_time_is_over_is_not_taken(queue: Queue, clock: HandClock) -> None:
    job = await queue.create()
    await queue.claim(A)
    clock.advance(300.001)  # no process has read the queue meanwhile
    status, said = await queue("POST", f"/jobs/{job['job_id']}/complete", {"status": "completed", "runner_id": A})
    assert (status, said["error"]) == (400, "not_active")
    assert (await queue("GET", f"/jobs/{job['job_id']}"))[1]["status"] == "pending"


@shows(
    "`GET /jobs/{id}/output` streams the output of a job",
    "a job that names a missing blob is refused if addresses are verified",
)
async def test_the_output_of_a_job_is_streamed(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    protocols = [queue_routes(Rules(verify_addresses=True), blobs), blob_routes(blobs)]
    queue = Queue(session, memory_url(None, Settings(), protocols))
    async with session.put(queue.url + "/blob", data=b"module") as answer:
        address = await answer.text()
    for missing in ({"binary_addr": "0" * 64}, {"binary_addr": "x"}, {"binary_addr": address, "input_addr": "0" * 64}):
        assert (await queue("POST", "/jobs/create", missing))[0] == 422
    job = (await queue.create(address))["job_id"]
    status, said = await queue("GET", f"/jobs/{job}/output")
    assert (status, said["error"]) == (404, "no_output")
    await queue.claim(A)
    await queue("POST", f"/jobs/{job}/complete", {"status": "completed", "output_addr": address})
    assert await queue("GET", f"/jobs/{job}/output") == (200, "module")
    assert (await queue("GET", f"/jobs/{B}/output"))[0] == 404


@shows("unknown fields of a body are ignored, and a body that is too large gets 413")
async def test_unknown_fields_of_a_body_are_ignored_and_a_large_body_is_refused(session: aiohttp.ClientSession) -> None:
    queue = Queue(session, memory_url(None, Settings(max_body=1_000), [queue_routes(Rules())]))
    status, job = await queue("POST", "/jobs/create", {"binary_addr": "a", "unknown": [1], "input_addr": None})
    assert (status, job["input_addr"]) == (200, None)
    assert (await queue("POST", "/jobs/create", {"binary_addr": "a", "x": "y" * 1_000}))[0] == 413
    assert (await queue("POST", "/jobs/create", {"binary_addr": "a" * 513}))[0] == 422
    assert (await queue("DELETE", f"/jobs/{A}"))[0] == 405


@shows("`GET /jobs` lists jobs by state in pages, and a job can be cancelled")
async def test_jobs_are_listed_by_state_and_cancelled(queue: Queue) -> None:
    first, second = await queue.create(), await queue.create()
    await queue("POST", f"/jobs/{first['job_id']}/cancel")
    _, page = await queue("GET", "/jobs?status=failed")
    assert [job["job_id"] for job in page["jobs"]] == [first["job_id"]]
    _, page = await queue("GET", "/jobs?limit=1")
    _, rest = await queue("GET", f"/jobs?limit=1&after={page['after']}")
    assert [page["jobs"][0]["job_id"], rest["jobs"][0]["job_id"]] == [first["job_id"], second["job_id"]]


@shows("a malformed request gets 400, 404, 405, 415 or 422 with an error and a message")
@pytest.mark.parametrize(
    ("method", "path", "raw", "kind", "status"),
    [
        ("POST", "/jobs/create", b"{", "application/json", 400),
        ("POST", "/jobs/create", b"{}", "application/json", 422),
        ("POST", "/jobs/create", b'{"binary_addr": ""}', "application/json", 422),
        ("POST", "/jobs/create", b'{"binary_addr": "a"}', "text/plain", 415),
        ("GET", "/jobs/create", None, None, 405),
        ("POST", "/jobs/claim", b'{"runner_id": "me"}', "application/json", 422),
        ("GET", "/jobs/xyz", None, None, 400),
        ("GET", f"/jobs/{A}", None, None, 404),
        ("POST", f"/jobs/{A}/tickle", None, None, 404),
        ("POST", f"/jobs/{A}/complete", b'{"status": "completed"}', "application/json", 404),
        ("POST", f"/jobs/{A}/complete", b'{"status": "done"}', "application/json", 422),
    ],
)
async def test_a_malformed_request_is_refused(
    queue: Queue, method: str, path: str, raw: bytes | None, kind: str | None, status: int
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    async with queue.session.request(method, queue.url + path, data=raw, headers=headers) as answer:
        found = await answer.json()
        assert answer.status == status, found
        assert found.keys() >= {"error", "message"}


async def test_jobs_that_were_not_sent_by_the_protocol_hide_no_others(session: aiohttp.ClientSession) -> None:
    """A program may store a job of this task directly. A claim ends it with the reason and continues; lists leave it
    out."""
    storage = MemoryStorage()
    url = host().add(App(storage=storage), Settings(max_wait=5), [queue_routes(Rules())])
    odd = ["[1]", "[]", "{}", "nonsense", '["a","b","c"]', '[{"$t":"str","v":[55296]}]']
    ids = [f"0f0e0d0c-0b0a-4908-8706-05040302010{n}" for n in range(len(odd))]
    rows = [
        NewJob(id=id, task="wasi.run", queue="wasi", payload=each, priority=9)
        for id, each in zip(ids, odd, strict=True)
    ]
    host().run(
        storage.enqueue([*rows, NewJob(id="short", task="wasi.run", queue="wasi", payload='["a",null]', priority=9)])
    )
    queue = Queue(session, url)
    job = await queue.create()
    assert (await queue("GET", f"/jobs/{ids[0]}"))[0] == 404
    assert [each["job_id"] for each in (await queue("GET", "/jobs"))[1]["jobs"]] == [job["job_id"]]
    assert (await queue.claim())["job_id"] == job["job_id"]
    found = [row for row in host().run(storage.get([*ids, "short"])) if row is not None]
    assert {(row.state, row.reason) for row in found} == {(State.FAILED, "aborted")}


async def test_a_result_without_an_address_is_shown_as_null(session: aiohttp.ClientSession) -> None:
    storage = MemoryStorage()
    queue = Queue(session, host().add(App(storage=storage), Settings(max_wait=5), [queue_routes(Rules())]))
    job = await queue.create()
    [row] = host().run(storage.get([job["job_id"]]))
    host().run(storage.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, result="[1]")]))
    status, shown = await queue("GET", f"/jobs/{job['job_id']}")
    assert (status, shown["status"], shown["output_addr"]) == (200, "completed", None)
