"""Only SQLite opens the files of a database that this process has open.

Closing any other descriptor of one would drop all locks that the process holds on it. The next process that closes the
database would then take itself for the last one, and delete the log under this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import Command
from tests.served import host
from treadle import App
from treadle.cli.root import run
from treadle.contrib.mcp.acts import TOOLS as ACTING
from treadle.contrib.mcp.calls import CallRefused, Rights
from treadle.contrib.mcp.reading import TOOLS as READING
from treadle.contrib.mcp.server import Tools
from treadle.server import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

JOBS, BATCH = int(os.environ.get("TEST_JOBS", "5000")), 100
STREAMS = ("/v1/overview/events", "/v1/jobs/{id}/events")  # they end only with their client
BODIES: dict[str, Any] = {
    "/v1/jobs": {"task": "t", "args": [2]},
    "/v1/jobs/batch": {"jobs": [{"task": "t", "args": [3]}]},
    "/v1/operations": {"act": "retry", "filter": {"status": "failed"}},
    "/v1/schedules/preview": {"every": 60.0},
    "/v1/schedules/{name}": {"job": {"task": "t"}, "every": 60.0},
    "/v1/limits/{name}": {"slots": 1},
    "/v1/work/claim": {"worker": "w#1", "queues": [["q", 1]], "tasks": {"t": [1, 9.0]}, "limit": 1, "lease": 9.0},
    "/v1/work/heartbeat": {"worker": {"worker": "w"}, "renewals": [], "lease": 9.0},
    "/v1/work/watch": {"topics": ["job:a"], "timeout": 0.0},
    "/v1/work/get": {"ids": ["a"]},
    "/v1/work/prune": {"limit": 5},
}
COMMANDS = (
    ("doctor",),
    ("doctor", "--full"),
    ("doctor", "--repair"),
    *(("storage", name) for name in ("migrate", "metrics", "audit", "blobs")),
    *((name,) for name in ("queues", "limits", "schedules")),
    *(("queues", name) for name in ("stats", "workers", "plan")),
    *((name, "list") for name in ("jobs", "queues", "limits", "schedules")),
    ("jobs", "workflows"),
)
PROBE = """
import fcntl, os, sys
for path, start, count in ((sys.argv[1], 0x40000002, 510), (sys.argv[1] + "-shm", 128, 1)):
    try:
        fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
        print(path, "is not locked")
    except BlockingIOError:
        pass
"""


SHOP = """
from treadle import App
app = App("sqlite:///{path}")
@app.task(name="t")
async def t(n: int) -> None: ...
"""


class Opened:
    """The paths that Python code of this process opens."""

    def __init__(self) -> None:
        self.paths: list[str] | None = None
        sys.addaudithook(self._hear)  # it cannot be removed

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if self.paths is not None and event == "open" and isinstance(given[0], str | bytes | os.PathLike):
            self.paths.append(os.path.realpath(os.fsdecode(given[0])))


audit = functools.cache(Opened)


@contextlib.contextmanager
def only_sqlite_opens(path: Path) -> Iterator[None]:
    """Fail if Python code opens the database or its index, if a lock is lost, or if an open file has no name."""
    audit().paths = paths = list[str]()
    try:
        yield
    finally:
        audit().paths = None
    found = {each for each in paths if each in (str(path), f"{path}-shm")}
    assert not found
    assert subprocess.check_output([sys.executable, "-c", PROBE, path], text=True) == ""
    folder = Path("/proc/self/fd")
    names = [os.readlink(each) for each in folder.iterdir() if each.is_symlink()]
    assert not [name for name in names if name.startswith(str(path)) and name.endswith("(deleted)")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return (tmp_path / "jobs.db").resolve()


@pytest.fixture
def app(path: Path) -> App:
    app = App(f"sqlite:///{path}")

    @app.task(name="t")
    async def t(n: int) -> None: ...

    return app


def asked(url: str, method: str, body: Any = None) -> int:
    data = None if method in ("get", "delete") else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method.upper())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_no_route_of_the_api_opens_the_file(app: App, path: Path) -> None:
    url = host().add(app, Settings(max_wait=1))
    job = host().run(app.stub("t").enqueue(1)).id
    with urllib.request.urlopen(f"{url}/v1/openapi.json") as answer:
        routes = json.load(answer)["paths"]
    with only_sqlite_opens(path):
        codes = {}
        for route, methods in routes.items():
            place = route.replace("{id}", job).replace("{name}", "n")
            if route not in STREAMS:
                codes |= {(route, each): asked(url + place, each, BODIES.get(route)) for each in methods}
    assert {code for code in codes.values() if code >= 500} == set()
    assert codes["/v1/doctor", "get"] == 200
    assert sum(code < 300 for code in codes.values()) > 40
    host().run(app.close())


async def test_no_tool_for_assistants_opens_the_file(app: App, path: Path) -> None:
    async with app:
        job = (await app.stub("t").enqueue(1)).id
        tools = Tools(app, Rights(acts=True))
        names = {"name": "default", "queue": "default", "id": job, "ids": [job], "signal": "go"}
        with only_sqlite_opens(path):
            for tool in await tools.all():
                given = {key: names[key] for key in tool.input_schema["required"] if key in names}
                with contextlib.suppress(CallRefused):
                    await tools.call(tool.name, given)
            assert (await tools.call("doctor", {}))["checks"]
        assert len(await tools.all()) == len(READING) + len(ACTING)


@pytest.mark.slow
def test_no_command_opens_the_file_in_a_program_that_has_it_open(app: App, path: Path) -> None:
    """A program may call a command itself."""
    app.sync.enqueue(app.stub("t").job(1))
    with only_sqlite_opens(path):
        codes = {command: run([*command, "--url", f"sqlite:///{path}"]) for command in COMMANDS}
    assert [codes["doctor",], codes["doctor", "--full"], codes["doctor", "--repair"]] == [0, 0, 0]
    assert sum(code == 0 for code in codes.values()) > 10
    app.sync.close()


async def test_the_guard_notices_a_descriptor(app: App, path: Path) -> None:
    """It can fail."""
    async with app:
        await app.stub("t").enqueue(1)
        with pytest.raises(AssertionError), only_sqlite_opens(path):
            await asyncio.to_thread(path.read_bytes)


@pytest.mark.slow
def test_no_confirmed_job_is_lost_while_health_is_polled(path: Path, tmp_path: Path) -> None:
    """Other processes open and close the file meanwhile, and the server is killed. TEST_JOBS=100000 stores as many."""
    confirmed = set[str]()
    (tmp_path / "shop.py").write_text(SHOP.format(path=path))
    visitor = [sys.executable, "-m", "treadle", "queues", "stats", "--url", f"sqlite:///{path}"]
    with Command("server", "--app", "shop:app", "--port", "0", cwd=tmp_path, PYTHONPATH=str(tmp_path)) as server:
        url = re.findall(r"http://[\w.:]+", server.wait_for("http://"))[0]
        visits = subprocess.Popen(visitor, stdout=subprocess.DEVNULL)
        try:
            for batch in range(JOBS // BATCH):
                body = {"jobs": [{"task": "t", "args": [batch * BATCH + number]} for number in range(BATCH)]}
                confirmed |= {each["id"] for each in answer(f"{url}/v1/jobs/batch", body)["jobs"]}
                answer(f"{url}/v1/doctor")
                if visits.poll() is not None:
                    visits = subprocess.Popen(visitor, stdout=subprocess.DEVNULL)
        finally:
            visits.wait(60)
        server.process.kill()
        server.process.wait()
    with contextlib.closing(sqlite3.connect(path)) as db:
        stored = {id for (id,) in db.execute("SELECT id FROM job")}
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert len(confirmed) == JOBS // BATCH * BATCH
    assert confirmed - stored == set()


def answer(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as found:
        return json.load(found)
