"""A request that waited is answered with the rights that its token has then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from tests.server.test_api import Client, session
from tests.waiting import Signal
from treadle import App
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.server import Serving, Settings, Token, make_site
from treadle.server.auth.tokens import SCOPES, digest
from treadle.server.longpoll import LongPoll, WaitingLine
from treadle_testkit.shows import shows

__all__ = ["session"]

ADMIN = Token(name="admin", digest=digest("admin"), scopes=tuple(SCOPES))
WORKER = Token(name="worker", digest=digest("worker"), scopes=tuple(SCOPES))
QUEUEY = {"runner_id": "0f0e0d0c-0b0a-4908-8706-050403020100"}


class Changing:
    """Tokens that a test changes, in place of a file of tokens; `file` is where that would be."""

    def __init__(self, file: Path) -> None:
        self.file, self.tokens = file, (WORKER,)

    def __call__(self) -> tuple[Token, ...]:
        return self.tokens


class Late:
    """A server whose tokens change while requests wait."""

    def __init__(self, url: str, app: App, session: aiohttp.ClientSession, tokens: Changing) -> None:
        self.call, self.app, self._tokens = Client(url, session), app, tokens
        self.rests, self.hints = Signal(), Signal()

    def set(self, *tokens: Token) -> None:
        self._tokens.tokens = tokens

    async def state(self, id: str) -> Any:
        return (await self.call("GET", f"/v1/jobs/{id}", token="admin"))[1]


@pytest.fixture
async def late(monkeypatch: pytest.MonkeyPatch, session: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Late]:
    app, tokens = App("memory://"), Changing(tmp_path / "tokens.toml")
    async with app:
        settings = Settings(tokens=(ADMIN,), token_file=tokens, max_wait=30)  # type: ignore[arg-type]
        site = make_site(app, settings, protocols=[queue_routes(Rules())])
        async with Serving(site, on_stop=site.state.waiting.stop, grace=1) as serving:
            found = Late(serving.url, app, session, tokens)
            found.rests.around(monkeypatch, WaitingLine, "rest")
            found.hints.around(monkeypatch, LongPoll, "unless_stopped")
            yield found


CHANGES = [
    ((), 401),
    ((replace(WORKER, queues=("other",)),), 503),
    ((replace(WORKER, payloads=False),), 503),
    ((replace(WORKER, expires=1.0),), 401),
]


@shows("a request that waited is answered with the rights that its token has by then")
@pytest.mark.parametrize(("tokens", "status"), CHANGES)
async def test_a_waiting_claim_of_a_changed_token_is_released(late: Late, tokens: Any, status: int) -> None:
    ask = {"worker": "w#1", "queues": [["default", 1]], "limit": 1, "wait": 30}
    claim = asyncio.ensure_future(late.call("POST", "/v1/work/claim", ask, "worker"))
    await late.rests.until(lambda: late.rests.sent, "a claim that waits")
    late.set(*tokens)
    _, job = await late.call("POST", "/v1/jobs", {"task": "t", "args": ["private"]}, "admin")
    answer = await claim
    assert answer[0] == status
    assert "private" not in str(answer)
    found = await late.state(job["id"])
    assert (found["state"], found["attempt"], found["lost"]) == ("ready", 0, 0)


@pytest.mark.parametrize(("tokens", "status"), CHANGES)
async def test_a_waiting_claim_of_a_runner_protocol_is_released(late: Late, tokens: Any, status: int) -> None:
    claim = asyncio.ensure_future(late.call("POST", "/jobs/claim?wait=20", QUEUEY, "worker"))
    await late.rests.until(lambda: late.rests.sent, "a claim that waits")
    late.set(*tokens)
    made, job = await late.call("POST", "/jobs/create", {"binary_addr": "sha256:" + "0" * 64}, "admin")
    assert made < 300, job
    assert (await claim)[0] == status
    again, _ = await late.call("POST", "/jobs/claim", QUEUEY, "admin")
    assert again == 200, "the job was released"


@pytest.mark.parametrize(("tokens", "status"), CHANGES)
async def test_the_end_of_a_job_is_not_sent_to_a_changed_token(late: Late, tokens: Any, status: int) -> None:
    _, job = await late.call("POST", "/v1/jobs", {"task": "t"}, "admin")
    wait = asyncio.ensure_future(late.call("GET", f"/v1/jobs/{job['id']}/wait?timeout=20", token="worker"))
    watch = asyncio.ensure_future(
        late.call("POST", "/v1/work/watch", {"topics": [f"job:{job['id']}"], "timeout": 20}, "worker")
    )
    await late.hints.until(lambda: late.hints.sent >= 2, "two requests that wait")
    late.set(*tokens)
    _, claimed = await late.call("POST", "/v1/work/claim", {"worker": "w#1", "queues": [["default", 1]]}, "admin")
    [row] = claimed["records"]
    done = {"id": job["id"], "version": row["version"], "state": "succeeded", "result": '"private"'}
    await late.call("POST", "/v1/work/settle", {"outcomes": [done]}, "admin")
    for answer in (await wait, await watch):
        assert answer[0] == status
        assert "private" not in str(answer)


async def test_a_body_that_arrives_after_its_token_was_removed_is_refused(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.server.operation.SLOW", 0.0)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"task":'
        late.set()
        yield b'"t","id":"late"}'

    headers = {"Authorization": "Bearer worker", "Content-Type": "application/json"}
    async with late.call.session.post(late.call.url + "/v1/jobs", data=slow(), headers=headers) as answer:
        assert answer.status == 401
    assert (await late.call("GET", "/v1/jobs/late", token="admin"))[0] == 404
