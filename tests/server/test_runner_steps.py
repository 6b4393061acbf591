"""Durable functions of runners in other languages: each answer of a step, on every storage."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS
from tests.server.places import a_place
from tests.server.test_api import Client
from treadle import App, Middleware, Sizes
from treadle.core.query_model import Query
from treadle.policy.parts import step_job
from treadle.server import Serving, Settings, make_site
from treadle.server.auth.tokens import Token, digest
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.shows import shows

TOKENS = (
    Token(name="all", digest=digest("all"), scopes=("enqueue", "work", "read", "operate")),
    Token(name="mine", digest=digest("mine"), scopes=("work", "enqueue", "read"), queues=("mine",)),
)


class Run:
    """A run of a durable function: it takes one step after the other, as the helper of a runner does."""

    def __init__(self, site: Site, row: Any, token: str) -> None:
        self.site, self.token = site, token
        self.id, self.version, self.after = row["job"]["id"], row["version"], ""

    async def step(self, name: str, status: int = 200, **fields: Any) -> Any:
        body = {"id": self.id, "version": self.version, "name": name, "after": self.after, **fields}
        found, answer = await self.site.call("POST", "/v1/work/steps", body, self.token)
        assert found == status, answer
        if answer.get("status") == "done":
            self.after = answer["step"]
        return answer if status == 200 else answer["message"]

    async def report(self, **fields: Any) -> str:
        outcome = {"id": self.id, "version": self.version, **fields}
        _, answer = await self.site.call("POST", "/v1/work/settle", {"outcomes": [outcome]}, self.token)
        return str(answer["settled"][0]["status"])


class Site:
    """A server, and a runner that claims from it."""

    def __init__(self, app: App, call: Client, clock: HandClock) -> None:
        self.app, self.call, self.clock, self.claims = app, call, clock, 0

    async def enqueue(self, task: str = "trip", **fields: Any) -> str:
        status, job = await self.call("POST", "/v1/jobs", {"task": task, **fields}, "all")
        assert status == 201, job
        return str(job["id"])

    async def claim(self, queue: str = "default", token: str = "all", **fields: Any) -> list[Run]:
        self.claims += 1
        self.clock.advance(0.01)  # a job that was deferred is due
        ask = {"worker": f"r#{self.claims}", "queues": [[queue, 9]], "limit": 9, "max_lost": 3, **fields}
        status, answer = await self.call("POST", "/v1/work/claim", ask, token)
        assert status == 200, answer
        return [Run(self, row, token) for row in answer["records"]]

    async def run(self, task: str = "trip", **fields: Any) -> Run:
        """A new job of this task, claimed."""
        await self.enqueue(task, **fields)
        [run] = await self.claim()
        return run

    async def signal(self, run: Run, value: Any) -> None:
        status, answer = await self.call("POST", f"/v1/jobs/{run.id}/signal", {"name": "paid", "value": value}, "all")
        assert status == 200, answer

    async def row(self, run: Run) -> Any:
        return (await self.app.storage.get([run.id]))[0]


@pytest.fixture
def sizes() -> Sizes:
    return Sizes()


@pytest.fixture(params=[*KINDS, "ports"])
async def site(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock, sizes: Sizes) -> AsyncIterator[Site]:
    with a_place(request.param, tmp_path, clock) as storage:
        async with served(storage, clock, sizes) as site:
            yield site


class served:
    def __init__(self, storage: Storage, clock: HandClock, sizes: Sizes) -> None:
        self.app, self.clock = App(storage=storage, clock=clock, sizes=sizes), clock
        self.serving = Serving(make_site(self.app, Settings(tokens=TOKENS)), grace=1)
        self.session = aiohttp.ClientSession()

    async def __aenter__(self) -> Site:
        await self.app.__aenter__()
        await self.serving.__aenter__()
        await self.session.__aenter__()
        return Site(self.app, Client(self.serving.url, self.session), self.clock)

    async def __aexit__(self, *error: Any) -> None:
        await self.session.__aexit__(*error)
        await self.serving.__aexit__(*error)
        await self.app.__aexit__(*error)


@shows("a step of a runner is answered from the history in every later run")
async def test_a_step_is_taken_once(site: Site) -> None:
    run = await site.run()
    assert await run.step("charge") == {"status": "new", "step": "charge"}
    receipt = {"number": 7, "sum": 12.5}
    done = {"status": "done", "step": "charge", "result": receipt}
    assert await run.step("charge", result=receipt) == done
    run.after = ""
    assert await run.step("charge", result="another") == done, "repeated after a lost answer"
    assert (await run.step("fetch", result=1))["step"] == "fetch"
    assert (await run.step("fetch", result=None)) == {"status": "done", "step": "fetch#2", "result": None}
    assert await run.report(defer=0) == "applied"
    [again] = await site.claim()
    assert await again.step("charge") == done
    assert [(await again.step("fetch"))["result"] for _ in range(2)] == [1, None]
    assert (await again.step("fetch"))["status"] == "new"
    names = [name for name, _ in (await site.row(run)).checkpoints if not name.startswith("treadle:")]
    assert names == ["charge", "fetch", "fetch#2"]


async def test_a_failure_that_the_function_caught_stays(site: Site) -> None:
    run = await site.run()
    failed = {"status": "done", "step": "book", "failure": {"type": "Reported", "message": "no room"}}
    assert await run.step("book", failure="no room") == failed
    assert (await run.step("cancel"))["status"] == "new"
    await run.report(defer=0)
    [again] = await site.claim()
    assert await again.step("book") == failed
    await again.report(abort="no trip")
    assert (await site.call("POST", f"/v1/jobs/{run.id}/retry", None, "all"))[0] == 200
    [third] = await site.claim()
    assert await third.step("book", result="now there is one") == failed, "the function has caught it"


async def test_a_sleep_suspends_the_job(site: Site) -> None:
    run = await site.run()
    await run.step("charge", result=1)
    assert await run.step("night", sleep=3600) == {"status": "suspended"}
    assert await run.step("night", sleep=3600) == {"status": "suspended"}, "repeated after a lost answer"
    assert await run.report(succeed=1) == "stale"
    assert await site.claim() == []
    row = await site.row(run)
    assert (row.attempt, row.reason) == (0, "asleep in sleep:night")
    site.clock.advance(3601)
    [again] = await site.claim()
    assert await run.step("night", sleep=3600) == {"status": "lost"}
    assert (await again.step("charge"))["result"] == 1
    assert await again.step("night", sleep=3600) == {"status": "done", "step": "sleep:night", "result": None}
    assert await again.report(succeed=2) == "applied"


async def test_a_sleep_of_no_length_is_a_step(site: Site) -> None:
    run = await site.run()
    assert await run.step("turn", sleep=0) == {"status": "done", "step": "sleep:turn", "result": None}
    assert (await run.step("charge", result=1))["status"] == "done"
    await run.report(defer=0)
    [again] = await site.claim()
    assert (await again.step("turn", sleep=60))["status"] == "done"
    assert (await again.step("charge"))["result"] == 1


async def test_a_sleep_beyond_the_deadline_ends_the_job(site: Site) -> None:
    run = await site.run(deadline=site.clock() + 60)
    for _ in range(2):
        assert await run.step("night", sleep=3600) == {"status": "lost"}
    assert (await site.row(run)).reason == "expired"


async def test_a_wait_for_a_signal(site: Site) -> None:
    run = await site.run()
    for _ in range(2):
        assert await run.step("paid", wait={}) == {"status": "suspended"}
    assert await site.claim() == []
    await site.signal(run, {"sum": 3})
    [again] = await site.claim()
    assert await again.step("paid", wait={}) == {"status": "done", "step": "wait:paid", "result": {"sum": 3}}
    assert "already received" in await again.step("paid", 422, wait={})
    assert (await again.step("ship"))["status"] == "new"


async def test_a_wait_that_times_out_and_a_later_one_for_the_same_signal(site: Site) -> None:
    run = await site.run()
    assert await run.step("paid", wait={"timeout": 60}) == {"status": "suspended"}
    site.clock.advance(61)
    [again] = await site.claim()
    answer = await again.step("paid", wait={"timeout": 60})
    assert (answer["status"], answer["failure"]["type"]) == ("done", "TimeoutError")
    await site.signal(run, 1)
    answer = await again.step("paid", wait={})
    assert (answer["step"], answer["result"]) == ("wait:paid#2", 1)
    await again.report(defer=0)
    [third] = await site.claim()
    assert (await third.step("paid", wait={"timeout": 60}))["failure"]["type"] == "TimeoutError"
    assert (await third.step("paid", wait={}))["result"] == 1


def child(task: str = "part", **fields: Any) -> Any:
    return {"id": "", "task": task, "payload": "[1]", **fields}


@shows("a runner starts a child and waits for it in a step, and the child is the same in every run")
async def test_a_call(site: Site) -> None:
    run = await site.run()
    for _ in range(2):
        assert await run.step("first", call=child()) == {"status": "suspended"}
    [part] = await site.claim()
    assert (await site.row(part)).job.parent == run.id
    await part.report(succeed={"n": 5})
    [again] = await site.claim()
    assert await again.step("first", call=child()) == {"status": "done", "step": "call:first", "result": {"n": 5}}
    again.after = ""
    assert "arguments of step 'call:first' changed" in await again.step("first", 422, call=child(payload="[2]"))
    again.after = "call:first"
    assert await again.step("second", call=child()) == {"status": "suspended"}
    [part] = await site.claim()
    await part.report(abort="no luck")
    [third] = await site.claim()
    await third.step("first", call=child())
    answer = await third.step("second", call=child())
    assert answer["failure"]["type"] == "JobFailed"
    assert "no luck" in answer["failure"]["message"]
    assert (await third.step("undo", result=1))["status"] == "done"
    await third.report(abort="no trip")
    await site.call("POST", f"/v1/jobs/{run.id}/retry", None, "all")
    [fourth] = await site.claim()
    await fourth.step("first", call=child())
    assert await fourth.step("second", call=child()) == answer, "the function has caught it"


async def test_a_call_without_a_task_or_with_a_payload_that_is_no_json(site: Site) -> None:
    run = await site.run()
    assert "expected a job with a `task`" in await run.step("first", 422, call=child(""))
    for payload in ("", "[1", "no json"):
        assert "expected a `payload` of JSON" in await run.step("first", 422, call=child(payload=payload))
    assert (await site.row(run)).checkpoints == (), "the step may be taken again, with a right job"
    assert await run.step("first", call=child()) == {"status": "suspended"}


async def test_a_call_of_a_job_with_a_key_or_an_id(site: Site) -> None:
    run = await site.run()
    for fields in ({"key": "one"}, {"id": "chosen"}):
        for _ in range(2):
            assert await run.step("part", call=child(**fields)) == {"status": "suspended"}
        [part] = await site.claim()
        await part.report(succeed=part.id)
        [run] = await site.claim()
        if "id" in fields:
            assert (await run.step("part", call=child(key="one")))["step"] == "call:part"
        answer = await run.step("part", call=child(**fields))
        assert answer["result"] == part.id
    assert part.id == "chosen"


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("ship", {"result": 1}, "this run takes step 'ship' first, but the stored run took 'charge' at this point"),
        ("charge", {"sleep": 1}, "takes step 'sleep:charge' first"),
        ("charge", {"wait": {}}, "takes step 'wait:charge' first"),
        ("charge", {"call": {"id": "", "task": "t"}}, "takes step 'call:charge' first"),
        ("charge", {"after": "nothing"}, "step 'nothing': is not recorded"),
        ("charge#2", {}, "printable characters without '#'"),
        ("treadle:act", {}, "or begin with 'treadle:'"),
        ("charge", {"result": 1, "sleep": 1}, "at most one of result, failure, sleep, wait, call and lock"),
        ("charge", {"after": "charge", "sleep": -1}, "sleep"),
        ("charge", {"after": "charge", "lease": -1}, "lease"),
        ("charge", {"after": "charge", "call": {"id": "", "task": "treadle.flow.x"}}, "are Treadle's own"),
        ("charge", {"after": "charge", "call": {"id": "cron:x", "task": "t"}}, "are Treadle's own"),
    ],
)
async def test_a_step_that_the_history_does_not_have_is_refused(
    clock: HandClock, name: str, fields: Any, problem: str, tmp_path: Path
) -> None:
    with a_place("memory", tmp_path, clock) as storage:
        async with served(storage, clock, Sizes()) as site:
            run = await site.run()
            await run.step("charge", result=1)
            run.after = ""
            assert problem in await run.step(name, 422, **fields)
            assert (await run.step("charge"))["result"] == 1


async def test_a_run_that_lost_its_job(site: Site) -> None:
    run = await site.run()
    await site.call("POST", f"/v1/jobs/{run.id}/cancel", None, "all")
    kinds: tuple[Any, ...] = ({}, {"result": 1}, {"sleep": 1}, {"wait": {}}, {"call": child()})
    for fields in kinds:
        assert await run.step("charge", **fields) == {"status": "lost"}
    dead = await site.run()
    site.clock.advance(31)
    [other] = await site.claim()
    assert other.id == dead.id
    assert await dead.step("charge", result=1) == {"status": "lost"}
    assert (await other.step("charge"))["status"] == "new"
    other.id = "nobody"
    assert await other.step("charge") == {"status": "lost"}


async def test_a_step_renews_the_lease(site: Site) -> None:
    run = await site.run()
    site.clock.advance(20)
    await run.step("charge", result=1, lease=60)
    site.clock.advance(50)
    assert await site.claim() == []
    assert (await run.step("charge", after=""))["result"] == 1


async def test_a_token_of_one_queue(site: Site) -> None:
    other = await site.run()
    other.token = "mine"
    assert await other.step("charge", result=1) == {"status": "lost"}
    await site.enqueue(queue="mine")
    [run] = await site.claim("mine", "mine")
    assert (await run.step("charge", result=1))["status"] == "done"
    assert "no right to queue 'default'" in await run.step("part", 403, call=child())
    assert await run.step("part", call=child(queue="mine")) == {"status": "suspended"}
    [part] = await site.claim("mine", "mine")
    await part.report(succeed=1)
    [run] = await site.claim("mine", "mine")
    await run.step("charge")
    assert (await run.step("part", call=child(queue="mine")))["result"] == 1
    assert await run.step("paid", wait={"timeout": 9}) == {"status": "suspended"}


class TestSizes:
    @pytest.fixture
    def sizes(self) -> Sizes:
        return Sizes(step=1_000, steps=3)

    async def test_a_result_that_is_too_large_is_a_failure_of_every_run(self, site: Site) -> None:
        run = await site.run()
        answer = await run.step("load", result="x" * 2_000)
        assert answer["failure"]["type"] == "TooLarge"
        run.after = ""
        assert await run.step("load") == answer
        for name in ("b", "c"):
            await run.step(name, result=1)
        assert "the limit is 3" in await run.step("d", 422)


async def test_rows_of_treadle_take_no_steps(site: Site) -> None:
    await site.app.schedules.upsert("nightly", site.app.stub("trip").job(), every=3600)
    [row] = (await site.app.storage.find(Query(queue="treadle", limit=10))).records
    site.clock.advance(3601)
    [run] = await site.claim("treadle", ids=[row.id])
    assert "are Treadle's own" in await run.step("definition", 422, result={})


async def test_views_show_the_steps_of_a_runner(site: Site) -> None:
    run = await site.run()
    await run.step("charge", result=1)
    await run.step("book", failure="no room")
    assert await run.step("night", sleep=60) == {"status": "suspended"}
    _, history = await site.call("GET", f"/v1/jobs/{run.id}/history", None, "all")
    assert [(step["name"], step["kind"], step["value"], step["done"]) for step in history["steps"]] == [
        ("charge", "step", 1, True),
        ("book", "step", "Reported: no room", True),
        ("sleep:night", "sleep", None, False),
    ]
    _, explained = await site.call("GET", f"/v1/jobs/{run.id}/explain", None, "all")
    assert "it sleeps in its step 'sleep:night'" in explained["text"]


async def test_the_rows_of_signals_end_with_their_job(site: Site) -> None:
    """While one is open, the workflow cannot be pruned."""
    run = await site.run()
    assert await run.step("paid", wait={"timeout": 60}) == {"status": "suspended"}
    site.clock.advance(61)
    [run] = await site.claim()
    assert "failure" in await run.step("paid", wait={"timeout": 60})
    await run.report(succeed=1)
    [row] = (await site.app.storage.find(Query(root=run.id, task="", limit=10))).records
    assert row.state.final


async def test_a_child_that_the_token_does_not_see_is_not_read(site: Site) -> None:
    """A heartbeat may store any id as the child of a step."""
    other = await site.run()
    await other.report(succeed="secret")
    await site.enqueue(queue="mine")
    [run] = await site.claim("mine", "mine")
    forged = [["call:part", json.dumps({"child": other.id})]]
    beat = {"worker": {"worker": "r"}, "renewals": [{"id": run.id, "version": run.version, "checkpoints": forged}]}
    assert (await site.call("POST", "/v1/work/heartbeat", beat, "mine"))[0] == 200
    assert await run.step("part", call=child(queue="mine", key="k")) == {"status": "suspended"}
    [part] = await site.claim("mine", "mine")
    await part.report(succeed="own")
    [run] = await site.claim("mine", "mine")
    assert (await run.step("part", call=child(queue="mine", key="k")))["result"] == "own"


async def test_children_pass_the_middleware_and_inherit(site: Site) -> None:
    class Refuses(Middleware):
        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            if any(spec.new.task == "evil" for spec in specs):
                raise ValueError("no such child")
            return await proceed([spec.with_headers({"seen": "yes"}) for spec in specs])

    site.app.middleware(Refuses())
    run = await site.run(headers={"tenant": "7"}, lane="blue", expires=600)
    assert "no such child" in await run.step("part", 422, call=child("evil"))
    assert await run.step("part", call=child()) == {"status": "suspended"}
    [part] = await site.claim()
    row = await site.row(part)
    assert (dict(row.job.headers).items() >= {("tenant", "7"), ("seen", "yes")}, row.job.lane) == (True, "blue")
    assert row.deadline_at is not None


async def test_a_step_is_progress_of_a_suspect(site: Site) -> None:
    """A job that lost its runner, and then takes a step, has not lost that runner because of itself."""
    await site.enqueue()
    for number in range(4):
        [run] = await site.claim(worker=f"r{number}#1")
        for earlier in range(number):
            assert (await run.step(f"s{earlier}"))["status"] == "done"
        assert (await run.step(f"s{number}", result=1))["status"] == "done"
        site.clock.advance(31)
    [run] = await site.claim(worker="r9#1")
    assert await run.report(succeed=1) == "applied"


@shows("a runner gets no cleanup job of a durable function: only Treadle's workers run one over the history of another")
async def test_a_runner_gets_no_cleanup_job(site: Site) -> None:
    run = await site.run()
    await run.step("charge", result=1)
    assert (await run.step("pause", sleep=60))["status"] == "suspended"
    assert await site.app.jobs.cancel(run.id) == 1
    [cleanup] = [row for row in (await site.app.jobs.list(parent=run.id)).records if row.job.task]
    assert await site.claim() == []
    assert (await site.app.jobs.get(cleanup.id)).state == "succeeded"


async def test_a_runner_gets_no_try_of_a_step_with_limits(site: Site) -> None:
    run = await site.run()
    await site.app.storage.enqueue([step_job((await site.row(run)).job, "try", "charge", (), ())])
    assert await site.claim() == []
    row = await site.app.jobs.get("try")
    assert (row.state, row.attempt, row.due_at) == ("ready", 0, site.clock.moment + 60)


@shows("a runner waits for a lock without holding a job, and leaves it")
async def test_a_lock_of_runners(site: Site) -> None:
    first, second = await site.run(), await site.run()
    entered = await first.step("x", lock=True)
    assert (entered["status"], entered["step"]) == ("done", "lock:x")
    assert (await second.step("x", lock=True))["status"] == "suspended"
    assert (await first.step("begin", result=1))["status"] == "done"
    assert "this job has the lock" in await first.step("x", 422, lock=True)
    assert await first.step("x", lock=False) == {"status": "done", "step": "begin"}
    assert (await first.step("end", result=1))["status"] == "done"
    assert "does not have the lock" in await first.step("x", 422, lock=False)
    [again] = await site.claim()
    assert again.id == second.id
    assert (await again.step("x", lock=True))["result"] == entered["result"] + 1
    assert await again.report(state="succeeded") == "applied"
    assert "at most one of" in await first.step("x", 422, lock=True, sleep=1)


async def test_the_child_of_a_paused_job_of_a_runner_ends_with_it(site: Site) -> None:
    """The job waits for it no longer, so only its history names the child."""
    run = await site.run()
    assert await run.step("first", call=child(delay=1_000)) == {"status": "suspended"}
    await site.app.jobs.pause(run.id)
    assert await site.app.jobs.cancel(run.id) == 1
    assert await site.claim() == []
    [part] = (await site.app.jobs.list(task="part")).records
    assert part.state == "cancelled"
