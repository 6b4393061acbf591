"""A worker in real server processes: two of them, a reload, and a stop while a job runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until_blocking
from treadle import App

PROGRAM = """
import asyncio, os
from fastapi import FastAPI
from treadle import App
from treadle.integrations.starlette import lifespan

jobs = App("sqlite:///jobs.db?synchronous=normal")

@jobs.task(name="where")
async def where() -> int:
    return os.getpid()

@jobs.task(name="long")
async def long() -> None:
    await asyncio.sleep(3600)

web = FastAPI(lifespan=lifespan(jobs, worker={"concurrency": 3, "grace": 0.1, "poll": 0.1}))

@web.get("/")
async def version() -> str:
    return "one"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform == "win32", reason="stops its processes by SIGTERM"),
]


class Server:
    """`uvicorn web:web` in a folder, with an app of this process on the same storage."""

    def __init__(self, folder: Path, words: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "web.py").write_text(PROGRAM)
        self.folder, self.log, self.url = folder, folder / "log", f"http://127.0.0.1:{port}/"
        self.jobs = App(f"sqlite:///{folder}/jobs.db?synchronous=normal")
        with self.log.open("wb") as out:
            command = [sys.executable, "-m", "uvicorn", "web:web", "--port", str(port), *words]
            self.process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=dict(os.environ))

    def until(self, seen: Callable[[], Any], what: str) -> Any:
        try:
            return until_blocking(seen, what, 120)
        except BaseException as error:
            error.add_note(self.log.read_text())
            raise

    def text(self) -> str | None:
        """The answer of the application; None: there is none yet."""
        try:
            with urllib.request.urlopen(self.url) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    @property
    def workers(self) -> set[str]:
        return {worker.worker for worker in self.jobs.sync.queues.stats().workers}

    def stop(self) -> str:
        """Stop it by SIGTERM -> its log."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self.log.read_text()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*words: str) -> Server:
        made.append(Server(tmp_path, words))
        made[0].until(made[0].text, "an answer of the server")
        return made[0]

    yield start
    for server in made:
        server.process.kill()
        server.process.wait()
        server.jobs.sync.close()


def test_each_server_process_has_a_worker_and_a_stop_releases_running_jobs(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2")
    server.until(lambda: len(server.workers) == 2, "two workers")
    jobs = server.jobs.sync
    assert server.jobs.stub("where").enqueue_sync().result_sync(30) != server.process.pid
    long = server.jobs.stub("long").enqueue_sync()
    server.until(lambda: jobs.jobs.get(long).state == "running", "the job runs")
    log = server.stop()
    assert server.process.returncode in (0, -signal.SIGTERM), log
    assert "Traceback" not in log, log
    row = jobs.jobs.get(long)
    assert (row.state, row.attempt, row.lost) == ("ready", 0, 0)
    assert server.workers == set()


def test_a_reload_stops_the_worker_and_starts_another(serve: Callable[..., Server]) -> None:
    server = serve("--reload")
    before = server.workers
    assert len(before) == 1
    (server.folder / "web.py").write_text(PROGRAM.replace('return "one"', 'return "two, reloaded"'))
    server.until(lambda: server.text() == '"two, reloaded"', "the new program")
    server.until(lambda: len(server.workers) == 1 and server.workers != before, "one worker, a new one")
    assert server.jobs.stub("where").enqueue_sync().result_sync(30)
    assert "Traceback" not in server.stop()
