"""The delayed protocol, as programs that post delayed jobs see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import aiohttp
import pytest

from tests.served import host, memory_url
from treadle import Abort, App
from treadle.contrib.delayed.app import delayed_routes, read
from treadle.contrib.delayed.ids import shown
from treadle.core.ids import UuidV7
from treadle.core.model import NewJob
from treadle.server.errors import Refused
from treadle.server.settings import Settings
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

NOW = 1_800_000_000.5


class Delayed:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def __call__(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        named = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        async with self.session.request(method, self.url + path, data=data, headers=named) as answer:
            content = await answer.read()
            return answer.status, json.loads(content) if content else None


@pytest.fixture
def clock() -> HandClock:
    clock = HandClock()
    clock.advance(NOW - clock())
    return clock


@pytest.fixture
async def call(clock: HandClock) -> AsyncIterator[Delayed]:
    async with aiohttp.ClientSession() as session:
        yield Delayed(session, memory_url(clock, protocols=[delayed_routes()]))


@shows("a posted job keeps its due time and its payload, whatever JSON it is")
@pytest.mark.parametrize("payload", ["text", {"a": [1, None]}, [1, 2], 7, None, ""])
async def test_a_job_is_stored_until_it_is_due_and_its_payload_arrives_as_it_was(
    call: Delayed, clock: HandClock, payload: Any
) -> None:
    status, answer = await call("POST", "/", {"payload": payload, "dueTime": NOW + 10})
    assert (status, list(answer)) == (200, ["jobId"])
    assert len(answer["jobId"]) == 26
    _, job = await call("GET", f"/jobs/{answer['jobId']}")
    assert job == {
        "jobId": answer["jobId"],
        "state": "scheduled",
        "payload": payload,
        "dueTime": NOW + 10,
        "pickupTime": None,
        "attempts": 0,
        "lastError": None,
    }
    assert (await call("GET", "/v1/queues"))[1]["queues"][0]["name"] == "delayed"  # the API is served too


@shows("a past, missing or malformed due time gets 400 and stores nothing")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"payload": "x", "dueTime": NOW - 1}, "Job due time must be in future"),
        ({"payload": "x", "dueTime": 1_800_000}, "Job due time must be in future: 1800000 has passed"),
        ({"payload": "x", "dueTime": int(NOW)}, "Job due time must be in future"),
        ({"payload": "x"}, "dueTime"),
        ({"payload": "x", "dueTime": None}, "dueTime"),
        ({"payload": "x", "dueTime": "soon"}, "dueTime"),
        ({"payload": "x", "dueTime": "nan"}, "dueTime"),
        ({"payload": "x", "dueTime": True}, "dueTime"),
        ({"payload": "x", "dueTime": [1]}, "dueTime"),
        ({"payload": "x", "dueTime": (NOW + 10) * 1000}, "milliseconds"),
        ([], "invalid body"),
        ("text", "invalid body"),
    ],
)
async def test_a_wrong_due_time_is_refused_and_not_stored(call: Delayed, body: Any, words: str) -> None:
    status, answer = await call("POST", "/", body)
    assert (status, list(answer)) == (400, ["message"])
    assert words in answer["message"]
    assert (await call("GET", "/stats"))[1]["backlog"] == 0


@shows("a malformed body, a wrong content type and an unknown path get 400, 415 and 404 with a message")
async def test_other_refusals_have_the_same_shape(call: Delayed) -> None:
    good = json.dumps({"payload": "x", "dueTime": NOW + 10}).encode()
    for method, path, raw, kind, expected in (
        ("POST", "/", b"{", "application/json", 400),
        ("POST", "/", good, "text/plain", 415),
        ("GET", "/nothing", None, "application/json", 404),
        ("GET", "/jobs/nothing", None, "application/json", 404),
    ):
        status, answer = await call(method, path, raw=raw, Content_Type=kind)
        assert (status, list(answer)) == (expected, ["message"])
    assert (await call("GET", "/anything/else"))[1] == {"message": "not found"}
    assert (await call("GET", "/stats"))[1]["backlog"] == 0


@shows("a due time may be a decimal text, and the payload may be missing")
async def test_a_due_time_may_be_a_decimal_text_and_the_payload_be_left_out(call: Delayed) -> None:
    _, answer = await call("POST", "/", {"dueTime": f"{NOW + 1:.3f}"})
    _, job = await call("GET", f"/jobs/{answer['jobId']}")
    assert (job["payload"], job["dueTime"]) == ("", NOW + 1)


@shows("a request that is repeated with its `Idempotency-Key` stores one job")
async def test_posting_may_be_repeated(call: Delayed) -> None:
    body = {"payload": "x", "dueTime": NOW + 10}
    first = await call("POST", "/", body, Idempotency_Key="k")
    assert await call("POST", "/", body, Idempotency_Key="k") == first
    assert (await call("POST", "/", {**body, "payload": "y"}, Idempotency_Key="k"))[0] == 400
    assert (await call("GET", "/stats"))[1]["backlog"] == 1


@shows("`GET /stats` counts the stored jobs, and `DELETE` removes one")
async def test_stats_counts_jobs_and_delete_removes_one(call: Delayed, clock: HandClock) -> None:
    _, answer = await call("POST", "/", {"payload": "x", "dueTime": NOW + 10})
    assert (await call("GET", "/stats"))[1] == {
        "backlog": 1,
        "due": 0,
        "unacked": 0,
        "failed": 0,
        "oldestDueAgeSec": None,
    }
    assert await call("DELETE", f"/jobs/{answer['jobId']}") == (204, None)
    assert (await call("GET", "/stats"))[1]["backlog"] == 0
    for method in ("GET", "DELETE"):
        assert await call(method, f"/jobs/{answer['jobId']}") == (404, {"message": "not found"})
    assert (await call("DELETE", f"/jobs/{shown(UuidV7()())}"))[0] == 404


@shows("`GET /jobs/{id}` shows the state, the attempts and the pickup time")
async def test_a_job_that_was_handled_can_be_looked_at(clock: HandClock) -> None:
    app = App(storage=MemoryStorage(clock), clock=clock, random=lambda: 0.0)
    broken, got = [True], []

    @app.delayed_handler
    async def handle(payload: Any) -> None:
        got.append(payload)
        if broken[0]:
            raise RuntimeError("not today")

    async with aiohttp.ClientSession() as session:
        call = Delayed(session, host().add(app, Settings(max_wait=5), [delayed_routes()]))
        _, answer = await call("POST", "/", {"payload": {"a": 1}, "dueTime": NOW + 10})
        path = f"/jobs/{answer['jobId']}"
        clock.advance(10)

        async def work() -> tuple[str, int, float]:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(drain(app), host().loop))
            _, job = await call("GET", path)
            assert "not today" in (job["lastError"] or "not today")
            return job["state"], job["attempts"], job["pickupTime"]

        assert await work() == ("scheduled", 1, NOW + 10)  # to be retried after a second
        assert (await call("GET", "/stats"))[1]["backlog"] == 1
        broken[0] = False
        clock.advance(1)
        assert await work() == ("completed", 2, NOW + 11)
        assert got == [{"a": 1}] * 2
        assert await call("DELETE", path) == (204, None)


@shows("ids have 26 characters and sort by creation")
def test_ids_are_shown_in_26_characters_that_sort_as_they_do() -> None:
    make = UuidV7()
    made = [make() for _ in range(100)]
    assert [read(shown(id)) for id in made] == made
    assert sorted(map(shown, made)) == [shown(id) for id in made]
    for wrong in ("", "a" * 25, "u" * 26, "z" * 26):
        with pytest.raises(Refused):
            read(wrong)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/nothing", "/jobs", "/jobs/01m81y/more"])
async def test_other_paths_are_not_found_by_any_method(call: Delayed, method: str, path: str) -> None:
    assert await call(method, path, {} if method != "GET" else None) == (404, {"message": "not found"})


@shows("a completed job can be read for a day and a failed one for thirty days")
@pytest.mark.parametrize(("days", "fails"), [(1, False), (30, True)])
async def test_a_success_can_be_looked_at_for_a_day_and_a_failure_for_thirty(
    clock: HandClock, days: int, fails: bool
) -> None:
    app = App(storage=MemoryStorage(clock), clock=clock, random=lambda: 0.0)

    @app.delayed_handler
    async def handle(payload: Any) -> None:
        if fails:
            raise Abort("never again")

    def there(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, host().loop))

    async with aiohttp.ClientSession() as session:
        call = Delayed(session, host().add(app, Settings(max_wait=5), [delayed_routes()]))
        _, answer = await call("POST", "/", {"payload": 1, "dueTime": NOW + 10})
        path = f"/jobs/{answer['jobId']}"
        clock.advance(10)
        await there(drain(app))
        clock.advance(days * 86_400 - 1)
        assert await there(app.storage.prune(10)) == 0
        status, job = await call("GET", path)
        assert (status, job["state"]) == (200, "failed" if fails else "completed")
        clock.advance(2)
        assert await there(app.storage.prune(10)) == 1
        assert (await call("GET", path))[0] == 404


@pytest.mark.parametrize(
    ("payload", "headers"),
    [("[]", ()), ("nonsense", (("dueTime", "1"),)), ("[1]", (("dueTime", "soon"),)), ("[1]", (("dueTime", "nan"),))],
)
async def test_a_job_that_was_not_sent_by_the_protocol_is_not_found(
    payload: str, headers: tuple[tuple[str, str], ...]
) -> None:
    storage, id = MemoryStorage(), UuidV7()()
    url = host().add(App(storage=storage), Settings(), [delayed_routes()])
    host().run(storage.enqueue([NewJob(id=id, task="delayed.job", queue="delayed", payload=payload, headers=headers)]))
    async with aiohttp.ClientSession() as session:
        assert (await Delayed(session, url)("GET", f"/jobs/{shown(id)}"))[0] == 404
