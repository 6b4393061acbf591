"""Full queues over HTTP: the refusals, the time to wait, and the places that show them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.served import host
from tests.server.test_api import session
from treadle import App, QueueFull
from treadle.contrib.delayed.app import delayed_routes
from treadle.core.clock import wall
from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.model import NewJob
from treadle.server import Settings
from treadle.server.middleware import wait_for_room
from treadle.storage.http import HttpStorage
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

__all__ = ["session"]

FULL = QueueFull("mail", 3, 3, 1)


class Site:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session, self.app = session, App(storage=MemoryStorage())
        self.url = host().add(self.app, Settings(), protocols=[delayed_routes()])

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any, str | None]:
        async with self.session.request(method, self.url + path, json=body) as answer:
            return answer.status, await answer.json(), answer.headers.get("Retry-After")


@pytest.fixture
async def site(session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    site = Site(session)
    yield site
    host().run(site.app.close())


async def bound(site: Site, queue: str, most: int, **more: Any) -> None:
    assert (await site("PUT", f"/v1/limits/queue:{queue}", {"max_waiting": most, **more}))[0] == 200


@shows("over HTTP a full queue refuses one job or many with 429, and stores nothing of the call", area="Limits")
async def test_a_full_queue_refuses_one_job_and_many(site: Site) -> None:
    await bound(site, "mail", 2)
    job = {"task": "t", "queue": "mail"}
    assert (await site("POST", "/v1/jobs", job))[0] in (200, 201)
    status, answer, after = await site("POST", "/v1/jobs/batch", {"jobs": [job, job, {**job, "queue": "other"}]})
    assert (status, answer["error"], after) == (429, "queue_full", None)
    wanted = {"queue": "mail", "max_waiting": 2, "waiting": 1, "asked": 2, "retry_after": None}
    assert answer["details"] == wanted
    assert "raise the bound" in answer["message"]
    assert (await site("POST", "/v1/jobs", job))[0] in (200, 201)
    status, answer, after = await site("POST", "/v1/jobs", job)
    assert (status, answer["error"], after) == (429, "queue_full", None)
    [queue] = (await site("GET", "/v1/queues"))[1]["queues"]
    assert (queue["ready"], queue["max_waiting"], queue["when_full"]) == (2, 2, "refuse")


async def test_retry_after_is_the_end_of_a_rest(site: Site) -> None:
    """The client of the storage raises the same error with that time, and does not repeat the call."""
    await bound(site, "mail", 1)
    await site.app.storage.set_limits([Pause("queue:mail", "held", wall() + 500)])
    storage = HttpStorage(site.url)
    await storage.open()
    try:
        await storage.enqueue([NewJob(id="a", task="t", queue="mail")])
        with pytest.raises(QueueFull) as caught:
            await storage.enqueue([NewJob(id="b", task="t", queue="mail")])
        assert caught.value.waiting == 1
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 500
    finally:
        await storage.close()
    _, answer, header = await site("POST", "/v1/jobs", {"task": "t", "queue": "mail"})
    assert header is not None
    assert int(header) - 1 <= answer["details"]["retry_after"] <= int(header)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (LimitUse(key="queue:mail", rule=Limit("queue:mail", max_waiting=3)), None),
        (LimitUse(key="queue", rule=Limit("queue", rate=2, per=60, max_waiting=3), next_start=130.0), 30.0),
        (LimitUse(key="queue:mail", rule=Limit("queue:mail", rate=2, max_waiting=3)), None),
        (LimitUse(key="queue:mail", rule=Limit("queue:mail", slots=0), pauses=(Pause("queue:mail"),)), None),
        (
            LimitUse(
                key="queue:mail",
                rule=Limit("queue:mail", slots=0),
                pauses=(Pause("queue:mail"), Pause("queue:mail", "held", 109.0)),
            ),
            None,
        ),
        (
            LimitUse(key="queue:mail", rule=Limit("queue:mail", slots=0), pauses=(Pause("queue:mail", "held", 109.0),)),
            9.0,
        ),
    ],
)
def test_no_time_is_named_that_is_not_known(use: LimitUse, expected: float | None) -> None:
    assert wait_for_room(FULL, [use], 100.0) == expected
    assert wait_for_room(QueueFull("mail", 3, 0, 4), [use], 100.0) is None


async def test_the_delayed_protocol_answers_429_for_a_full_queue(site: Site) -> None:
    await bound(site, "delayed", 1)
    asked = {"payload": "x", "dueTime": wall() + 600}
    assert (await site("POST", "/", asked))[0] == 200
    status, answer, _ = await site("POST", "/", asked)
    assert status == 429
    assert list(answer) == ["message"]


async def test_full_queues_are_noticed(site: Site) -> None:
    """By the overview, the doctor and in `explain` of a job that was shed."""
    await bound(site, "mail", 1, when_full="drop_oldest")
    for id in ("a", "b"):
        await site("POST", "/v1/jobs", {"task": "t", "queue": "mail", "id": id})
    overview = (await site("GET", "/v1/overview"))[1]
    assert [each["text"] for each in overview["notices"] if "full" in each["text"]] == [
        "Queue 'mail' is full with 1 waiting job and cancels queued jobs for new ones."
    ]
    checks = (await site("GET", "/v1/doctor"))[1]["checks"]
    [found] = [each for each in checks if each["name"] == "bounds"]
    assert found["text"].startswith("queue 'mail' is full: 1 of 1 jobs wait")
    assert found["advice"].endswith("`treadle limits set queue:mail --max-waiting 2 --when-full drop_oldest`")
    text = (await site("GET", "/v1/jobs/a/explain"))[1]["text"]
    assert "queue mail was full: max_waiting is 1." in text
    assert "`treadle limits set queue:mail --max-waiting 2 --when-full drop_oldest` doubles its bound" in text


async def test_the_advice_for_a_full_queue_keeps_the_rest_of_the_rule_that_holds(site: Site) -> None:
    await site("PUT", "/v1/limits/queue", {"max_waiting": 1, "slots": 2, "rate": 5, "per": 60})
    job = {"task": "t", "queue": "mail"}
    await site("POST", "/v1/jobs", job)
    assert "in the rule 'queue:mail', or in the rule 'queue' if" in (await site("POST", "/v1/jobs", job))[1]["message"]
    checks = (await site("GET", "/v1/doctor"))[1]["checks"]
    [found] = [each for each in checks if each["name"] == "bounds"]
    assert found["advice"].endswith("`treadle limits set queue --slots 2 --rate 5 --per 60 --max-waiting 2`")


async def test_the_parts_that_a_new_rule_drops_are_named(site: Site) -> None:
    await site("PUT", "/v1/limits/queue", {"slots": 2})
    said = (await site("PUT", "/v1/limits/queue:mail", {"max_waiting": 4, "when_full": "drop_oldest"}))[1]
    assert "it had from the rule 'queue' slots 2 before" in said["warning"]
    said = (await site("PUT", "/v1/limits/queue:mail", {"max_waiting": 4}))[1]
    assert "it had when-full drop_oldest before" in said["warning"]
    assert (await site("PUT", "/v1/limits/queue:mail", {"max_waiting": 8}))[1] == {}


async def test_a_rule_without_numbers_is_refused(site: Site) -> None:
    assert (await site("PUT", "/v1/limits/queue:mail", {}))[0] == 422
    assert (await site("PUT", "/v1/limits/smtp", {"max_waiting": 5}))[0] == 422
    assert (await site("PUT", "/v1/limits/queue:mail", {"slots": 1, "when_full": "drop_oldest"}))[0] == 422
