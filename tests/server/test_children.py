"""Runs with children in runners in other languages: the plain HTTP that such a runner sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.served import host, memory_url
from tests.server.test_api import Client
from treadle import App, Sizes, Worker
from treadle.core.ids import derived
from treadle.server import Settings
from treadle_testkit.shows import shows


@pytest.fixture
def url() -> str:
    return memory_url(None)


@pytest.fixture
async def call(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(url, session)


async def claim(call: Client, number: int, **more: Any) -> list[Any]:
    ask = {"worker": f"r#{number}", "queues": [["default", 1]], "max_lost": 3, "limit": 10, **more}
    status, answer = await call("POST", "/v1/work/claim", ask)
    assert status == 200, answer
    # jobs with one creation time come in any order
    return sorted(answer["records"], key=lambda row: str(row["job"]["task"]))


async def first(call: Client) -> str:
    """The task of the first job that a waiting runner gets."""
    number = 100
    while not (found := await claim(call, number, wait=5)):
        number += 1
    return str(found[0]["job"]["task"])


async def settle(call: Client, row: Any, **said: Any) -> str:
    report = {"id": row["job"]["id"], "version": row["version"], **said}
    status, answer = await call("POST", "/v1/work/settle", {"outcomes": [report]})
    assert status == 200, answer
    [settled] = answer["settled"]
    return str(settled["status"])


def child(task: str, payload: str = "[]", **more: Any) -> dict[str, Any]:
    return {"id": "", "task": task, "payload": payload, **more}


async def job_of(call: Client, id: str) -> Any:
    return (await call("GET", f"/v1/jobs/{id}"))[1]


async def test_a_parent_waits_for_its_children_and_the_server_ends_it(call: Client) -> None:
    _, parent = await call("POST", "/v1/jobs", {"task": "parent", "headers": {"trace": "7"}})
    [row] = await claim(call, 1)
    for _ in range(2):  # repeated after a lost answer, it stores nothing twice
        assert await settle(call, row, succeed=42, followups=[child("a"), child("b")]) == "applied"
    found = await job_of(call, parent["id"])
    assert (found["state"], found["pending"], found["result"]) == ("waiting", 2, 42)
    children = await claim(call, 2)
    assert [each["job"]["task"] for each in children] == ["a", "b"]
    assert {(each["job"]["parent"], each["job"]["root"]) for each in children} == {(parent["id"], parent["id"])}
    assert dict(children[0]["job"]["headers"]) == {"trace": "7"}
    for number, each in enumerate(children):
        assert await settle(call, each, succeed=number) == "applied"
    assert await claim(call, 3) == []  # the server ends this job, so no runner gets it
    ended = await job_of(call, parent["id"])
    assert (ended["state"], ended["result"], ended["attempt"]) == ("succeeded", 42, 1)


async def test_without_a_value_of_its_own_it_has_that_of_the_last_child(call: Client) -> None:
    _, parent = await call("POST", "/v1/jobs", {"task": "parent"})
    [row] = await claim(call, 1)
    then = [{**child("a"), "id": "first"}, child("b", after=["first"])]
    assert await settle(call, row, followups=then) == "applied"
    for number, (task, value) in enumerate((("a", "one"), ("b", "two")), 2):
        [row] = await claim(call, number)
        assert row["job"]["task"] == task
        assert await settle(call, row, succeed=value) == "applied"
    assert await claim(call, 9) == []
    ended = await job_of(call, parent["id"])
    assert (ended["state"], ended["result"]) == ("succeeded", "two")


@pytest.mark.parametrize("verb", ["judged", "settle", "settle_claim"])
async def test_a_runner_may_choose_ids_but_not_those_derived_from_another_run(call: Client, verb: str) -> None:
    await call("POST", "/v1/jobs", {"task": "parent"})
    [row] = await claim(call, 1)
    id, version = row["job"]["id"], row["version"]
    said = {"succeed": 1} if verb == "judged" else {"state": "succeeded", "result": "1"}
    chosen = [f"{derived(id, version)}:mail", "0" * 32]
    for wrong in (derived("other", 1), f"{derived('other', 1)}-000001", f"{derived(id, version - 1)}-000001"):
        report = {"id": id, "version": version, "followups": [{**child("a"), "id": wrong}], **said}
        body: dict[str, Any] = {"outcomes": [report]}
        if verb == "settle_claim":
            body["claim"] = {"worker": "r#9", "queues": [], "limit": 0}
        status, problem = await call("POST", f"/v1/work/{'settle' if verb == 'judged' else verb}", body)
        assert (status, problem["error"], problem["details"]["id"]) == (422, "wrong_id", wrong)
    if verb == "judged":
        then = [{**child("a"), "id": each} for each in chosen]
    else:
        then = [{**child("a"), "id": each} for each in (*chosen, f"{derived(id, version)}-000001")]
    assert await settle(call, row, followups=then, **said) == "applied"


async def test_a_child_that_fails_fails_its_parent(call: Client) -> None:
    _, parent = await call("POST", "/v1/jobs", {"task": "parent"})
    [row] = await claim(call, 1)
    await settle(call, row, succeed=1, followups=[child("a")])
    [row] = await claim(call, 2)
    await settle(call, row, abort="no luck")
    assert await claim(call, 3) == []
    ended = await job_of(call, parent["id"])
    assert (ended["state"], ended["reason"]) == ("failed", "children")
    assert "no luck" in ended["error"]


async def test_a_parent_that_is_called_again_gets_the_results_of_its_children(call: Client) -> None:
    _, parent = await call("POST", "/v1/jobs", {"task": "parent"})
    [row] = await claim(call, 1)
    for _ in range(2):
        assert (
            await settle(call, row, again=True, followups=[child("a"), child("b")], checkpoints=[["stage", "2"]])
            == "applied"
        )
    first, second = await claim(call, 2)
    await settle(call, first, succeed=20)
    assert await claim(call, 3) == []
    await settle(call, second, abort="never mind")
    [row] = await claim(call, 4)
    assert (row["job"]["id"], dict(row["checkpoints"]), row.get("function_done", False)) == (
        parent["id"],
        {"stage": "2"},
        False,
    )
    _, found = await call("POST", "/v1/work/get", {"ids": row["after"]})
    assert [(each["state"], each["result"]) for each in found["records"]] == [("succeeded", "20"), ("failed", None)]
    assert await settle(call, row, succeed=21) == "applied"
    ended = await job_of(call, parent["id"])
    assert (ended["state"], ended["result"], ended["attempt"]) == ("succeeded", 21, 1)


@pytest.mark.parametrize(
    "said",
    [
        {"fail": "no", "followups": [child("a")]},
        {"defer": 1, "followups": [child("a")]},
        {"succeed": 1, "again": True, "followups": [child("a")]},
        {"again": True},
        {},
        {"succeed": 1, "fail": "both"},
    ],
)
async def test_a_contradictory_report_is_refused(call: Client, said: Any) -> None:
    await call("POST", "/v1/jobs", {"task": "parent"})
    [row] = await claim(call, 1)
    report = {"id": row["job"]["id"], "version": row["version"], **said}
    status, problem = await call("POST", "/v1/work/settle", {"outcomes": [report]})
    assert (status, problem["error"]) == (422, "wrong_shape")
    assert (await call("GET", "/v1/jobs?count=true"))[1]["total"] == 1


async def test_a_python_program_waits_for_such_a_workflow(call: Client, url: str) -> None:
    """The parent runs in another language; the child and the caller are in Python."""
    async with App(url) as app:

        @app.task(name="double", queue="python")
        async def double(x: int) -> int:
            return 2 * x

        job = await app.stub("parent").enqueue()
        [row] = await claim(call, 1)
        await settle(call, row, followups=[child("double", "[21]", queue="python")])
        async with Worker(app):
            waiting = asyncio.create_task(first(call))
            assert await job.result(30) == 42
            await call("POST", "/v1/jobs", {"task": "next"})
            assert await waiting == "next"


@shows("a reported result that cannot be stored fails the job at once")
@pytest.mark.parametrize("how", ["too large", "taken id"])
async def test_a_reported_result_that_cannot_be_stored_fails_the_job_at_once(how: str) -> None:
    """Its function has run: if the lease expired instead, another runner would run it again."""
    url = host().add(App("memory://", sizes=Sizes(result=100)), Settings(max_wait=5))
    async with aiohttp.ClientSession() as session:
        call = Client(url, session)
        await call("POST", "/v1/jobs", {"task": "other", "id": "order-1", "delay": 600})
        status, answer = await call("POST", "/v1/jobs", {"task": "t"})
        assert status == 201, answer
        [row] = await claim(call, 1)
        if how == "too large":
            assert await settle(call, row, succeed="x" * 200) == "applied"
        else:
            assert await settle(call, row, succeed=1, followups=[{"id": "order-1", "task": "child"}]) == "refused"
        job = await job_of(call, answer["id"])
    assert (job["state"], job["reason"], job["attempt"]) == ("failed", "result", 1)
    assert ("the limit is 100" if how == "too large" else "'order-1' is taken by a job of other") in job["error"]
