"""The calls that show many jobs: lists with a search, groups of failures, workflows and their graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tests.served import host
from tests.server.test_api import Client
from treadle import App, Retry, flow
from treadle.core.ids import UuidV7
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, drain

TOKENS = (
    Token(name="ops", digest=digest("ops"), scopes=("read", "operate")),
    Token(name="mail", digest=digest("mail"), scopes=("read", "operate"), queues=("mail",)),
    Token(name="blind", digest=digest("blind"), scopes=("read",), payloads=False),
    Token(name="blind-ops", digest=digest("blind-ops"), scopes=("read", "operate"), payloads=False),
    Token(name="sender", digest=digest("sender"), scopes=("enqueue",)),
)


class Site:
    """A served app with tasks of several queues, and calls to it."""

    def __init__(self, clock: HandClock, session: aiohttp.ClientSession) -> None:
        self.clock = clock
        self.storage = MemoryStorage(clock)
        self.app = App(storage=self.storage, clock=clock, ids=UuidV7(clock))
        self.url = host().add(self.app, Settings(tokens=TOKENS))
        self.client = Client(self.url, session)

        @self.app.task(name="send", queue="mail", retry=Retry(attempts=1))
        async def send(to: str, api_key: str = "k-17") -> str:
            if "bad" in to:
                raise ValueError(f"no such mailbox: {to!r}")
            return to

        @self.app.task(name="charge", queue="money", retry=Retry(attempts=1))
        async def charge(card: int) -> None:
            raise RuntimeError(f"card {card} was declined, password=hunter2")

        self.send, self.charge = send, charge

    async def get(self, path: str, token: str = "ops") -> Any:
        status, answer = await self.client("GET", path, token=token)
        assert status == 200, answer
        return answer

    def run(self, work: Any) -> Any:
        return host().run(work)

    async def fail(self, count: int = 3) -> None:
        """Run `count` failing jobs of each task, a second apart."""

        async def work() -> None:
            for number in range(count):
                await self.send.enqueue(f"bad{number}@example.org")
                await self.charge.enqueue(1_000 + number)
                await drain(self.app)
                self.clock.advance(1)

        self.run(work())


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with aiohttp.ClientSession() as session:
        yield Site(HandClock(), session)


# --- lists


async def test_a_text_is_found_in_task_arguments_error_label_and_key(site: Site) -> None:
    async def work() -> None:
        await site.send.enqueue("Jane@example.org")
        await site.send.options(labels={"tenant": "Blue"}, key="order 7").enqueue("x")

    site.run(work())
    await site.fail(1)
    for text, count in {
        "jane@EXAMPLE": 1,
        "to=jane": 0,
        "tenant=blue": 1,
        "ORDER 7": 1,
        "no such mailbox": 1,
        "SEND": 3,
        "nothing": 0,
        ".*": 0,
        "\x00": 0,
        "%": 0,
    }.items():
        page = await site.get(f"/v1/jobs?q={quote(text)}")
        assert len(page["jobs"]) == count, text
        assert page["scanned"] == 4
        assert page["cursor"] is None


async def test_a_search_reads_a_bounded_number_of_rows_and_continues_there(site: Site) -> None:
    async def work() -> None:
        for number in range(10):
            await site.send.enqueue(f"{'needle' if number % 4 == 0 else 'hay'} {number}")
            site.clock.advance(1)

    site.run(work())
    found, cursor, pages = [], "", []
    while True:
        page = await site.get(f"/v1/jobs?q=needle&scan=3&limit=2{cursor}")
        found += [job["args"][0] for job in page["jobs"]]
        pages.append(page["scanned"])
        if page["cursor"] is None:
            break
        assert page["scanned_to"] is not None
        cursor = f"&cursor={page['cursor']}"
    assert found == ["needle 8", "needle 4", "needle 0"]
    assert pages == [3, 3, 3, 1]
    one = await site.get("/v1/jobs?q=needle&limit=1")
    assert one["jobs"][0]["args"] == ["needle 8"]
    rest = await site.get(f"/v1/jobs?q=needle&cursor={one['cursor']}")
    assert [job["args"] for job in rest["jobs"]] == [["needle 4"], ["needle 0"]]


async def test_a_search_for_an_id_or_its_beginning_finds_the_row(site: Site) -> None:
    async def work() -> str:
        job = await site.send.enqueue("x")
        site.clock.advance(3600)
        await site.send.enqueue("y")
        return job.id

    id = site.run(work())
    page = await site.get(f"/v1/jobs?q={id}")
    assert ([job["id"] for job in page["jobs"]], page["scanned"]) == ([id], 1)
    for text in (id[:-1], id[:13], id[:8]):
        assert id in [job["id"] for job in (await site.get(f"/v1/jobs?q={text}"))["jobs"]], text
    assert (await site.get(f"/v1/jobs?q={id[:7]}"))["jobs"] == []
    assert (await site.get(f"/v1/jobs?q={id}&state=failed"))["jobs"] == []


async def test_secrets_are_not_found_and_a_token_without_payloads_searches_none(site: Site) -> None:
    site.run(site.app.enqueue(site.app._core.stub("other").job(api_key="sk-4711", to={"name": "jane"})))
    await site.fail(1)
    assert len((await site.get("/v1/jobs?q=name=jane"))["jobs"]) == 1
    assert (await site.get("/v1/jobs?q=sk-4711"))["jobs"] == []
    assert (await site.get("/v1/jobs?q=hunter2"))["jobs"] == []
    assert len((await site.get("/v1/jobs?q=declined"))["jobs"]) == 1
    assert (await site.get("/v1/jobs?q=declined", "blind"))["jobs"] == []
    assert (await site.get("/v1/jobs?q=bad0", "blind"))["jobs"] == []
    assert len((await site.get("/v1/jobs?q=charge", "blind"))["jobs"]) == 1


async def test_lists_narrow_by_status_and_time_and_follow_the_due_jobs(site: Site) -> None:
    async def work() -> None:
        await site.send.enqueue("now")
        site.clock.advance(10)
        await site.send.options(delay=100).enqueue("late")
        await site.send.options(delay=50).enqueue("soon")

    site.run(work())
    now = site.clock()
    texts = lambda page: [job["args"][0] for job in page["jobs"]]  # noqa: E731
    assert texts(await site.get("/v1/jobs?status=scheduled&order=due")) == ["soon", "late"]
    assert texts(await site.get("/v1/jobs?status=queued")) == ["now"]
    assert texts(await site.get("/v1/jobs?status=blocked")) == []
    assert texts(await site.get(f"/v1/jobs?before={now}")) == ["now"]
    assert sorted(texts(await site.get(f"/v1/jobs?since={now}"))) == ["late", "soon"]
    [job] = (await site.get("/v1/jobs?status=queued"))["jobs"]
    assert (job["status"], job["reopenings"], job["function_done"], job["limits"]) == ("queued", 0, False, [])
    assert job["queue_position"] is not None


@pytest.mark.parametrize("query", ["q=", f"q={'x' * 1001}", "scan=0", "q=x&count=true", "status=walking", "since=-1"])
async def test_impossible_filters_are_refused(site: Site, query: str) -> None:
    status, _ = await site.client("GET", f"/v1/jobs?{query}", token="ops")
    assert status == 422


async def test_a_bound_token_lists_and_finds_only_its_queue(site: Site) -> None:
    await site.fail(1)
    assert {job["queue"] for job in (await site.get("/v1/jobs?q=a", "mail"))["jobs"]} == {"mail"}
    [other] = (await site.get("/v1/jobs?queue=money"))["jobs"]
    assert (await site.get(f"/v1/jobs?q={other['id']}", "mail"))["jobs"] == []
    assert (await site.client("GET", "/v1/jobs?queue=money&q=x", token="mail"))[0] == 403


# --- failures


async def test_failures_are_grouped_by_task_and_error(site: Site) -> None:
    await site.fail(3)
    found = await site.get("/v1/failures")
    assert [(group["task"], group["jobs"]) for group in found["groups"]] == [("charge", 3), ("send", 3)] or [
        (group["task"], group["jobs"]) for group in found["groups"]
    ] == [("send", 3), ("charge", 3)]
    group = next(each for each in found["groups"] if each["task"] == "send")
    assert group["signature"] == "ValueError: no such mailbox: <text>"
    assert group["error"] == "ValueError: no such mailbox: 'bad2@example.org'"
    assert (group["queue"], len(group["spark"]), sum(group["spark"])) == ("mail", 24, 3)
    assert group["last"] - group["first"] == 2
    assert (await site.get(f"/v1/jobs/{group['sample']}"))["args"] == ["bad2@example.org"]
    assert (found["total"], found["capped"], found["scanned"], found["cursor"]) == (6, False, 6, None)
    money = next(each for each in found["groups"] if each["task"] == "charge")
    assert money["error"].endswith("password=***")


async def test_failures_beyond_the_scan_are_reached_by_the_cursor(site: Site) -> None:
    await site.fail(3)
    first = await site.get("/v1/failures?scan=4&queue=mail")
    assert (first["scanned"], first["cursor"], first["total"]) == (3, None, 3)
    first = await site.get("/v1/failures?scan=2")
    assert (first["scanned"], first["total"]) == (2, 6)
    rest = await site.get(f"/v1/failures?cursor={first['cursor']}")
    assert sum(group["jobs"] for group in rest["groups"]) == 4
    only = await site.get("/v1/failures?task=send")
    assert (len(only["groups"]), only["total"]) == (1, 3)


async def test_failures_of_other_queues_and_payloads_stay_hidden(site: Site) -> None:
    await site.fail(2)
    own = await site.get("/v1/failures", "mail")
    assert ([group["queue"] for group in own["groups"]], own["total"], own["scanned"]) == (["mail"], 2, 2)
    assert (await site.client("GET", "/v1/failures?queue=money", token="mail"))[0] == 403
    assert (await site.client("GET", "/v1/failures", token="sender"))[0] == 403
    blind = await site.get("/v1/failures", "blind")
    assert {group["error"] for group in blind["groups"]} == {"ValueError", "RuntimeError"}
    assert {group["signature"] for group in blind["groups"]} == {"ValueError", "RuntimeError"}


# --- workflows


async def test_workflows_are_listed_newest_first_with_their_progress(site: Site) -> None:
    async def work() -> None:
        for number in range(3):
            await site.app.enqueue(flow(site.send.job(f"a{number}"), site.send.job(f"bad{number}")))
            site.clock.advance(1)
            await site.send.enqueue("alone")
        await drain(site.app)

    site.run(work())
    page = await site.get("/v1/workflows?limit=2")
    assert [(each["jobs"], each["done"], each["failed"]) for each in page["workflows"]] == [(3, 3, 2)] * 2
    assert page["workflows"][0]["created_at"] > page["workflows"][1]["created_at"]
    rest = await site.get(f"/v1/workflows?cursor={page['cursor']}")
    assert (len(rest["workflows"]), rest["cursor"]) == (1, None)
    assert (await site.get("/v1/workflows?state=succeeded"))["workflows"] == []
    assert len((await site.get("/v1/workflows?state=failed,running"))["workflows"]) == 3
    assert (await site.client("GET", "/v1/workflows?state=odd", token="ops"))[0] == 422


async def test_a_workflow_is_drawn_with_folds_that_open(site: Site) -> None:
    async def work() -> str:
        job = await site.app.enqueue(flow(*(site.send.job(f"{n}") for n in range(20))).then(site.send.job("last")))
        return str(job.id)

    id = site.run(work())
    found = await site.get(f"/v1/workflows/{id}/graph")
    assert sorted((node["kind"], node["jobs"]) for node in found["nodes"]) == [("fold", 20), ("job", 1), ("joint", 1)]
    assert (found["total"], found["shown"], found["capped"]) == (22, 22, False)
    [fold] = [node["id"] for node in found["nodes"] if node["kind"] == "fold"]
    wide = await site.get(f"/v1/workflows/{id}/graph?open={quote(fold)}")
    assert len(wide["nodes"]) == 22
    assert len(wide["edges"]) == 21
    for edge in wide["edges"]:
        assert set(edge) == {"from", "to", "path"}
    assert len((await site.get(f"/v1/workflows/{id}/graph?fold=50"))["nodes"]) == 22
    assert (await site.client("GET", f"/v1/workflows/{id}/graph?fold=0", token="ops"))[0] == 422
    assert (await site.client("GET", "/v1/workflows/unknown/graph", token="ops"))[0] == 404
    part = (await site.get("/v1/jobs?limit=1"))["jobs"][0]["id"]
    assert (await site.get(f"/v1/workflows/{part}/graph"))["total"] == 22


async def test_jobs_of_other_queues_are_left_out_of_a_drawing(site: Site) -> None:
    async def work() -> str:
        job = await site.app.enqueue(flow(site.send.job("a"), site.charge.job(7)))
        return str(job.id)

    id = site.run(work())
    [first] = [each["id"] for each in (await site.get("/v1/jobs?task=send"))["jobs"]]
    own = await site.get(f"/v1/workflows/{first}/graph", "mail")
    assert {node["task"] for node in own["nodes"]} <= {"send", "treadle.flow"}
    [other] = [each["id"] for each in (await site.get("/v1/jobs?task=charge"))["jobs"]]
    assert (await site.client("GET", f"/v1/workflows/{other}/graph", token="mail"))[0] == 404
    assert id


# --- history


async def test_the_history_of_a_job_has_its_attempts_without_secrets(site: Site) -> None:
    await site.fail(1)
    [job] = (await site.get("/v1/jobs?task=charge"))["jobs"]
    found = await site.get(f"/v1/jobs/{job['id']}/history")
    [attempt] = found["attempts"]
    assert (attempt["number"], attempt["outcome"]) == (1, "failed")
    assert "hunter2" not in attempt["error"]
    assert "password=***" in attempt["error"]
    [hidden] = (await site.get(f"/v1/jobs/{job['id']}/history", "blind"))["attempts"]
    assert hidden["error"] == "RuntimeError"
    assert (await site.client("GET", f"/v1/jobs/{job['id']}/history", token="mail"))[0] == 404
    assert (await site.client("GET", "/v1/jobs/unknown/history", token="ops"))[0] == 404
