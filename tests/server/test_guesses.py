"""No answer confirms a guess of what its caller may not read: arguments of a known job, or the message of an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fixtures import KINDS, a_storage
from tests.server.test_api import Client, session
from treadle import App, IdTaken, Retry, Worker
from treadle.server import Serving, Settings, Token, make_site
from treadle.server.auth.tokens import SCOPES, digest
from treadle_testkit.shows import shows

__all__ = ["session"]

BLIND = Token(name="blind", digest=digest("blind"), scopes=("read", "operate", "enqueue"), payloads=False)
TOKENS = (
    Token(name="admin", digest=digest("admin"), scopes=tuple(SCOPES)),
    Token(name="sender", digest=digest("sender"), scopes=("enqueue",)),
    Token(name="ops", digest=digest("ops"), scopes=("operate",)),
    BLIND,
)


class Site:
    def __init__(self, url: str, app: App, session: aiohttp.ClientSession) -> None:
        self.url, self.app, self.call = url, app, Client(url, session)


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Any, session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    with a_storage(request.param, tmp_path) as storage:
        app = App(storage=storage)
        async with app, Serving(make_site(app, Settings(tokens=TOKENS)), grace=1) as serving:
            yield Site(serving.url, app, session)


@shows("a token that may not read arguments cannot confirm a guess of them")
@pytest.mark.parametrize("name", ["sender", "blind"])
async def test_a_known_id_is_answered_alike_for_each_guess(site: Site, name: str) -> None:
    job = {"task": "pay", "id": "pay-1"}
    assert (await site.call("POST", "/v1/jobs", {**job, "args": [4711]}, "admin"))[0] == 201
    answers = []
    for guess in (1, 4711):
        single = await site.call("POST", "/v1/jobs", {**job, "args": [guess]}, name)
        both = [{"task": "pay", "args": [guess]}, {**job, "args": [guess]}]
        batch = await site.call("POST", "/v1/jobs/batch", {"jobs": both}, name)
        answers.append((single, batch))
    assert answers[0] == answers[1]
    assert [status for status, _ in answers[0]] == [422, 422]
    page = await site.app.jobs.list(task="pay")
    assert len(page.records) == 1, "nothing was stored with the refused calls"
    # Its own repeat is answered, and only with its own key.
    headers, mine = {"Idempotency-Key": "k1"}, {"task": "pay", "args": [7]}
    first = await site.call("POST", "/v1/jobs", mine, name, headers=headers)
    again = await site.call("POST", "/v1/jobs", mine, name, headers=headers)
    assert (first[0], again[0]) == (201, 200)
    assert first[1]["id"] == again[1]["id"]


async def test_a_known_id_of_the_worker_protocol_is_answered_alike_for_each_guess(site: Site) -> None:
    for id, nonce in (("pay-1", "a" * 32), ("pay-2", None)):
        stored = {"id": id, "task": "pay", "queue": "default", "payload": "[4711]", "nonce": nonce}
        status, said = await site.call("POST", "/v1/work/enqueue", {"jobs": [stored]}, "admin")
        assert status == 200, said
        for other in (None, "b" * 32):
            answers = []
            for guess in ("[1]", "[4711]"):
                job = {"id": id, "task": "pay", "queue": "default", "payload": guess, "nonce": other}
                status, answer = await site.call("POST", "/v1/work/enqueue", {"jobs": [job]}, "sender")
                answers.append((status, json.dumps(answer).replace(json.dumps(guess), "")))
            assert answers[0] == answers[1]
    own = {"id": "pay-3", "task": "pay", "queue": "default", "payload": "[1]", "nonce": "c" * 32}
    for _ in range(2):  # a call whose answer was lost is repeated
        status, answer = await site.call("POST", "/v1/work/enqueue", {"jobs": [own]}, "sender")
        assert status == 200, answer


async def test_a_client_that_only_sends_may_choose_ids_and_repeat_its_calls(site: Site) -> None:
    async with App(f"{site.url}?token=sender") as app:
        stub = app.stub("pay", id="mine")
        assert (await stub.enqueue(1)).created
        with pytest.raises(IdTaken):
            await stub.enqueue(1)
        assert (await app.stub("pay").enqueue(1)).created


@shows("a token without a right to payloads cannot confirm a guess of an error's message")
async def test_groups_of_failures_do_not_confirm_a_guess(site: Site) -> None:
    @site.app.task(name="fail", retry=Retry(attempts=1))
    async def fail(text: str) -> None:
        raise ValueError(text)

    async with Worker(site.app, poll=0.01):
        for text in ("card stolen", "card lost"):
            job = await fail.enqueue(text)
            with pytest.raises(Exception, match=text):
                await job.result(10)
    _, seen = await site.call("GET", "/v1/failures", token="admin")
    assert sorted(group["signature"] for group in seen["groups"]) == [
        "ValueError: card lost",
        "ValueError: card stolen",
    ]
    _, shown = await site.call("GET", "/v1/failures", token="blind")
    [group] = shown["groups"]
    assert (group["signature"], group["jobs"]) == ("ValueError", 2)
    assert group["key"] not in {each["key"] for each in seen["groups"]}
    ask = {"act": "retry", "created_before": 9e9, "dry": True}
    for name in ("blind", "ops"):
        for each in seen["groups"]:
            body = {**ask, "group": {"key": each["key"]}}
            assert (await site.call("POST", "/v1/operations", body, name))[0] == 404
        status, preview = await site.call("POST", "/v1/operations", {**ask, "group": {"key": group["key"]}}, name)
        assert (status, preview["matches"]) == (200, 2)
        for word in ("stolen", "absent"):
            body = {**ask, "filter": {"q": word}}
            assert (await site.call("POST", "/v1/operations", body, name))[1]["matches"] == 0
