"""`treadle worker --health` as a process: its storage comes late and goes away, and systemd and a file tell of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.test_cli_worker import TASKS
from tests.cli.tools import Command
from tests.servers import valkey
from tests.waiting import patient, until
from treadle_testkit.proxy import Proxy
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")


def probe(url: str) -> tuple[int, str]:
    """GET this URL -> the status and the text of the response."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def where(command: Command) -> str:
    """The URL that the command prints for probes."""
    return command.wait_for("probes at").partition("probes at ")[2].partition("/livez")[0]


class Manager:
    """The socket of a service manager, as an abstract name of Linux or a file."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)
        self.lines: list[str] = []

    async def until(self, line: str) -> None:
        async with patient(f"{line} from the process"):
            while line not in self.lines:
                found = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
                self.lines += found.decode().split("\n")

    def close(self) -> None:
        self._socket.close()


@pytest.mark.slow
@shows("a worker whose storage is away is alive and not ready, and systemd waits for it instead of failing its start")
async def test_a_worker_without_its_storage_is_alive_and_not_ready(tmp_path: Path) -> None:
    server = valkey.url().partition("://")[2].partition("/")[0]
    host, _, port = server.rpartition(":")
    proxy, manager, alive = Proxy(host, int(port)), Manager(tmp_path), tmp_path / "alive"
    url = f"redis://127.0.0.1:{proxy.port}/0?ns=health{os.getpid()}"
    (tmp_path / "jobs.py").write_text(TASKS.replace("sqlite:///jobs.db", url))
    words = ("worker", "jobs:app", "--processes", "2", "--health", "0", "--health-file", str(alive), "--grace", "0")
    with Command(*words, cwd=tmp_path, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="2000000") as worker:
        try:
            at = await asyncio.to_thread(where, worker)

            async def answers(path: str, status: int, text: str) -> None:
                async def seen() -> bool:
                    found = await asyncio.to_thread(probe, at + path)
                    return found[0] == status and text in found[1]

                await until(seen, f"{status} with {text!r} at {path}")

            await answers("/readyz", 503, "the storage has been unavailable for")
            await answers("/livez", 200, "alive")
            await manager.until("EXTEND_TIMEOUT_USEC=30000000")
            await until(lambda: alive.exists() and alive.read_text().startswith("not ready: "), "the file")
            assert "READY=1" not in manager.lines
            await proxy.accept()
            await answers("/readyz", 200, "ready: 2 worker processes claim jobs")
            await manager.until("READY=1")
            await manager.until("STATUS=ready: 2 worker processes claim jobs")
            manager.lines.clear()
            await manager.until("WATCHDOG=1")
            await until(lambda: alive.read_text().startswith("ready: "), "the file")
            await proxy.refuse()
            await answers("/readyz", 503, "the storage has been unavailable for")
            await answers("/livez", 200, "alive")
            await proxy.accept()
            await answers("/readyz", 200, "ready")
            assert "no such page" in (await asyncio.to_thread(probe, f"{at}/"))[1]
            worker.signal(signal.SIGTERM)
            await manager.until("STOPPING=1")
            assert await asyncio.to_thread(worker.ended) == 0, worker.stderr
        finally:
            manager.close()
            await proxy.close()
    assert not alive.exists()
    assert "restarting" not in worker.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--health", "http://x"), "--health: expected a port such as 8080"),
        (("--max-memory", "12"), "expected a size of at least 16M"),
        (("--max-memory", "lots"), "expected a size of at least 16M"),
        (("--max-age", "0"), "expected at least 1 second"),
        (("--restart-stuck", "5"), "expected at least 10 seconds"),
        (("--reload", "--health", "8080"), "--health does not go with --reload"),
        (("--reload", "--max-jobs", "8"), "--max-jobs does not go with --reload"),
    ],
)
def test_options_that_cannot_be_followed_are_named(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    (tmp_path / "jobs.py").write_text(TASKS)
    with Command("worker", "jobs:app", *args, cwd=tmp_path) as worker:
        assert worker.ended() == 2, worker.stderr
    assert words in worker.stderr


def test_a_port_that_is_taken_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(TASKS)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken:
        words = ("worker", "jobs:app", "--health", str(taken.getsockname()[1]))
        with Command(*words, cwd=tmp_path) as worker:
            assert worker.ended() == 2, worker.stderr
    assert "cannot listen for probes on 127.0.0.1 port" in worker.stderr


@pytest.mark.slow
async def test_a_server_and_a_relay_report_their_health_too(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(TASKS)
    manager, alive = Manager(tmp_path), tmp_path / "alive"
    words = ("up", "jobs:app", "--port", "0", "--health-file", str(alive))
    with Command(*words, cwd=tmp_path, NOTIFY_SOCKET=manager.address) as site:
        try:
            line = await asyncio.to_thread(site.wait_for, "treadle: http")
            url = line.partition("treadle: ")[2].partition(" ")[0]
            await manager.until("READY=1")
            for path in ("/livez", "/healthz", "/readyz"):
                assert await asyncio.to_thread(probe, url + path) == (200, "ok")
            await until(lambda: alive.exists() and alive.read_text().startswith("ready: worker "), "the file")
            site.signal(signal.SIGTERM)
            await manager.until("STOPPING=1")
            assert await asyncio.to_thread(site.ended) == 0
        finally:
            manager.close()
    assert not alive.exists()


@pytest.mark.slow
def test_a_relay_is_probed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from treadle import App, Outbox\n"
        "app = App('sqlite:///jobs.db', outbox=Outbox('sqlite:///shop.db'))\n"
        "@app.task\nasync def send() -> None: ...\n"
    )
    with Command("storage", "relay", "shop:app", "--health", "0", cwd=tmp_path) as relay:
        at = where(relay)
        assert probe(f"{at}/livez") == (200, "alive")
        relay.signal(signal.SIGTERM)
        assert relay.ended() == 0
    with Command("storage", "relay", "shop:app", "--once", "--health", "0", cwd=tmp_path) as relay:
        assert relay.ended() == 2
    assert "leave out --once" in relay.stderr
