"""Durable functions in JavaScript and in shell, whose process is killed by SIGKILL at each of its effects."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.ledger import kills
from tests.fixtures import LASTING, a_url
from treadle import App
from treadle.server import Serving, Settings, make_site
from treadle_testkit.shows import shows

RUNNERS = Path(__file__).parents[2] / "examples/runners"
COMMANDS = {"node": ("node", str(RUNNERS / "runner.mjs")), "sh": ("sh", str(RUNNERS / "durable.sh"))}
TASKS = {"node": "order.ship", "sh": "ship"}
EFFECTS = {
    "node": ["charge/7", "reserve/7", "label/7/Rome", "send/label-7-Rome"],
    "sh": ["charge/7", "label/7/Rome", "send/label-7-Rome"],
}


class Shop:
    """The world outside: each request is an effect. It kills the runner instead of answering the one with this number,
    and refuses effects that begin with `refuses`."""

    def __init__(self, kill_at: int = 0, refuses: str = "nothing") -> None:
        self.kill_at, self.refuses = kill_at, refuses
        self.effects: list[str] = []
        self.runner: asyncio.subprocess.Process | None = None
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        effect = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().strip("/")
        self.effects.append(effect)
        if len(self.effects) == self.kill_at and self.runner is not None:
            os.killpg(self.runner.pid, signal.SIGKILL)
        text = effect.replace("/", "-").encode()
        status = b"409 Conflict" if effect.startswith(self.refuses) else b"200 OK"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(text), text))
        writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self.answer, "127.0.0.1") as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield

    @asynccontextmanager
    async def run(self, server: str, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        env = {**os.environ, "TREADLE_SERVER": server, "TREADLE_LEASE": "1", "SHOP": self.url}
        self.runner = child = await asyncio.create_subprocess_exec(*command, env=env, start_new_session=True)
        try:
            yield child
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


async def ended(shop: Shop, language: str, url: str, address: str | None) -> object:
    """Run an order to its end, and start the runner again where it was killed."""
    async with App(url) as app, Serving(make_site(app, Settings(max_wait=1)), grace=1) as serving:
        order: object = "7" if language == "sh" else 7
        job = await app.stub(TASKS[language]).enqueue(order)
        if address is not None:
            await app.jobs.signal(job.id, "address", address)
        async with shop.open():
            if shop.kill_at:
                async with shop.run(serving.url, *COMMANDS[language]) as runner:
                    assert await asyncio.wait_for(runner.wait(), 60) == -signal.SIGKILL
            async with shop.run(serving.url, *COMMANDS[language]):
                row = await job.ended(60)
                return row.result if row.error is None else row.error.splitlines()[-1]


def installed(language: str) -> None:
    if shutil.which(language) is None or shutil.which("curl") is None:
        pytest.skip(f"{language} or curl is not installed here")


@pytest.mark.slow
@shows("durable functions in JavaScript and in shell that are killed at any effect continue behind the last step")
@kills
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize(
    ("language", "line"), [(language, line) for language in EFFECTS for line in range(1, len(EFFECTS[language]) + 1)]
)
async def test_a_killed_runner_continues(tmp_path: Path, storage: str, language: str, line: int) -> None:
    installed(language)
    shop, effects = Shop(kill_at=line), EFFECTS[language]
    with a_url(storage, tmp_path) as url:
        assert await ended(shop, language, url, "Rome") == '"send-label-7-Rome"'
    assert shop.effects == [*effects[:line], *effects[line - 1 :]], "only the effect that was killed has run twice"


@pytest.mark.slow
@shows("a failure that a function in JavaScript has caught is history: after a kill no run tries the step again")
@kills
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", [1, 2, 3])
async def test_a_killed_saga_in_javascript(tmp_path: Path, storage: str, line: int) -> None:
    installed("node")
    shop = Shop(kill_at=line, refuses="reserve/")
    effects = ["charge/7", "reserve/7", "refund/charge-7"]
    with a_url(storage, tmp_path) as url:
        error = await ended(shop, "node", url, "Rome")
    assert "reserve/7: 409" in str(error)
    assert shop.effects == [*effects[:line], *effects[line - 1 :]]
