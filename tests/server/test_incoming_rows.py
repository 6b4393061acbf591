"""The checks of incoming rows: which rows a server accepts, through every call, and which it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS, a_storage
from tests.served import host, memory_url
from treadle import App, Defer, JobFailed, Retry, Worker, current, gather
from treadle.core.model import NewJob, State
from treadle.errors import StorageError
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest
from treadle.storage.memory import MemoryStorage

SCOPES = ("enqueue", "work", "read", "operate")
HUGE = 10**30


def tokens(*scopes: str) -> Settings:
    """The settings of a server with one token that has these scopes; its secret is "s"."""
    return Settings(tokens=(Token(name="t", digest=digest("s"), scopes=scopes),), max_wait=5)


class Caller:
    """One client of a server, with a token."""

    def __init__(self, url: str, session: aiohttp.ClientSession, secret: str = "s") -> None:
        self.url, self.session, self.secret = url, session, secret

    async def __call__(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async def enqueue(self, **job: Any) -> tuple[int, Any]:
        return await self("/v1/work/enqueue", {"jobs": [{"id": "a", "task": "t", **job}]})


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def hashed(root: str) -> str:
    return f"treadle:waited:{hashlib.sha256(root.encode()).hexdigest()[:40]}"


ODD: tuple[dict[str, Any], ...] = (
    {"id": ""},
    {"id": "a b"},
    {"id": "../etc"},
    {"id": "i" * 256},
    {"id": "\0"},
    {"id": "\u202e"},
    {"task": "a\x1b[31m"},
    {"task": "a b"},
    {"queue": ""},
    {"queue": "q\n"},
    {"queue": "q" * 256},
    {"key": "k\0a"},
    {"key": "k" * 600},
    {"lane": "l\r"},
    {"labels": ["\x07"]},
    {"labels": [f"l{n}" for n in range(18)]},
    {"headers": [["a\n", "b"]]},
    {"headers": [["a", "b\r\nc: d"]]},
    {"headers": [["a", "b" * 70_000]]},
    {"root": "\0"},
    {"parent": "p p"},
    {"after": ["\0"]},
    {"nonce": "\n"},
    {"priority": 32_768},
    {"priority": HUGE},
    {"delay": -1.0},
    {"delay": 1e308},
    {"keep": -1.0},
    {"keep_failed": 1e300},
    {"aging": -1.0},
    {"key": "k", "key_window": -1.0},
    {"lease": 0.0},
    {"lease": -1.0},
    {"deadline": -1.0},
    {"wait_timeout": 1e308},
    {"required": -1},
    {"required": 2**40},
    {"failures_allowed": HUGE},
    {"lane": "l", "stride": 0.0},
    {"lane": "l", "stride": 1e300},
    {"limits": [["x", 0]]},
    {"limits": [["x", -1000]]},
    {"limits": [["x", 2**63]]},
    {"limits": [["", 1]]},
    {"limits": [["treadle.declared", 1]]},
    {"limits": [[f"l{n}", 1] for n in range(65)]},
    {"limits": [["queue:default", 1]]},
    {"limits": [["queue", 1]]},
    {"limits": [["queue:", 1]]},
    {"retry": "{not json"},
    {"retry": '{"timeout":-1.0}'},
    {"retry": '{"timeout":0}'},
    {"retry": '{"max_lost":-1}'},
    {"retry": '{"retry":{"attempts":0}}'},
    {"retry": '{"retry":{"factor":1e999}}'},
)


async def test_odd_rows_are_refused_by_every_call(session: aiohttp.ClientSession) -> None:
    """422, and nothing is stored. In `followups` only the outcome is refused, and its job may still end."""
    call = Caller(memory_url(None, tokens(*SCOPES)), session)
    await call("/v1/jobs", {"task": "t", "id": "run"})
    _, claimed = await call("/v1/work/claim", {"worker": "w#1"})
    [row] = claimed["records"]
    for odd in ODD:
        status, problem = await call.enqueue(**odd)
        assert (status, problem["error"]) in {(422, "bad_option"), (422, "too_large")}, (odd, status, problem)
        outcome = {
            "id": "run",
            "version": row["version"],
            "state": "succeeded",
            "followups": [{"id": "kid", "task": "t", **odd}],
        }
        if odd.get("id") != "":  # there the id is derived
            status, answer = await call("/v1/work/settle", {"outcomes": [outcome]})
            assert status == 422 or answer["settled"][0]["status"] == "refused", (odd, answer)
        status, answer = await call("/v1/work/settle_claim", {"outcomes": [outcome], "claim": {"worker": "w#2"}})
        assert status == 422 or answer["settled"][0]["status"] == "refused", (odd, answer)
    _, page = await call("/v1/jobs", method="GET")
    assert [job["id"] for job in page["jobs"]] == ["run"]
    status, answer = await call(
        "/v1/work/settle", {"outcomes": [{"id": "run", "version": row["version"], "succeed": 1}]}
    )
    assert answer["settled"][0]["status"] == "applied"


CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("claim", {"worker": "w", "limit": HUGE}),
    ("claim", {"worker": "w\0"}),
    ("claim", {"worker": "w", "lease": -1}),
    ("claim", {"worker": "w", "queues": [["q", HUGE]]}),
    ("claim", {"worker": "w", "tasks": {"t": [HUGE, None]}}),
    ("claim", {"worker": "w", "wait": -1}),
    ("heartbeat", {"worker": {"worker": "w", "ttl": 1e308}}),
    ("heartbeat", {"worker": {"worker": "w", "ttl": 0}}),
    ("heartbeat", {"worker": {"worker": "w", "pid": HUGE}}),
    ("heartbeat", {"worker": {"worker": "w", "slots": -1}}),
    ("heartbeat", {"worker": {"worker": "w", "host": "h" * 300}}),
    ("heartbeat", {"worker": {"worker": "w", "tasks": ["\0"]}}),
    ("heartbeat", {"worker": {"worker": ""}}),
    ("heartbeat", {"worker": {"worker": "w"}, "lease": -1}),
    ("heartbeat", {"worker": {"worker": "w"}, "renewals": [{"id": "a", "version": HUGE}]}),
    ("find", {"limit": HUGE}),
    ("find", {"limit": -1}),
    ("find", {"queue": "\0"}),
    ("get", {"ids": ["i" * 300]}),
    ("prune", {"limit": HUGE}),
    ("watch", {"topics": ["t" * 2_000]}),
    ("watch", {"topics": ["job:a"], "timeout": -1}),
    ("set_limits", {"changes": [{"type": "set", "rule": {"name": "\0", "slots": 1}}]}),
    ("set_limits", {"changes": [{"type": "set", "rule": {"name": "a", "slots": HUGE}}]}),
    ("set_limits", {"changes": [{"type": "set", "rule": {"name": "a", "rate": 1, "per": 0}}]}),
    ("set_limits", {"changes": [{"type": "pause", "name": "a\n"}]}),
    ("set_limits", {"changes": [{"type": "resume", "name": "a", "until": 1e308}]}),
)


@pytest.mark.parametrize(("verb", "body"), CALLS)
async def test_calls_out_of_range_are_refused(session: aiohttp.ClientSession, verb: str, body: dict[str, Any]) -> None:
    call = Caller(memory_url(None, tokens(*SCOPES)), session)
    status, problem = await call(f"/v1/work/{verb}", body)
    assert (status, problem["error"]) in {(422, "bad_option"), (422, "too_large")}, problem
    status, stats = await call("/v1/stats", method="GET")
    assert (stats["workers"], stats["limits"]) == ([], [])


# --- rows of Treadle's own

EVERY = {"name": "n", "timing": {"type": "every", "seconds": 60.0}, "task": "x", "job": {"id": "i", "task": "x"}}


def schedule(**changes: Any) -> dict[str, Any]:
    return {
        "id": "treadle:schedule:1",
        "task": "treadle.schedule",
        "queue": "treadle",
        "lease": 5.0,
        "key": "treadle.schedule n",
        "payload": json.dumps({**EVERY, **changes}),
    }


def rest(limit: str = "queue:secret", seconds: float = 60.0, **changes: Any) -> dict[str, Any]:
    return {
        "id": "treadle:hold:" + "0" * 32,
        "task": "treadle.limit",
        "queue": "treadle",
        "lease": 5.0,
        "key": f"treadle.limit {limit}",
        "payload": json.dumps({"limit": limit, "seconds": seconds}),
        **changes,
    }


FORGED: tuple[dict[str, Any], ...] = (
    {"task": "treadle.limit"},
    {"task": "treadle.schedule"},
    {"task": "treadle.other"},
    {"queue": "treadle"},
    {"key": "treadle.once charge:7"},
    {"id": "treadle:leader"},
    {"id": "treadle:x"},
    {"id": "cron:nightly:20261122T000000Z"},
    {"id": "treadle:signal:" + "0" * 40 + ":1", "task": ""},
    {"id": "treadle:once:" + "0" * 16, "task": ""},
    {"id": hashed("a"), "root": "b", "task": ""},
    {"id": "treadle:leader", "task": "treadle.leader"},
    {"task": "treadle.flow", "payload": '{"kwargs":{"guard":7}}'},
    {"task": "treadle.flow", "queue": "treadle"},
    {"id": "treadle:waited:nothing", "task": ""},
    schedule(timing={"type": "every", "seconds": 1e-9}),
    schedule(timing={"type": "every", "seconds": -1.0}),
    schedule(timing={"type": "cron", "line": "nonsense"}),
    schedule(timing={"type": "cron", "line": "* * * * *", "tz": "../x"}),
    schedule(name="other"),
    schedule(task="y"),
    schedule(job={"id": "i", "task": "x", "priority": 40_000}),
    schedule(job={"id": "i", "task": "treadle.limit"}),
    schedule(catch_up="every"),
    rest(seconds=-1.0),
    rest(seconds=1e308),
    rest(limit="\0"),
    rest(queue="default"),
    rest(key="treadle.limit other"),
    rest(id="mine"),
)


@pytest.mark.parametrize("job", FORGED)
async def test_a_forged_row_of_treadles_own_is_refused_with_every_scope(
    session: aiohttp.ClientSession, job: dict[str, Any]
) -> None:
    call = Caller(memory_url(None, tokens(*SCOPES)), session)
    status, problem = await call.enqueue(**job)
    assert (status, problem["error"]) == (422, "bad_option"), problem
    _, page = await call("/v1/jobs", method="GET")
    assert page["jobs"] == []


@pytest.mark.parametrize(
    ("job", "needed"),
    [
        (schedule(), "operate"),
        (rest(), "operate"),
        ({"id": "treadle:leader", "task": "treadle.leader", "queue": "treadle"}, "work"),
        ({"id": "g", "task": "treadle.flow", "payload": '{"kwargs":{"guard":true}}', "function_done": True}, "work"),
        ({"id": "treadle:" + "0" * 32 + "-000001"}, "work"),
        ({"id": "f", "task": "treadle.flow", "function_done": True}, "enqueue"),
        ({"id": hashed("r"), "root": "r", "task": ""}, "enqueue"),
    ],
)
async def test_the_scope_that_a_row_of_treadles_own_needs(
    session: aiohttp.ClientSession, job: dict[str, Any], needed: str
) -> None:
    others = tuple(scope for scope in SCOPES if scope != needed or scope == "enqueue")
    if needed != "enqueue":
        call = Caller(memory_url(None, tokens(*others)), session)
        status, problem = await call.enqueue(**job)
        assert (status, problem["details"]) == (403, {"scope": needed})
    call = Caller(memory_url(None, tokens("enqueue", needed)), session)
    status, answer = await call.enqueue(**job)
    assert (status, len(answer["records"])) == (200, 1)


@pytest.mark.parametrize("task", ["treadle.limit", "treadle.flow", "treadle.anything"])
async def test_the_native_api_sends_jobs_of_users_only(session: aiohttp.ClientSession, task: str) -> None:
    call = Caller(memory_url(None, tokens(*SCOPES)), session)
    for path, body in (("/v1/jobs", {"task": task}), ("/v1/jobs/batch", {"jobs": [{"task": task}]})):
        assert (await call(path, body))[0] == 422
    assert (await call("/v1/schedules/s", {"job": {"task": task}, "every": 60}, "PUT"))[0] == 422
    assert (await call("/v1/jobs", {"task": "t", "queue": "treadle"}))[0] == 422


async def test_only_operators_change_schedules(session: aiohttp.ClientSession) -> None:
    """A worker ticks a schedule, and may not define, end or pause it."""
    app = App(storage=MemoryStorage())
    here = host().run
    url = host().add(app, tokens("work", "enqueue"))
    here(app.schedules.upsert("n", app.stub("x").job(), every=3_600))
    [row] = here(app.jobs.list(queue="treadle")).records
    call = Caller(url, session)
    _, answer = await call("/v1/work/claim", {"worker": "w#1", "queues": [["treadle", 1]], "ids": [row.id]})
    [claimed] = answer["records"]
    evil = json.dumps({**EVERY, "task": "evil", "job": {"id": "i", "task": "evil"}})
    known = {"id": row.id, "version": claimed["version"]}
    for outcome in (
        {"state": "ready", "checkpoints": [["definition", evil]]},
        {"state": "ready", "checkpoints": [["paused", "1"]]},
        {"state": "cancelled", "reason": "asked"},
        {"state": "succeeded"},
        {"state": "ready", "followups": [{"id": "cron:other:20261122T000000Z", "task": "x"}]},
    ):
        _, said = await call("/v1/work/settle", {"outcomes": [{**known, **outcome}]})
        assert said["settled"][0]["status"] == "refused", outcome
    status, _ = await call(
        "/v1/work/heartbeat",
        {"worker": {"worker": "w"}, "renewals": [{**known, "checkpoints": [["definition", evil]]}]},
    )
    assert status == 403
    tick = {"id": "cron:n:20261122T000000Z", "task": "x"}
    _, said = await call(
        "/v1/work/settle", {"outcomes": [{**known, "state": "ready", "delay": 60.0, "followups": [tick]}]}
    )
    assert said["settled"][0]["status"] == "applied"


async def test_only_operators_store_signals(session: aiohttp.ClientSession) -> None:
    """A worker's token may not settle the row of a signal, whose id it can derive."""
    settings = tokens(*SCOPES)
    worker = Token(name="w", digest=digest("w"), scopes=("work", "enqueue", "read"))
    url = memory_url(None, Settings(tokens=(*settings.tokens, worker), max_wait=5))
    forger = Caller(url, session, "w")
    async with made(with_secret(url)) as app, Worker(app, poll=0.05):
        asked = await app.enqueue(app.find_task("approve").job())
        async with asyncio.timeout(10):
            while not await app.jobs.signals_of(asked):
                await app.storage.watch((f"job:{asked.id}",), 0.05)
        [signal] = [row for row in (await app.jobs.list(task="")).records if row.id.startswith("treadle:signal:")]
        outcome = {"id": signal.id, "version": signal.version, "state": "succeeded", "result": '"forged"'}
        _, said = await forger("/v1/work/settle", {"outcomes": [outcome]})
        assert "operate" in said["settled"][0]["reason"]
        status, _ = await forger("/v1/work/enqueue", {"jobs": [{"id": signal.id, "payload": signal.job.payload}]})
        assert status in (403, 422)
        await app.jobs.signal(asked.id, "yes", "real")
        assert await asked.result(10) == "real"


# --- Python programs that reach their storage over HTTP


def with_secret(url: str) -> str:
    return url.replace("http://", "http://:s@")


def made(url: str) -> App:
    app = App(url)

    @app.task(name="mail", limits=["mail"])
    async def mail(n: int) -> int:
        return n

    @app.task(name="charge")
    async def charge(n: int) -> list[Any]:
        async with current().once(f"charge:{n}") as first:
            return [first, await current().step("add", int, n)]

    @app.task(name="approve")
    async def approve() -> Any:
        return await current().wait_for("yes", timeout=20)

    @app.task(name="add")
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="tree")
    async def tree(n: int) -> Any:
        await mail.enqueue(n)
        return gather(mail.job(n), mail.job(n + 1)).into(add)

    @app.task(name="busy", retry=Retry(attempts=1))
    async def busy(limit: str) -> None:
        raise Defer(3_600, limit=limit)

    return app


async def test_a_python_program_works_over_http_with_the_scopes_of_a_worker() -> None:
    """Its marks, flows, children, and the rests of limits that its jobs name are rows of Treadle's own, and are
    accepted. Sending a signal, declaring a schedule and the rest of another limit need `operate`."""
    url = memory_url(None, tokens("enqueue", "work", "read"))
    async with made(with_secret(url)) as app, Worker(app, poll=0.05):
        charge = app.find_task("charge")
        assert await (await charge.enqueue(7)).result(10) == [True, 7]
        assert await (await app.find_task("tree").enqueue(1)).workflow.result(10) == 3
        asked = await app.find_task("approve").enqueue()
        with pytest.raises(StorageError, match="operate"):
            await app.jobs.signal(asked.id, "yes", 1)
        with pytest.raises(StorageError, match="operate"):
            await app.schedules.upsert("n", charge.job(1), every=60)
        rests = await app.find_task("busy").options(limits=["smtp"]).enqueue("smtp")
        with pytest.raises(JobFailed, match="operate"):
            await (await app.find_task("busy").enqueue("smtp")).result(10)
        assert (await app.jobs.get(rests.id)).state is State.READY


async def test_a_python_program_with_operate_stores_signals_and_schedules() -> None:
    async with made(with_secret(memory_url(None, tokens(*SCOPES)))) as app:
        app.every(3_600, name="declared", args=[1])(app.find_task("mail"))
        async with Worker(app, poll=0.05, role="auto"):
            asked = await app.find_task("approve").enqueue()
            await app.jobs.signal(asked.id, "yes", "now")
            assert await asked.result(10) == "now"
            await app.schedules.upsert("n", app.find_task("mail").job(1), every=0.1)
            async with asyncio.timeout(10):
                while (found := await app.schedules.get("n")).last is None:
                    await app.storage.watch(("queue:default",), 0.2)
            assert found.error is None
            await app.schedules.pause("n")
            await app.schedules.delete("n")
            assert [each.name for each in await app.schedules.list()] == ["declared"]


# --- rows that are stored already


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each storage, open on the loop of the server."""
    with a_storage(request.param, tmp_path) as storage:
        app = App(storage=storage)
        yield app
        host().run(app.close())


async def test_odd_rows_break_no_list(session: aiohttp.ClientSession, stored: App) -> None:
    """A number of 24,000 bits, half of a character, no JSON: each is shown as text, next to the others."""
    app = stored
    url = host().add(app, tokens(*SCOPES))
    payloads = {
        "huge": '[{"$t":"int","v":"0x' + "f" * 6_000 + '"}]',
        "half": '[{"$t":"str","v":[55296]}]',
        "none": "nonsense {",
        "key": '{"kwargs":{"a":{"$t":"str","v":[55296]}}}',
        "good": "[1]",
    }
    jobs = [NewJob(id=id, task="t", payload=payload) for id, payload in payloads.items()]
    host().run(app.storage.enqueue(jobs))
    call = Caller(url, session)
    status, page = await call("/v1/jobs", method="GET")
    assert (status, {job["id"] for job in page["jobs"]}) == (200, set(payloads))
    for id, payload in payloads.items():
        status, job = await call(f"/v1/jobs/{id}", method="GET")
        assert (status, job["args"]) == (200, [1] if id == "good" else [payload]), id
