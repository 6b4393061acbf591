"""kill -9 of the server under load, and a full disk: all that was answered with 200 is stored, and nothing is half
stored.

Each storage has a real server process, with clients that post through every protocol, on a file system of a few
megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.server.fleet_kit import CLEAN, Command
from tests.servers import postgres, valkey
from tests.servers.process import free_port
from tests.waiting import Signal, until
from treadle import App
from treadle.contrib.delayed.ids import id_of
from treadle.core.model import Claim, Record
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

REQUESTS = 1_000
CLIENTS = 8
QUEUES = ("plain", "delayed", "wasi")
_names = itertools.count()


def storage_url(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'jobs.db'}"
    return postgres.database() if kind == "postgres" else f"{valkey.url()}?ns=crash-{os.getpid()}-{next(_names)}"


class Load:
    """Clients that post this many requests, to whatever server is running."""

    def __init__(self, url: str) -> None:
        self.url, self.sent, self.unanswered = url, 0, 0
        self.stored: set[str] = set()  # ids that were answered with 200 or 201
        self.up, self._more = asyncio.Event(), Signal()  # a server is there; another id is stored
        self.refused: list[tuple[int, str]] = []

    def request(self, number: int) -> tuple[str, dict[str, Any], Callable[[Any], str | None]]:
        if number % 3 == 0:
            return "/v1/jobs", {"task": "t", "queue": "plain", "args": [number]}, lambda answer: answer["id"]
        if number % 3 == 1:
            due = {"payload": {"n": number}, "dueTime": int(time.time()) + 8}
            return "/", due, lambda answer: id_of(answer["jobId"])
        return "/jobs/create", {"binary_addr": f"{number:064x}"}, lambda answer: answer["job_id"]

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            await asyncio.gather(*(self._client(session) for _ in range(CLIENTS)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self.sent < REQUESTS:
            self.sent += 1
            path, body, id_in = self.request(self.sent)
            try:
                async with session.post(self.url + path, json=body) as got:
                    answer = await got.json()
                    if got.status in (200, 201):
                        id = id_in(answer)
                        assert id is not None
                        self.stored.add(id)
                        self._more.send()
                    else:
                        self.refused.append((got.status, str(answer)))
            except aiohttp.ClientConnectorError:
                self.sent -= 1  # nobody was there to hear it
                await self.up.wait()
            except (aiohttp.ClientError, OSError):
                self.unanswered += 1  # it may be stored or not

    async def reaches(self, number: int) -> None:
        await self._more.until(lambda: len(self.stored) >= number, f"{number} stored jobs", 90)


async def served(folder: Path, *words: str) -> Command:
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=CLEAN,
    )
    made = Command(process)
    try:
        await made.says("http://")
    except BaseException:
        await made.stop(signal.SIGKILL)
        raise
    return made


def server(url: str, port: int) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "treadle",
        "server",
        "--url",
        url,
        "--protocol",
        "queuey",
        "--protocol",
        "delayed",
        "--api",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--quiet",
    )


async def rows_of(app: App) -> dict[str, Record]:
    """All rows that clients have stored, without Treadle's own, such as the one for the leader."""
    return {row.job.id: row async for row in app.jobs.iterate() if row.job.queue in QUEUES}


async def claim_all(app: App, number: int) -> set[str]:
    """Everything that is stored can be claimed, each once: a row that no line and no clock knows would not come."""
    found, turns = list[str](), itertools.count()

    async def all_claimed() -> bool:
        ask = Claim(worker=f"all#{next(turns)}", queues=tuple((queue, 500) for queue in QUEUES), limit=500, lease=600)
        found.extend(row.job.id for row in (await app.storage.claim(ask)).records)
        return len(found) >= number

    await until(all_claimed, f"{number} claimed jobs")  # some are due in eight seconds
    assert len(found) == len(set(found))
    return set(found)


@shows("a server that is killed has stored each job that it acknowledged", area="Crashes and outages")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
async def test_a_killed_server_has_stored_each_acknowledged_job(kind: str, tmp_path: Path) -> None:
    url, port = storage_url(kind, tmp_path), free_port()
    load = Load(f"http://127.0.0.1:{port}")
    running = await served(tmp_path, *server(url, port))
    load.up.set()
    working = asyncio.create_task(load.run())
    try:
        for share in (0.25, 0.65):
            await load.reaches(int(share * REQUESTS * random.uniform(0.7, 1.0)))
            load.up.clear()
            await running.stop(signal.SIGKILL)
            running = await served(tmp_path, *server(url, port))
            load.up.set()
        await asyncio.wait_for(working, 120)
    finally:
        working.cancel()
        await running.stop(signal.SIGKILL)
    assert not load.refused, load.refused[:3]
    assert load.unanswered, "no kill met a request"
    async with App(url) as app:
        rows = await rows_of(app)
        missing = load.stored - rows.keys()
        assert not missing, f"{len(missing)} jobs were answered and are not there: {sorted(missing)[:3]}"
        assert len(rows) - len(load.stored) <= load.unanswered
        assert await claim_all(app, len(rows)) == rows.keys()
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# --- a full disk


@contextlib.asynccontextmanager
async def small_disk(folder: Path, megabytes: int, *words: str) -> AsyncIterator[tuple[Command, Path]]:
    """Run a command in `folder`, a file system of this size for the command alone. Yield it, and the path to the
    folder."""
    within = [shutil.which("unshare") or "", "--user", "--map-root-user", "--mount"]
    if not within[0] or subprocess.run([*within, "true"], capture_output=True, check=False).returncode:  # noqa: ASYNC221
        pytest.skip("no file system of our own can be had here (unshare --user --mount)")
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && cd "$0" && exec "$@"'
    running = await served(folder, *within, "sh", "-c", mount, str(folder), *words)
    try:
        yield running, Path(f"/proc/{running.process.pid}/root{folder}")
    finally:
        await running.stop()


def fill(disk: Path) -> Path:
    """Fill the disk."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    return ballast


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    async with session.post(url, json=body) as got:
        return got.status, await got.json()


@shows(
    "a server on a full disk answers 503, stores nothing, and works again once there is room",
    area="Crashes and outages",
)
async def test_a_full_disk_is_503_and_nothing_is_stored_until_there_is_room(tmp_path: Path) -> None:
    port, stored = free_port(), set[str | None]()
    url = f"http://127.0.0.1:{port}"
    bodies = {
        "/v1/jobs": {"task": "t", "queue": "plain", "args": ["x" * 20_000]},
        "/": {"payload": "x" * 20_000, "dueTime": int(time.time()) + 3_600},
    }
    async with (
        small_disk(tmp_path, 12, *server(f"sqlite:///{tmp_path / 'jobs.db'}", port)) as (running, disk),
        aiohttp.ClientSession() as session,
    ):

        async def try_all() -> list[int]:
            statuses = []
            for path, body in bodies.items():
                status, answer = await post(session, url + path, body)
                if status < 300:
                    stored.add(answer["id"] if path != "/" else id_of(answer["jobId"]))
                statuses.append(status)
            return statuses

        assert await try_all() == [201, 200]
        for _ in range(3):  # the disk fills up again
            ballast = fill(disk)
            for _ in range(1_000):  # until the log of the database has no room left
                if (found := await try_all()) == [503, 503]:
                    break
            assert found == [503, 503]
            async with session.get(f"{url}/healthz") as got:
                assert got.status == 200
            ballast.unlink()
            assert await try_all() == [201, 200]  # without a restart
        assert running.process.returncode is None
        listed, cursor = set[str | None](), ""
        while cursor is not None:
            async with session.get(f"{url}/v1/jobs?limit=100" + (f"&cursor={cursor}" if cursor else "")) as got:
                page = await got.json()
            listed |= {job["id"] for job in page["jobs"] if job["queue"] in QUEUES}
            cursor = page.get("cursor")
        assert listed == stored
        shutil.copytree(disk, tmp_path / "copy", ignore=shutil.ignore_patterns("treadle-blobs", "*-wake"))
        with contextlib.closing(sqlite3.connect(tmp_path / "copy" / "jobs.db")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert await running.stop() == 0


async def test_a_full_disk_keeps_no_half_of_a_blob(tmp_path: Path) -> None:
    port, content = free_port(), random.Random(1).randbytes(900_000)
    url = f"http://127.0.0.1:{port}"
    async with (
        small_disk(tmp_path, 12, *server("memory://", port)) as (running, disk),
        aiohttp.ClientSession() as session,
    ):
        ballast = fill(disk)
        async with session.put(f"{url}/blob", data=content) as got:
            assert got.status == 503, await got.text()
        ballast.unlink()
        left = [path for path in (disk / "treadle-blobs").rglob("*") if path.is_file()]
        assert not left
        async with session.put(f"{url}/blob", data=content) as got:
            assert got.status == 201
            address = await got.text()
        async with session.get(f"{url}/blob/{address}") as got:
            assert await got.read() == content
        assert await running.stop() == 0
