"""Mailboxes over HTTP: the native API, and Python programs whose storage is a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.kit import work
from tests.served import memory_url
from tests.server.test_incoming_rows import Caller, made, tokens, with_secret
from treadle import App, AskRefused, MailboxFull, Stale, current
from treadle.core import defaults
from treadle.server import Settings, Token
from treadle.server.auth.tokens import SCOPES, digest
from treadle_testkit.shows import shows


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def carts(app: App) -> Any:
    @app.task(name="cart")
    async def cart() -> list[str]:
        here, items = current(), list[str]()
        while True:
            ask = await here.receive_ask("add")
            if ask.value == "end":
                await ask.answer({"token": "secret", "items": len(items)})
                return items
            if ask.value == "":
                await ask.refuse("it has no name")
            else:
                items.append(ask.value)
                await here.publish("count", len(items))
                await ask.answer(len(items))

    return cart


@shows("messages, questions and published values over HTTP")
async def test_the_native_api_sends_asks_and_reads(session: aiohttp.ClientSession) -> None:
    url = memory_url(None, tokens(*SCOPES))
    call = Caller(url, session)
    async with made(with_secret(url)) as app:
        await _over_http(app, call)


async def _over_http(app: App, call: Caller) -> None:
    job = await carts(app).enqueue()
    path = f"/v1/jobs/{job.id}"
    assert await call(f"{path}/value?name=count", method="GET") == (
        408,
        {"error": "timeout", "message": f"job {job.id} has published no value 'count' yet"},
    )
    status, problem = await call(f"{path}/ask", {"name": "add", "value": "tea", "timeout": 0, "key": "k"})
    assert (status, problem["error"]) == (408, "timeout")
    async with work(app, concurrency=2, poll=0.05):
        assert await call(f"{path}/ask", {"name": "add", "value": "tea", "key": "k"}) == (200, {"value": 1})
        assert await call(f"{path}/send", {"name": "add", "value": "milk"}) == (200, {"jobs": 1})
        status, problem = await call(f"{path}/ask", {"name": "add", "value": ""})
        assert (status, problem["error"], problem["details"]["why"]) == (409, "ask_refused", "it has no name")
        assert await call(f"{path}/value?name=count", method="GET") == (200, {"value": 2})
        status, history = await call(f"{path}/history", method="GET")
        assert (status, history["values"]) == (200, {"count": 2})
        assert (await call(f"{path}/ask", {"name": "add", "value": "end"}))[0] == 200
        assert await job.result(10) == ["tea", "milk"]
    status, problem = await call(f"{path}/send", {"name": "add"})
    assert (status, problem["error"]) == (409, "stale")


@shows("a program whose storage is a server sends, asks and begins jobs, and a worker of another token receives")
async def test_a_program_and_a_worker_over_http(session: aiohttp.ClientSession) -> None:
    settings = tokens(*SCOPES)
    worker = Token(name="w", digest=digest("w"), scopes=("work", "enqueue", "read"))
    url = memory_url(None, Settings(tokens=(*settings.tokens, worker), max_wait=5))
    async with made(with_secret(url)) as app, App(url.replace("http://", "http://:w@")) as fleet:
        cart = carts(app)
        carts(fleet)
        async with work(fleet, concurrency=2, poll=0.05):
            spec = cart.options(id="cart-7")
            assert await app.jobs.ask(spec.job(), "add", "tea", timeout=20) == 1
            assert await app.jobs.ask(spec.job(), "add", "tea", timeout=20, key="k") == 2
            assert await app.jobs.ask(spec.job(), "add", "tea", timeout=20, key="k") == 2
            with pytest.raises(AskRefused, match="it has no name"):
                await app.jobs.ask("cart-7", "add", "", timeout=20)
            for number in range(40):  # the worker releases the rows of those that it has received
                await app.jobs.send("cart-7", "add", f"item {number}")
            assert await app.jobs.value("cart-7", "count", wait=20) >= 1
            assert (await app.jobs.ask("cart-7", "add", "end", timeout=20))["items"] == 42
        with pytest.raises(Stale):
            await app.jobs.ask("cart-7", "add", "late", timeout=20)


async def test_a_full_mailbox_is_the_same_error(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "MAX_MESSAGES", 2)
    url = memory_url(None, tokens(*SCOPES))
    async with made(with_secret(url)) as app:
        job = await carts(app).enqueue()
        for _ in range(2):
            await app.jobs.send(job, "add", "tea")
        with pytest.raises(MailboxFull):
            await app.jobs.send(job, "add", "tea")
        status, problem = await Caller(url, session)(f"/v1/jobs/{job.id}/send", {"name": "add", "value": "tea"})
    assert (status, problem["error"], problem["details"]["most"]) == (429, "mailbox_full", 2)
