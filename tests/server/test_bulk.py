"""Operations on many jobs over HTTP, and the audit log of all acts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.server.test_looking import Site
from treadle.admin import selection
from treadle.admin.audit import Act
from treadle.admin.operations import AT_ONCE
from treadle.core.model import State
from treadle.core.query_model import Query
from treadle.errors import StorageUnavailable
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with aiohttp.ClientSession() as session:
        yield Site(HandClock(), session)


async def post(site: Site, body: dict[str, Any], token: str = "ops") -> tuple[int, Any]:
    return await site.client("POST", "/v1/operations", {"created_before": site.clock() + 1, **body}, token=token)


async def run(site: Site, body: dict[str, Any], token: str = "ops") -> Any:
    """Start an operation, and wait for its end."""
    status, begun = await post(site, body, token)
    assert status == 202, begun
    assert begun["state"] == "running"
    site.run(ended(site, begun["id"]))
    status, found = await site.client("GET", f"/v1/operations/{begun['id']}", token=token)
    assert status == 200
    return found


async def ended(site: Site, id: str) -> None:
    task = site.app._core.operations._runs[id].task
    assert task is not None
    await asyncio.wait([task])


async def entries(site: Site) -> list[Any]:
    found: list[Any] = (await site.get("/v1/audit"))["entries"]
    return found


# --- operations


@shows("An operation over HTTP reopens all failed jobs of a filter, after a preview with their number")
async def test_a_filter_is_previewed_and_then_acted_on(site: Site) -> None:
    await site.fail(3)
    status, seen = await post(site, {"act": "retry", "filter": {"task": "send"}, "dry": True})
    assert status == 200
    assert (seen["matches"], seen["capped"], len(seen["samples"])) == (3, False, 3)
    assert seen["words"].startswith("failed jobs of task 'send', created before ")
    assert await entries(site) == []
    found = await run(site, {"act": "retry", "filter": {"task": "send"}})
    assert (found["state"], found["done"], found["passed_over"]) == ("done", 3, {})
    assert found["scanned"] >= 3
    assert found["by"] == "ops"
    assert len((await site.get("/v1/jobs?task=send&state=ready"))["jobs"]) == 3
    assert len((await site.get("/v1/jobs?task=charge&state=failed"))["jobs"]) == 3
    [entry] = await entries(site)
    assert (entry["by"], entry["from"], entry["act"], entry["done"]) == ("ops", "api", "jobs.retry", 3)
    assert entry["filter"].startswith("failed jobs of task 'send'")
    assert len(entry["ids"]) == 3
    assert entry["ended_at"] is not None


async def test_a_group_of_failures_is_retried_and_no_other_job(site: Site) -> None:
    await site.fail(2)
    group = next(each for each in (await site.get("/v1/failures"))["groups"] if each["task"] == "charge")
    _, seen = await post(site, {"act": "retry", "group": {"key": group["key"]}, "dry": True})
    assert (seen["matches"], seen["words"].count("card <n> was declined")) == (2, 1)
    found = await run(site, {"act": "retry", "group": {"key": group["key"]}})
    assert found["done"] == 2
    assert (await post(site, {"act": "retry", "group": {"key": group["key"]}}))[0] == 404
    assert (await post(site, {"act": "cancel", "group": {"key": group["key"]}}))[0] == 422
    assert (await post(site, {"act": "retry", "group": {"key": "%%%"}}))[0] == 422
    assert (await post(site, {"act": "retry", "group": {"key": group["key"]}}, "mail"))[0] == 404


async def test_an_operation_shows_no_error_texts_to_a_token_without_payloads(site: Site) -> None:
    await site.fail(1)
    for group in (await site.get("/v1/failures", "blind-ops"))["groups"]:
        status, seen = await post(site, {"act": "retry", "group": {"key": group["key"]}, "dry": True}, "blind-ops")
        assert (status, "mailbox" in str(seen), "declined" in str(seen)) == (200, False, False)
    for group in (await site.get("/v1/failures"))["groups"]:
        await run(site, {"act": "retry", "group": {"key": group["key"]}})
    await run(site, {"act": "delete", "filter": {"q": "password=hunter2"}})
    for path in ("/v1/operations", "/v1/audit"):
        said = str(await site.get(path, "blind-ops"))
        assert ("ValueError" in said, "RuntimeError" in said) == (True, True)
        assert ("mailbox" in said, "declined" in said, "hunter2" in said) == (False, False, False)


async def test_ids_are_acted_on_and_each_that_is_passed_over_has_a_reason(site: Site) -> None:
    async def work() -> list[str]:
        jobs = [await site.send.options(delay=60).enqueue(f"{number}") for number in range(3)]
        await site.app.jobs.cancel(jobs[0])
        return [job.id for job in jobs]

    ids = site.run(work())
    wrong = ids[1][:-1] + ("0" if ids[1][-1] != "0" else "1")
    _, seen = await post(site, {"act": "run_now", "ids": [*ids, wrong], "dry": True})
    assert (seen["matches"], len(seen["samples"])) == (3, 3)
    assert seen["warning"].startswith(f"there is no job '{wrong}'; did you mean '")
    found = await run(site, {"act": "run_now", "ids": [*ids, ids[1], wrong, "nothing"]})
    assert (found["done"], found["total"]) == (2, 5)
    assert found["passed_over"] == {"unknown job": 2, "it was cancelled": 1}


@shows("An operation acts on no more jobs than the person has confirmed, the oldest first")
async def test_the_confirmed_number_bounds_the_act(site: Site) -> None:
    await site.fail(4)
    body = {"act": "retry", "filter": {"task": "send"}, "at_most": 3}
    found = await run(site, body)
    assert (found["state"], found["done"], found["more"]) == ("done", 3, True)
    [left] = (await site.get("/v1/jobs?task=send&state=failed"))["jobs"]
    assert left["args"] == ["bad3@example.org"]
    found = await run(site, body)
    assert (found["done"], found["more"]) == (1, False)
    assert (await post(site, {**body, "at_most": 0}))[0] == 422


async def test_the_bound_holds_over_several_steps(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "STEP", 2)
    await site.fail(7)
    found = await run(site, {"act": "retry", "filter": {"task": "send"}, "at_most": 4})
    assert (found["done"], found["more"]) == (4, True)
    assert len((await site.get("/v1/jobs?task=send&state=failed"))["jobs"]) == 3


async def test_children_are_cancelled_beyond_the_bound(site: Site) -> None:
    @site.app.task(name="outer")
    async def outer() -> Any:
        return site.send.options(delay=60).job("child")

    async def work() -> None:
        await site.app.enqueue(outer.job(), outer.job())
        await drain(site.app)

    site.run(work())
    found = await run(site, {"act": "cancel", "filter": {"task": "outer"}, "at_most": 1})
    assert (found["done"], found["more"]) == (2, True)


@shows("A request for an operation that is repeated with its Idempotency-Key begins no second one")
async def test_a_repeated_request_begins_nothing(site: Site) -> None:
    await site.fail(2)

    async def asked(key: str, token: str = "ops") -> tuple[int, Any]:
        body = {"act": "retry", "filter": {"task": "send"}, "created_before": site.clock() + 1}
        return await site.client("POST", "/v1/operations", body, token=token, headers={"Idempotency-Key": key})

    answers = [await asked("dialog 7") for _ in range(3)]
    assert [status for status, _ in answers] == [202] * 3
    assert len({answer["id"] for _, answer in answers}) == 1
    assert (await asked("dialog 8"))[1]["id"] != answers[0][1]["id"]
    assert (await asked("dialog 7", "mail"))[1]["id"] != answers[0][1]["id"]
    assert (await asked("x" * 256))[0] == 422
    assert len(await entries(site)) == 3


async def test_a_repeated_request_for_a_group_returns_its_operation_also_when_the_group_is_empty(site: Site) -> None:
    await site.fail(2)
    group = (await site.get("/v1/failures"))["groups"][0]
    body = {"act": "retry", "group": {"key": group["key"]}, "created_before": site.clock() + 1}
    answers = []
    for key in ("dialog 7", "dialog 7", "dialog 8"):
        headers = {"Idempotency-Key": key}
        answers.append(await site.client("POST", "/v1/operations", body, token="ops", headers=headers))
        site.run(ended(site, answers[0][1]["id"]))
    assert [status for status, _ in answers] == [202, 202, 404]
    assert answers[1][1]["id"] == answers[0][1]["id"]
    assert answers[1][1]["state"] == "done"


async def test_a_key_with_another_request_is_refused(site: Site) -> None:
    await site.fail(1)
    headers = {"Idempotency-Key": "dialog 7"}
    body = {"act": "retry", "filter": {"task": "send"}, "created_before": site.clock() + 1}
    for change, expected in (({}, 202), ({"at_most": 1}, 422), ({"act": "delete"}, 422), ({"dry": True}, 200)):
        changed = {**body, **change}
        status, answer = await site.client("POST", "/v1/operations", changed, token="ops", headers=headers)
        assert status == expected, answer
        assert status != 422 or answer["error"] == "idempotency_key_reused"
    assert len(await entries(site)) == 1


async def test_jobs_created_after_the_dialog_opened_are_left_alone(site: Site) -> None:
    await site.fail(1)
    opened = site.clock()
    await site.fail(1)
    found = await run(site, {"act": "delete", "filter": {"state": "failed"}, "created_before": opened})
    assert found["done"] == 2
    later = (await site.get(f"/v1/jobs?state=failed&since={opened}"))["jobs"]
    found = await run(site, {"act": "retry", "ids": [job["id"] for job in later], "created_before": opened})
    assert (found["done"], found["passed_over"]) == (0, {"it was created later": 2})


async def test_a_filter_that_matches_nothing_warns_of_a_mistyped_name(site: Site) -> None:
    await site.fail(1)
    _, seen = await post(site, {"act": "retry", "filter": {"task": "sent"}, "dry": True})
    assert (seen["matches"], seen["samples"]) == (0, [])
    assert "did you mean 'send'" in seen["warning"]
    assert (await run(site, {"act": "retry", "filter": {"task": "sent"}}))["done"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"act": "retry"},
        {"act": "retry", "filter": {}},
        {"act": "retry", "filter": {"task": "a"}, "ids": ["b"]},
        {"act": "retry", "ids": []},
        {"act": "retry", "ids": ["a"] * 1_001},
        {"act": "retry", "ids": ["\x00"]},
        {"act": "explode", "ids": ["a"]},
        {"act": "retry", "filter": {"stat": "failed"}},
        {"act": "retry", "filter": {"state": "odd"}},
        {"act": "retry", "filter": {"q": ""}},
        {"act": "retry", "ids": ["a"], "created_before": None},
        {"act": "retry", "ids": ["a"], "created_before": -1},
        {"act": "retry", "ids": "abc"},
        {"act": "retry", "group": {"key": ""}},
    ],
)
async def test_impossible_operations_are_refused_and_leave_no_entry(site: Site, body: dict[str, Any]) -> None:
    status, answer = await post(site, body)
    assert status == 422, answer
    assert await entries(site) == []


async def test_a_bound_token_acts_in_its_queues_only(site: Site) -> None:
    await site.fail(2)
    other = (await site.get("/v1/jobs?queue=money&limit=1"))["jobs"][0]["id"]
    _, seen = await post(site, {"act": "delete", "filter": {"state": "failed"}, "dry": True}, "mail")
    assert seen["matches"] == 2
    found = await run(site, {"act": "delete", "ids": [other]}, "mail")
    assert (found["done"], found["passed_over"]) == (0, {"unknown job": 1})
    assert (await post(site, {"act": "delete", "filter": {"queue": "money"}}, "mail"))[0] == 403
    found = await run(site, {"act": "retry", "filter": {"state": "failed"}}, "mail")
    assert (found["done"], found["scanned"]) == (2, 2)
    assert len((await site.get("/v1/jobs?queue=money&state=failed"))["jobs"]) == 2
    whole = await run(site, {"act": "retry", "filter": {"state": "failed"}})
    assert (await site.client("GET", f"/v1/operations/{whole['id']}", token="mail"))[0] == 404
    assert (await site.client("DELETE", f"/v1/operations/{whole['id']}", token="mail"))[0] == 404
    listed = (await site.client("GET", "/v1/operations", token="mail"))[1]["operations"]
    assert {each["by"] for each in listed} == {"mail"}
    assert (await site.client("GET", "/v1/audit", token="mail"))[0] == 403
    assert (await post(site, {"act": "retry", "ids": [other]}, "blind"))[0] == 403


async def test_an_operation_is_stopped_and_what_it_did_stays_done(site: Site) -> None:
    async def work() -> None:
        for _ in range(3):
            await site.app.enqueue([site.send.job(str(number)) for number in range(500)])
            site.clock.advance(1)

    site.run(work())
    seen: list[tuple[str, int]] = []

    def stop_early(each: Any, queues: tuple[str, ...]) -> None:
        seen.append((each.state, each.done))
        if each.done:
            site.app._core.operations.stop(each.id)

    site.app._core.operations.listen(stop_early)
    found = await run(site, {"act": "cancel", "filter": {"queue": "mail"}})
    assert (found["state"], found["done"], found["error"]) == ("stopped", 500, None)
    assert seen[-1] == ("stopped", 500)
    [entry] = await entries(site)
    assert (entry["done"], entry["error"]) == (500, "stopped")
    assert len((await site.get("/v1/jobs?state=ready&limit=1000"))["jobs"]) == 1_000


async def test_two_operators_at_once_change_each_job_once(site: Site) -> None:
    async def work() -> None:
        await site.app.enqueue([site.send.options(delay=60).job(str(number)) for number in range(600)])

    site.run(work())
    body = {"act": "cancel", "filter": {"queue": "mail"}}
    (_, one), (_, other) = await asyncio.gather(post(site, body), post(site, body))
    done = 0
    for begun in (one, other):
        site.run(ended(site, begun["id"]))
        found = await site.get(f"/v1/operations/{begun['id']}")
        assert found["state"] == "done"
        done += found["done"]
    assert done == 600
    assert len((await site.get("/v1/jobs?state=cancelled&limit=1000"))["jobs"]) == 600


async def test_an_operation_that_races_a_worker_counts_what_the_worker_changed(site: Site) -> None:
    async def work() -> None:
        await site.app.enqueue([site.send.job(f"bad{number}") for number in range(300)])
        await drain(site.app)

    site.run(work())

    async def race() -> tuple[Any, int]:
        first = asyncio.ensure_future(drain(site.app))
        operations = site.app._core.operations
        from treadle.admin.selection import Selection

        chosen = Selection(query=Query(state=(State.FAILED,), task="send"), before=site.clock() + 1)
        begun = await operations.start("retry", chosen, tree=True, by="me", source="python")
        await ended(site, begun.id)
        await first
        return operations.get(begun.id), len((await site.app.jobs.list(state="ready", limit=1_000)).records)

    found, _ = site.run(race())
    assert found.state == "done"
    assert found.done >= 300


@shows("An operation during an outage of the storage fails with the reason, and what it has done stays done")
async def test_an_outage_fails_an_operation_with_the_reason(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await site.app.enqueue([site.send.options(delay=60).job(str(number)) for number in range(600)])

    site.run(work())
    storage: Any = site.storage
    find, calls = storage.find, []

    async def failing(query: Query) -> Any:
        calls.append(query)
        if len(calls) > 1:
            raise StorageUnavailable("the disk is gone")
        return await find(query)

    storage.find = failing
    status, begun = await post(site, {"act": "cancel", "filter": {"queue": "mail"}})
    assert status == 202
    site.run(ended(site, begun["id"]))
    del storage.find
    found = await site.get(f"/v1/operations/{begun['id']}")
    assert (found["state"], found["done"]) == ("failed", 500)
    assert "the disk is gone" in found["error"]
    [entry] = await entries(site)
    assert "the disk is gone" in entry["error"]


async def test_one_token_cannot_take_the_places_of_all_operations(site: Site) -> None:
    operations: Any = site.app._core.operations
    gate = asyncio.Event()
    audit = operations._audit
    begin = audit.begin

    begun = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    async def slow(act: Any) -> Any:
        loop.call_soon_threadsafe(begun.release)
        await gate.wait()
        return await begin(act)

    audit.begin = slow
    waiting = [asyncio.ensure_future(post(site, {"act": "retry", "ids": ["a"]}, "mail")) for _ in range(AT_ONCE)]
    for _ in waiting:
        await begun.acquire()
    status, answer = await post(site, {"act": "retry", "ids": ["a"]}, "mail")
    assert (status, answer["error"]) == (429, "too_many")
    waiting.append(asyncio.ensure_future(post(site, {"act": "retry", "ids": ["a"]}, "ops")))  # its first one
    await begun.acquire()
    assert (await post(site, {"act": "retry", "ids": ["a"]}, "ops"))[0] == 429
    site.run(_set(gate))
    assert {status for status, _ in await asyncio.gather(*waiting)} == {202}
    del audit.begin


async def _set(gate: asyncio.Event) -> None:
    gate.set()


async def test_ended_operations_are_deleted_after_an_hour(site: Site) -> None:
    found = await run(site, {"act": "retry", "ids": ["a"]})
    site.clock.advance(3_601)
    assert (await site.get("/v1/operations"))["operations"] == []
    assert (await site.client("GET", f"/v1/operations/{found['id']}", token="ops"))[0] == 404


# --- the audit log


@shows("Each changing act over HTTP has an entry in the audit log, stored before the act")
async def test_every_act_has_an_entry(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="treadle.audit")
    await site.fail(1)
    id = (await site.get("/v1/jobs?task=send"))["jobs"][0]["id"]
    calls: list[tuple[str, str, Any]] = [
        ("POST", f"/v1/jobs/{id}/retry", None),
        ("POST", f"/v1/jobs/{id}/cancel", {"tree": False}),
        ("DELETE", f"/v1/jobs/{id}", None),
        ("POST", "/v1/queues/mail/pause", None),
        ("POST", "/v1/queues/mail/resume", None),
        ("PUT", "/v1/limits/api", {"slots": 5}),
        ("POST", "/v1/limits/api/pause", None),
        ("POST", "/v1/limits/api/resume", None),
        ("DELETE", "/v1/limits/api", None),
        ("PUT", "/v1/schedules/nightly", {"job": {"task": "x", "kwargs": {"password": "p"}}, "cron": "0 3 * * *"}),
        ("POST", "/v1/schedules/nightly/pause", None),
        ("POST", "/v1/schedules/nightly/resume", None),
        ("POST", "/v1/schedules/nightly/trigger", None),
        ("DELETE", "/v1/schedules/nightly", None),
        ("POST", "/v1/jobs/unknown/retry", None),
    ]
    for method, path, body in calls:
        await site.client(method, path, body, token="ops")
    found = [(each["act"], each["target"], each["filter"], each["done"]) for each in reversed(await entries(site))]
    assert found == [
        ("job.retry", id, None, 1),
        ("job.cancel", id, "tree=false, force=false", 1),
        ("job.delete", id, None, 1),
        ("queue.pause", "mail", None, None),
        ("queue.resume", "mail", None, None),
        ("limit.set", "api", 'slots=5, per=1.0, how="window", hold="running", when_full="refuse"', None),
        ("limit.pause", "api", None, None),
        ("limit.resume", "api", None, None),
        ("limit.delete", "api", None, None),
        ("schedule.set", "nightly", 'cron="0 3 * * *", tz="UTC"', None),
        ("schedule.pause", "nightly", None, None),
        ("schedule.resume", "nightly", None, None),
        ("schedule.trigger", "nightly", None, None),
        ("schedule.delete", "nightly", None, None),
        ("job.retry", "unknown", None, None),
    ]
    last = (await entries(site))[0]
    assert "unknown" in last["error"]
    assert f"ops from api: job.retry {id}, 1 done" in caplog.messages


async def test_programs_that_send_jobs_are_not_recorded_and_a_person_at_a_page_is(site: Site) -> None:
    body = {"task": "send", "args": ["x"]}
    assert (await site.client("POST", "/v1/jobs", body, token="sender"))[0] == 201
    assert await entries(site) == []
    page = {"Sec-Fetch-Site": "same-origin"}
    assert (await site.client("POST", "/v1/jobs", body, token="sender", headers=page))[0] == 201
    [entry] = await entries(site)
    assert (entry["act"], entry["target"], entry["by"]) == ("job.enqueue", "send", "sender")


@shows("Entries of the audit log do not exist for a token that may not operate, also not as rows")
async def test_a_reader_sees_no_entry(site: Site) -> None:
    await site.client("POST", "/v1/queues/a/pause", token="ops")
    [entry] = await entries(site)
    for query in ("task=treadle.audit", "queue=treadle"):
        status, page = await site.client("GET", f"/v1/jobs?{query}", token="blind")
        assert (status, page["jobs"]) == (200, [])
    for path in ("", "/history", "/explain"):
        assert (await site.client("GET", f"/v1/jobs/{entry['id']}{path}", token="blind"))[0] == 404
        assert (await site.client("GET", f"/v1/jobs/{entry['id']}{path}", token="ops"))[0] == 200


async def test_entries_are_paged_and_kept_out_of_lists_and_acts(site: Site) -> None:
    for name in ("a", "b", "c"):
        await site.client("POST", f"/v1/queues/{name}/pause", token="ops")
    first = await site.get("/v1/audit?limit=2")
    assert [each["target"] for each in first["entries"]] == ["c", "b"]
    rest = await site.get(f"/v1/audit?cursor={first['cursor']}")
    assert ([each["target"] for each in rest["entries"]], rest["cursor"]) == (["a"], None)
    assert (await site.get("/v1/jobs"))["jobs"] == []
    assert (await site.get("/v1/jobs?count=true"))["total"] == 0
    assert len((await site.get("/v1/jobs?task=treadle.audit"))["jobs"]) == 3
    id = first["entries"][0]["id"]
    assert (await site.client("DELETE", f"/v1/jobs/{id}", token="ops"))[0] == 409
    found = await run(site, {"act": "delete", "filter": {"state": "succeeded"}})
    assert found["done"] == 0
    found = await run(site, {"act": "delete", "ids": [id]})
    assert found["passed_over"] == {"unknown job": 1}


async def test_an_act_whose_entry_cannot_be_stored_does_not_happen(site: Site) -> None:
    storage: Any = site.storage

    async def failing(jobs: Any) -> Any:
        raise StorageUnavailable("the disk is full")

    storage.enqueue = failing
    assert (await site.client("POST", "/v1/queues/mail/pause", token="ops"))[0] == 503
    del storage.enqueue
    assert (await site.get("/v1/limits"))["limits"] == []


async def _retried(site: Site, meanwhile: bool) -> tuple[list[str], int, Any]:
    """Retry a failed job over HTTP. Returns the calls of the storage, the status, and the entry. `meanwhile`: another
    caller retries it between the read and the change."""
    await site.fail(1)
    id = (await site.get("/v1/jobs?task=send"))["jobs"][0]["id"]
    await site.client(
        "POST", "/v1/queues/mail/resume", token="ops"
    )  # looks for old entries, which an act does once an hour
    storage, verbs = site.storage, list[str]()

    def noted(verb: str, inner: Any) -> Any:
        async def call(*args: Any) -> Any:
            verbs.append(verb)
            if meanwhile and verb == "settle" and verbs.count("settle") == 1:
                await site.app.jobs.retry(id)
                verbs[:] = ["enqueue", "get", "settle"]
            return await inner(*args)

        return call

    for verb in ("enqueue", "get", "settle"):
        setattr(storage, verb, noted(verb, getattr(storage, verb)))
    status, _ = await site.client("POST", f"/v1/jobs/{id}/retry", token="ops")
    for verb in ("enqueue", "get", "settle"):
        delattr(storage, verb)
    entry = (await entries(site))[0]
    assert (entry["act"], entry["target"]) == ("job.retry", id)
    assert entry["ended_at"] is not None
    return verbs, status, entry


@shows("A retry over HTTP reads the job once, and changes it and completes its audit entry in one call")
async def test_the_call_that_changes_a_job_completes_its_entry(site: Site) -> None:
    verbs, status, entry = await _retried(site, meanwhile=False)
    assert verbs == ["enqueue", "get", "settle"]
    assert (status, entry["done"], len(entry["ids"]), entry["error"]) == (200, 1, 1, None)


async def test_the_entry_of_an_act_that_was_overtaken_is_corrected(site: Site) -> None:
    _, status, entry = await _retried(site, meanwhile=True)
    assert status == 409
    assert (entry["done"], entry["ids"]) == (None, [])
    assert entry["error"].startswith("Stale: ")


async def test_a_process_that_dies_leaves_its_entry_open_for_90_days(site: Site) -> None:
    async def die() -> None:
        begun = asyncio.Event()

        async def act() -> None:
            async with site.app.audit.record("jobs.retry", by="somebody", filter="password=hunter2 x") as receipt:
                receipt.done = 7
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(act())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

    site.run(die())
    [entry] = await entries(site)
    assert (entry["ended_at"], entry["done"], entry["from"]) == (None, None, "python")
    assert entry["filter"] == "password=*** x"
    assert site.run(drain(site.app)) is not False
    for days, count in ((89, 1), (2, 1), (0, 0)):
        site.clock.advance(days * 86_400 + 61)
        site.run(site.app.storage.prune(100))
        assert [entry["ended_at"] for entry in await entries(site)] == [None] * count


async def test_only_the_caller_of_an_act_completes_its_entry(site: Site) -> None:
    """The list of acts names the id of each entry, also while the act lasts."""
    audit = site.app._core.audit
    begun = [
        site.run(audit.begin(Act(by, source, "jobs.delete")))
        for by, source in (("ops", "api"), ("blind-ops", "api"), ("blind-ops (anna@host)", "cli"), ("ops (x)", "api"))
    ]
    own = site.run(audit.begin(Act("ops (anna@host)", "cli", "jobs.delete")))
    said = []
    for each in (*begun, own):
        out = {"id": each.row.id, "version": each.row.version, "state": "succeeded", "result": '{"done":0}'}
        _, answer = await site.client("POST", "/v1/work/settle", {"outcomes": [out]}, token="ops")
        said.append(answer["settled"][0]["status"])
    assert said == ["refused"] * len(begun) + ["applied"]
    assert [each["ended_at"] is None for each in await entries(site)] == [False, *([True] * len(begun))]
