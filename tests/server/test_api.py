"""The native API as a client in any language sees it: plain HTTP, JSON in and out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS, a_storage
from tests.kit import Told
from tests.served import host, memory_url
from treadle import App, Worker, current
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest
from treadle.testing import HandClock
from treadle_testkit.shows import shows


class Client:
    """One client; each call returns (status, JSON)."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = raw
        if raw is None and body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        async with self.session.request(method, self.url + path, data=data, headers=sent) as answer:
            content = await answer.read()
            assert answer.headers["x-request-id"]
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return answer.status, json.loads(content) if is_json else content.decode()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def call(session: aiohttp.ClientSession, clock: HandClock) -> Client:
    return Client(memory_url(clock), session)


async def claim(call: Client, **more: Any) -> Any:
    status, answer = await call("POST", "/v1/work/claim", {"worker": "r#1", "queues": [["default", 1]], **more})
    assert status == 200, answer
    return answer["records"]


async def test_a_job_is_sent_run_elsewhere_and_its_result_waited_for(call: Client) -> None:
    status, job = await call("POST", "/v1/jobs", {"task": "add", "args": [1, 2], "labels": {"user": "7"}})
    assert (status, job["state"], job["args"], job["labels"]) == (201, "ready", [1, 2], ["user=7"])
    waiting = asyncio.create_task(call("GET", f"/v1/jobs/{job['id']}/wait?timeout=5"))
    [row] = await claim(call)
    assert json.loads(row["job"]["payload"]) == [1, 2]
    report = {"id": row["job"]["id"], "version": row["version"], "succeed": {"sum": 3}}
    for _ in range(2):  # repeated after a lost answer, the call returns the same
        status, answer = await call("POST", "/v1/work/settle", {"outcomes": [report]})
        assert (status, [each["status"] for each in answer["settled"]]) == (200, ["applied"])
    status, ended = await waiting
    assert (status, ended["state"], ended["result"], ended["attempt"]) == (200, "succeeded", {"sum": 3}, 1)


async def test_a_plain_fail_is_judged_by_the_policy_of_the_row(call: Client, clock: HandClock) -> None:
    _, job = await call("POST", "/v1/jobs", {"task": "t", "retry": {"attempts": 2, "base": 10, "jitter": 0}})
    [row] = await claim(call)
    fail = {"id": job["id"], "version": row["version"], "fail": "no luck"}
    await call("POST", "/v1/work/settle", {"outcomes": [fail]})
    _, seen = await call("GET", f"/v1/jobs/{job['id']}")
    assert (seen["state"], seen["attempt"], seen["error"]) == ("ready", 1, "no luck")
    assert seen["due_at"] == pytest.approx(clock() + 10)
    clock.advance(11)
    [row] = await claim(call)
    await call("POST", "/v1/work/settle", {"outcomes": [{**fail, "version": row["version"]}]})
    _, seen = await call("GET", f"/v1/jobs/{job['id']}")
    assert (seen["state"], seen["attempt"], seen["reason"]) == ("failed", 2, "error")


async def test_a_runner_may_abort_and_defer(call: Client) -> None:
    _, jobs = await call("POST", "/v1/jobs/batch", {"jobs": [{"task": "a"}, {"task": "b"}]})
    first, second = jobs["jobs"]
    rows = {row["job"]["id"]: row["version"] for row in await claim(call, limit=2)}
    outcomes = [
        {"id": first["id"], "version": rows[first["id"]], "abort": "bad input"},
        {"id": second["id"], "version": rows[second["id"]], "defer": 60},
    ]
    await call("POST", "/v1/work/settle", {"outcomes": outcomes})
    _, seen = await call("GET", f"/v1/jobs/{first['id']}")
    assert (seen["state"], seen["reason"], seen["error"]) == ("failed", "aborted", "bad input")
    _, seen = await call("GET", f"/v1/jobs/{second['id']}")
    assert (seen["state"], seen["attempt"]) == ("ready", 0)


async def test_a_job_that_is_abandoned_too_often_is_ended_instead_of_claimed(call: Client, clock: HandClock) -> None:
    _, job = await call("POST", "/v1/jobs", {"task": "poison"})
    for number in range(4):  # the first lease was given without a look at what else its runner had
        assert await claim(call, worker=f"r{number}#1", lease=10, max_lost=3)
        clock.advance(11)
    assert await claim(call, worker="r9#1", max_lost=3) == []
    _, seen = await call("GET", f"/v1/jobs/{job['id']}")
    assert (seen["state"], seen["reason"], seen["lost"]) == ("failed", "lost", 4)


async def lost(call: Client, clock: HandClock, count: int) -> list[str]:
    """So many jobs that one runner has lost together."""
    _, jobs = await call("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"} for _ in range(count)]})
    assert len(await claim(call, worker="dead#1", lease=10, limit=count)) == count
    clock.advance(11)
    return [job["id"] for job in jobs["jobs"]]


async def succeed(call: Client, row: Any) -> None:
    await call(
        "POST", "/v1/work/settle", {"outcomes": [{"id": row["job"]["id"], "version": row["version"], "succeed": 1}]}
    )


@shows("a runner gets a job that lost its runner alone, and nothing else until that has ended")
async def test_a_suspect_is_given_to_a_runner_alone(call: Client, clock: HandClock) -> None:
    ids = await lost(call, clock, 3)
    _, job = await call("GET", f"/v1/jobs/{ids[0]}")
    for number in range(3):
        [row] = await claim(call, worker=f"r#{number}", limit=9, max_lost=3)
        _, job = await call("GET", f"/v1/jobs/{row['job']['id']}")
        assert (job["suspect"], job["lost"]) == ("alone", 1)
        [again] = await claim(call, worker=f"r#{number}", limit=9, max_lost=3)  # the answer was lost
        assert (again["job"]["id"], again["version"]) == (row["job"]["id"], row["version"])
        assert await claim(call, worker=f"r#{number}-again", limit=9, max_lost=3) == []
        await succeed(call, row)
    assert [(await call("GET", f"/v1/jobs/{id}"))[1]["state"] for id in ids] == ["succeeded"] * 3


@shows("a runner that has other jobs gets no suspect, unless nobody else takes it")
async def test_a_runner_with_other_jobs_gets_no_suspect(call: Client, clock: HandClock) -> None:
    _, other = await call("POST", "/v1/jobs", {"task": "other"})
    [held] = await claim(call, worker="r#0", lease=3600, max_lost=3)
    assert held["job"]["id"] == other["id"]
    [id] = await lost(call, clock, 1)
    for number in range(3):
        assert await claim(call, worker=f"r#{number + 1}", limit=9, lease=30, max_lost=3) == []
        clock.advance(30 * 2**number)
    [row] = await claim(call, worker="r#9", limit=9, lease=30, max_lost=3)
    assert row["job"]["id"] == id
    clock.advance(31)
    [row] = await claim(call, worker="r2#1", limit=9, lease=30, max_lost=2)  # that loss does not count
    clock.advance(31)
    [row] = await claim(call, worker="r3#1", limit=9, lease=30, max_lost=2)
    clock.advance(31)
    assert await claim(call, worker="r4#1", limit=9, lease=30, max_lost=2) == []
    _, seen = await call("GET", f"/v1/jobs/{id}")
    assert (seen["state"], seen["reason"], seen["lost"]) == ("failed", "lost", 4)


async def test_suspects_go_to_several_runners(call: Client, clock: HandClock) -> None:
    ids = await lost(call, clock, 3)
    rows = [row for n in range(3) for row in await claim(call, worker=f"r{n}#1", limit=9, max_lost=3)]
    assert sorted(row["job"]["id"] for row in rows) == sorted(ids)


async def test_a_long_poll_is_answered_when_a_job_comes(call: Client) -> None:
    polls = [asyncio.create_task(claim(call, worker=f"r{n}#1", wait=5)) for n in range(3)]
    await call("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"} for _ in range(3)]})
    found = await asyncio.gather(*polls)
    assert sorted(len(rows) for rows in found) == [1, 1, 1]
    assert len({row["job"]["id"] for rows in found for row in rows}) == 3


async def test_an_idempotency_key_stores_once_and_refuses_another_request(call: Client) -> None:
    headers = {"Idempotency-Key": "order-7"}
    first = await call("POST", "/v1/jobs", {"task": "t", "args": [1]}, headers=headers)
    again = await call("POST", "/v1/jobs", {"task": "t", "args": [1]}, headers=headers)
    assert (first[0], again[0]) == (201, 200)
    assert first[1]["id"] == again[1]["id"]
    status, problem = await call("POST", "/v1/jobs", {"task": "t", "args": [2]}, headers=headers)
    assert (status, problem["error"]) == (422, "idempotency_key_reused")


async def test_a_chosen_id_is_stored_once_and_refuses_another_job(call: Client) -> None:
    """201, then 200 for the same job. Another task or other arguments are 422, and nothing of that call is stored."""
    first = await call("POST", "/v1/jobs", {"task": "t", "args": [1], "id": "order-7"})
    again = await call("POST", "/v1/jobs", {"task": "t", "args": [1], "id": "order-7"})
    assert (first[0], again[0], again[1]["id"]) == (201, 200, "order-7")
    asked = [{"task": "t", "id": "new"}, {"task": "u", "args": [1], "id": "order-7"}]
    status, problem = await call("POST", "/v1/jobs/batch", {"jobs": asked})
    assert (status, problem["error"]) == (422, "id_taken")
    assert problem["details"] == {"id": "order-7", "task": "t", "asked": "u", "other": False}
    assert (await call("GET", "/v1/jobs/new"))[0] == 404


async def test_one_of_several_concurrent_requests_stores_the_job(call: Client) -> None:
    headers = {"Idempotency-Key": "order-8"}
    answers = await asyncio.gather(*(call("POST", "/v1/jobs", {"task": "t"}, headers=headers) for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 200, 200, 200, 201]


async def test_events_follow_a_job_to_its_ending(call: Client) -> None:
    _, job = await call("POST", "/v1/jobs", {"task": "t"})
    seen: list[tuple[str, str]] = []
    async with call.session.get(f"{call.url}/v1/jobs/{job['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for raw in stream.content:
            line = raw.decode().strip()
            if line.startswith("event:"):
                name = line[7:]
            if line.startswith("data:"):
                seen.append((name, json.loads(line[6:])["state"]))
                if len(seen) == 1:
                    assert (await call("POST", f"/v1/jobs/{job['id']}/cancel"))[1] == {"jobs": 1}
    assert seen == [("changed", "ready"), ("ended", "cancelled")]


async def test_find_cancel_retry_run_now_delete_explain(call: Client) -> None:
    _, job = await call("POST", "/v1/jobs", {"task": "t", "queue": "q", "delay": 60, "labels": ["x"]})
    id = job["id"]
    _, page = await call("GET", "/v1/jobs?state=ready,running&queue=q&label=x&count=true")
    assert ([each["id"] for each in page["jobs"]], page["total"]) == ([id], 1)
    _, said = await call("GET", f"/v1/jobs/{id}/explain")
    assert "due" in said["text"]
    _, estimate = await call("GET", f"/v1/jobs/{id}/eta")
    assert (estimate["start"], estimate["explanation"]) == (None, said["text"])
    assert await call("POST", f"/v1/jobs/{id}/run_now") == (200, {"jobs": 1})
    assert await call("POST", f"/v1/jobs/{id}/cancel", {"tree": False}) == (200, {"jobs": 1})
    assert await call("POST", f"/v1/jobs/{id}/retry") == (200, {"jobs": 1})
    status, problem = await call("DELETE", f"/v1/jobs/{id}")
    assert (status, problem["error"], problem["details"]["id"]) == (409, "stale", id)
    await call("POST", f"/v1/jobs/{id}/cancel")
    assert await call("DELETE", f"/v1/jobs/{id}") == (200, {"jobs": 1})


async def test_pause_resume_rerun_and_fork(call: Client) -> None:
    _, job = await call("POST", "/v1/jobs", {"task": "t", "queue": "q", "args": [1]})
    id = job["id"]
    for jobs in (1, 0):
        assert await call("POST", f"/v1/jobs/{id}/pause") == (200, {"jobs": jobs})
    assert "paused" in (await call("GET", f"/v1/jobs/{id}/explain"))[1]["text"]
    assert (await call("POST", f"/v1/jobs/{id}/run_now"))[0] == 409
    assert await claim(call, queues=[["q", 1]]) == []
    assert await call("POST", f"/v1/jobs/{id}/resume") == (200, {"jobs": 1})
    status, problem = await call("POST", f"/v1/jobs/{id}/rerun")
    assert (status, problem["error"], "it has not begun" in problem["message"]) == (409, "stale", True)
    assert len(await claim(call, queues=[["q", 1]])) == 1
    assert await call("POST", f"/v1/jobs/{id}/pause") == (200, {"jobs": 1})
    _, job = await call("GET", f"/v1/jobs/{id}")
    assert job["due_at"] is None
    assert job["paused_at"] >= job["created_at"]
    assert await call("POST", f"/v1/jobs/{id}/rerun") == (200, {"jobs": 1})
    status, problem = await call("POST", f"/v1/jobs/{id}/rerun", {"from_step": "charge"})
    assert (status, problem["error"]) == (422, "bad_option")
    status, fork = await call("POST", f"/v1/jobs/{id}/fork", {"args": [2]})
    assert (status, fork["args"], fork["status"], fork["id"] == id) == (201, [2], "queued", False)
    assert (await call("POST", "/v1/jobs/nobody/fork"))[0] == 404
    await call("POST", f"/v1/jobs/{id}/cancel")
    assert (await call("POST", f"/v1/jobs/{id}/pause"))[0] == 409
    acts = [entry["act"] for entry in (await call("GET", "/v1/audit"))[1]["entries"]]
    assert {"job.pause", "job.resume", "job.rerun", "job.fork"} <= set(acts)


async def test_queues_and_limits_are_read_and_changed(call: Client) -> None:
    await call("POST", "/v1/jobs", {"task": "t", "queue": "mail"})
    _, plan = await call("GET", "/v1/queues/mail/plan")
    assert (plan["queued"], plan["empty"], plan["slots"]) == (1, None, 0)
    await call("POST", "/v1/queues/mail/pause")
    _, found = await call("GET", "/v1/queues")
    [queue] = found["queues"]
    assert (queue["name"], queue["paused"], queue["ready"], queue["queued"]) == ("mail", True, 1, 1)
    assert await claim(call, queues=[["mail", 1]]) == []
    await call("POST", "/v1/queues/mail/resume")
    assert len(await claim(call, queues=[["mail", 1]])) == 1
    assert await call("PUT", "/v1/limits/smtp", {"slots": 2}) == (200, {})
    _, found = await call("GET", "/v1/limits")
    assert [(use["key"], use["rule"]["slots"]) for use in found["limits"]] == [("smtp", 2)]
    assert (await call("PUT", "/v1/limits/smtp", {}))[0] == 422
    assert await call("DELETE", "/v1/limits/smtp") == (200, {})
    assert (await call("GET", "/v1/limits"))[1] == {"limits": []}


async def test_schedules_are_made_looked_at_and_stopped(call: Client, clock: HandClock) -> None:
    job = {"task": "report", "args": ["daily"], "queue": "mail"}
    status, made = await call("PUT", "/v1/schedules/nightly", {"job": job, "cron": "0 3 * * *", "tz": "Europe/Paris"})
    assert (status, made["name"], made["task"], made["paused"]) == (200, "nightly", "report", False)
    assert clock() < made["next_at"] <= clock() + 86_400
    _, changed = await call("PUT", "/v1/schedules/nightly", {"every": 60, "overlap": "skip"})
    assert (changed["overlap"], changed["next_at"] <= clock() + 60) == ("skip", True)
    assert (await call("GET", "/v1/schedules"))[1] == {"schedules": [changed]}
    assert (await call("POST", "/v1/schedules/nightly/pause")) == (200, {})
    _, paused = await call("GET", "/v1/schedules/nightly")
    assert (paused["paused"], paused["next_at"]) == (True, None)
    status, sent = await call("POST", "/v1/schedules/nightly/trigger")
    assert (status, sent["task"], sent["args"], sent["queue"]) == (201, "report", ["daily"], "mail")
    assert (await call("POST", "/v1/schedules/nightly/resume")) == (200, {})
    assert (await call("DELETE", "/v1/schedules/nightly")) == (200, {})
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/trigger")):
        status, problem = await call(method, f"/v1/schedules/nightly{path}")
        assert (status, problem["error"]) == (404, "no_such_schedule")
    for wrong in ({}, {"job": job}, {"job": job, "cron": "nonsense"}, {"job": job, "cron": "* * * * *", "every": 1}):
        assert (await call("PUT", "/v1/schedules/new", wrong))[0] == 422
    assert (await call("GET", "/v1/schedules"))[1] == {"schedules": []}


async def test_a_chosen_id_is_created_once(call: Client) -> None:
    first = await call("POST", "/v1/jobs", {"task": "t", "id": "mine"})
    again = await call("POST", "/v1/jobs", {"task": "t", "id": "mine"})
    assert (first[0], again[0], first[1]["id"], again[1]["id"]) == (201, 200, "mine", "mine")
    keyed = [await call("POST", "/v1/jobs", {"task": "t", "key": "k"}) for _ in range(2)]
    assert ([status for status, _ in keyed], len({job["id"] for _, job in keyed})) == ([201, 200], 1)


@pytest.mark.parametrize(
    ("method", "path", "raw", "kind", "status", "error"),
    [
        ("POST", "/v1/jobs", b"{", "application/json", 400, "malformed"),
        ("POST", "/v1/jobs", b"", "application/json", 400, "malformed"),
        ("POST", "/v1/jobs", b"\xff\xfe", "application/json", 400, "malformed"),
        ("POST", "/v1/jobs", b"[]", "application/json", 422, "wrong_shape"),
        ("POST", "/v1/jobs", b"{}", "application/json", 422, "wrong_shape"),
        ("POST", "/v1/jobs", b'{"task": "t", "dealy": 3}', "application/json", 422, "wrong_shape"),
        ("POST", "/v1/jobs", b'{"task": "t", "delay": -1}', "application/json", 422, "wrong_shape"),
        ("POST", "/v1/jobs", b'{"task": "t", "after": ["nobody"]}', "application/json", 422, "unknown_upstream"),
        ("POST", "/v1/jobs", b'{"task": "t"}', "text/plain", 415, "wrong_type"),
        ("POST", "/v1/jobs", b'{"task": "t", "args": ["' + b"x" * 3_000 + b'"]}', "application/json", 413, "too_large"),
        ("GET", "/v1/jobs/nobody", None, None, 404, "no_such_job"),
        ("GET", "/v1/jobs?limit=many", None, None, 422, "wrong_query"),
        ("GET", "/v1/jobs?before=nan", None, None, 422, "wrong_query"),
        ("GET", "/v1/jobs?state=lost", None, None, 422, "bad_option"),
        ("GET", "/v1/nothing", None, None, 404, "not_found"),
        ("PATCH", "/v1/jobs", None, None, 405, "wrong_method"),
    ],
)
async def test_every_refusal_has_one_form_and_stores_nothing(
    session: aiohttp.ClientSession, method: str, path: str, raw: bytes | None, kind: str | None, status: int, error: str
) -> None:
    call = Client(memory_url(None, Settings(max_body=2_000)), session)
    found = await call(method, path, raw=raw, headers={"Content-Type": kind} if kind else None)
    assert found[0] == status, found
    assert found[1]["error"] == error
    assert found[1]["message"]
    assert (await call("GET", "/v1/jobs?count=true"))[1]["total"] == 0


def token(name: str, *scopes: str, queues: tuple[str, ...] = ()) -> Token:
    return Token(name=name, digest=digest(name), scopes=scopes, queues=queues)


async def test_tokens_have_scopes_and_queues(session: aiohttp.ClientSession) -> None:
    tokens = (token("sender", "enqueue", queues=("mail",)), token("reader", "read"), token("runner", "work"))
    call = Client(memory_url(None, Settings(tokens=tokens)), session)
    send = {"task": "t", "queue": "mail"}
    assert (await call("POST", "/v1/jobs", send))[0] == 401
    assert (await call("POST", "/v1/jobs", send, token="guess"))[0] == 401
    assert (await call("POST", "/v1/jobs", send, token="reader"))[0] == 403
    assert (await call("POST", "/v1/jobs", send, token="sender"))[0] == 201
    assert (await call("POST", "/v1/jobs", {**send, "queue": "bulk"}, token="sender"))[0] == 403
    status, page = await call("GET", "/v1/jobs?count=true", token="reader")
    assert (status, page["total"]) == (200, 1)
    assert (await call("POST", "/v1/work/claim", {"worker": "r#1"}, token="reader"))[0] == 403
    assert (await call("POST", "/v1/work/claim", {"worker": "r#1"}, token="runner"))[0] == 200
    assert (await call("GET", "/healthz"))[0] == 200


async def test_a_token_of_some_queues_sees_no_others(session: aiohttp.ClientSession) -> None:
    mine = token("mine", "enqueue", "work", "read", "operate", queues=("mine",))
    call = Client(
        memory_url(None, Settings(tokens=(mine, token("all", "enqueue", "work", "read", "operate")))), session
    )
    _, other = await call("POST", "/v1/jobs", {"task": "t", "queue": "other"}, token="all")
    await call("POST", "/v1/jobs", {"task": "t", "queue": "mine"}, token="mine")
    for path in ("", "/explain", "/wait?timeout=0"):
        assert (await call("GET", f"/v1/jobs/{other['id']}{path}", token="mine"))[0] == 404
    assert (await call("POST", f"/v1/jobs/{other['id']}/cancel", token="mine"))[0] == 404
    assert (await call("GET", "/v1/jobs?queue=other", token="mine"))[0] == 403
    for path in ("/v1/jobs", "/v1/jobs?queue=mine"):
        assert [job["queue"] for job in (await call("GET", path, token="mine"))[1]["jobs"]] == ["mine"]
    assert [q["name"] for q in (await call("GET", "/v1/queues", token="mine"))[1]["queues"]] == ["mine"]
    assert (await call("PUT", "/v1/limits/x", {"slots": 0}, token="mine"))[0] == 403
    assert (await call("GET", "/v1/schedules", token="mine"))[0] == 403
    assert (await call("POST", "/v1/schedules/x/pause", token="mine"))[0] == 403
    for path in ("/v1/stats", "/v1/work/stats"):
        _, stats = await call("GET" if path == "/v1/stats" else "POST", path, {} if "work" in path else None, "mine")
        assert [each["queue"] for each in stats["counts"]] == ["mine"]
    ids = {"ids": [other["id"]]}
    assert (await call("POST", "/v1/work/get", ids, token="mine"))[1] == {"records": [None]}
    wanted = {"worker": "r#1", "queues": [], "ids": [other["id"]]}
    assert (await call("POST", "/v1/work/claim", wanted, token="mine"))[1]["records"] == []
    outcome = {"outcomes": [{"id": other["id"], "version": 0, "abort": "no"}]}
    _, answer = await call("POST", "/v1/work/settle", outcome, token="mine")
    assert answer["settled"][0]["status"] == "stale"


async def test_a_rate_is_kept_for_each_token(session: aiohttp.ClientSession) -> None:
    tokens = (token("a", "read"), token("b", "read"))
    call = Client(memory_url(None, Settings(tokens=tokens, rate=0.001)), session)
    assert (await call("GET", "/v1/stats", token="a"))[0] == 200
    status, problem = await call("GET", "/v1/stats", token="a")
    assert (status, problem["error"]) == (429, "too_many")
    assert (await call("GET", "/v1/stats", token="b"))[0] == 200


async def test_the_request_id_is_the_clients_own_if_it_is_a_clean_one(call: Client) -> None:
    async with call.session.get(f"{call.url}/healthz", headers={"X-Request-Id": "abc-1"}) as answer:
        assert answer.headers["x-request-id"] == "abc-1"
    async with call.session.get(f"{call.url}/healthz", headers={"X-Request-Id": "a b;c"}) as answer:
        assert answer.headers["x-request-id"] != "a b;c"


async def test_no_web_page_may_call_it_unless_its_origin_is_named(session: aiohttp.ClientSession) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    for origins, expected in (((), None), (("https://a.example",), "https://a.example")):
        url = memory_url(None, Settings(origins=origins))
        async with session.options(f"{url}/v1/jobs", headers=asked) as answer:
            assert answer.headers.get("Access-Control-Allow-Origin") == expected


async def test_a_mistyped_name_of_a_queue_or_limit_is_answered_with_a_warning(call: Client) -> None:
    await call("POST", "/v1/jobs", {"task": "t", "queue": "fetch"})
    await call("PUT", "/v1/limits/smtp", {"slots": 1})
    answers = [
        await call("POST", "/v1/queues/fecth/pause"),
        await call("POST", "/v1/queues/fecht/resume"),
        await call("DELETE", "/v1/limits/stmp"),
        await call("POST", "/v1/queues/fetch/pause"),
        await call("POST", "/v1/queues/fetch/resume"),
    ]
    assert answers == [
        (200, {"warning": "nothing uses the queue 'fecth' yet; did you mean 'fetch'?"}),
        (200, {"warning": "the queue 'fecht' is not paused; did you mean 'fecth'?"}),
        (200, {"warning": "there is no limit 'stmp'; did you mean 'smtp'?"}),
        (200, {}),
        (200, {}),
    ]


@shows(
    "`POST /v1/jobs/{id}/signal` resumes the run that waits for the signal, and a second one gets 409",
    "a signal that comes before its run waits is kept for the run",
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_signal_resumes_the_run_that_waits_for_it(
    session: aiohttp.ClientSession, kind: str, tmp_path: Path
) -> None:
    with a_storage(kind, tmp_path) as storage:
        served = App(storage=storage)
        call = Client(host().add(served, Settings(max_wait=0.5)), session)
        async with App(call.url) as app:

            @app.task(name="ask")
            async def ask() -> Any:
                return await current().wait_for("approved", timeout=60)

            told, early, late = Told(app), await ask.enqueue(), await ask.enqueue()
            path = f"/v1/jobs/{early.id}/signal"
            assert await call("POST", path, {"name": "approved", "value": 1}) == (200, {"jobs": 1})
            status, problem = await call("POST", path, {"name": "approved", "value": 2})
            assert (status, problem["error"]) == (409, "signalled")
            assert (await call("POST", "/v1/jobs/nobody/signal", {"name": "approved", "value": 1}))[0] == 404
            async with Worker(app, poll=0.05), asyncio.timeout(60):
                assert await early.result() == 1
                await told.until("waiting", id=late.id)
                await call("POST", f"/v1/jobs/{late.id}/signal", {"name": "approved", "value": {"by": "Ada"}})
                assert await late.result() == {"by": "Ada"}
        host().run(served.close())
