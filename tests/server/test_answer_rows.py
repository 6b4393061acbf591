"""The rows that take answers or remember keys: another caller's row counts for no message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.served import memory_url
from tests.server.test_incoming_rows import Caller, made, tokens, with_secret
from treadle import App, BadOption, ForeignRow, current
from treadle.core.model import NewJob, Outcome, State
from treadle.server.auth.tokens import SCOPES
from treadle.server.system_rows import born
from treadle.testing import drain
from treadle.workflow.mailbox import ANSWER, new_message
from treadle.workflow.signals import signal_id


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def receiver(app: App) -> Any:
    @app.task(name="receiver")
    async def receive() -> Any:
        return await current().receive("add")

    return receive


def test_a_key_belongs_to_one_name_of_one_job() -> None:
    tags = {
        new_message(job, name, "1", key).tag
        for job, name, key in (("a", "b c", "d"), ("a b", "c", "d"), ("a", "b", "c d"))
    }
    assert len(tags) == 3


@pytest.mark.parametrize(
    ("queue", "task", "job", "name"),
    [
        ("other", "", "", "add"),
        ("default", "t", "", "add"),
        ("default", "", "another", "add"),
        ("default", "", "", "x"),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
async def test_a_row_of_another_caller_is_refused(
    app: App, queue: str, task: str, job: str, name: str, waits: bool
) -> None:
    own = await receiver(app).enqueue()
    if waits:
        await drain(app)
    payload = json.dumps({"job": job or own.id, "signal": name, "nonce": "n"})
    row = NewJob(id=ANSWER + new_message(own.id, "add", "1", "k").tag, task=task, queue=queue, payload=payload)
    storage = app._core.storage
    await storage.enqueue([row])
    with pytest.raises(ForeignRow):
        await app.jobs.send(own, "add", 1, key="k")
    await storage.settle([Outcome(id=row.id, version=0, state=State.SUCCEEDED, result='"forged"')])
    with pytest.raises(ForeignRow):
        await app.jobs.ask(own, "add", 1, key="k", timeout=0)
    await app.jobs.cancel(own)
    with pytest.raises(ForeignRow):
        await app.jobs.ask(own, "add", 1, key="k", timeout=0)


async def test_a_server_refuses_an_answer_in_another_queue_than_its_job(session: aiohttp.ClientSession) -> None:
    url = memory_url(None, tokens(*SCOPES))
    call = Caller(url, session)
    async with made(with_secret(url)) as app:
        own = await receiver(app).enqueue()
        for job in (own.id, "new"):
            payload = json.dumps({"job": job, "signal": "add", "nonce": "n"})
            row = {"id": ANSWER + 40 * "0", "task": "", "queue": "other", "payload": payload}
            jobs = [row] if job == own.id else [row, {"id": "new", "task": "t", "queue": "default"}]
            status, _ = await call("/v1/work/enqueue", {"jobs": jobs})
            assert status == (409 if job == own.id else 422)


def test_an_answer_is_born_with_its_own_message_only() -> None:
    payload = json.dumps({"job": "a", "signal": "add", "nonce": "n"})
    row = NewJob(id=ANSWER + 40 * "0", task="", payload=payload)

    def scope(id: str) -> str:
        return born(row, Outcome(id=id, version=0, state=State.SUCCEEDED), None)

    assert scope(signal_id("a", "add", 7)) == "operate"
    for id in (signal_id("b", "add", 7), signal_id("a", "x", 7), "a"):
        with pytest.raises(BadOption):
            scope(id)
