"""`treadle server`, `treadle up` and `treadle token` as a user types them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.cli.tools import Command
from treadle import App, Retry
from treadle.cli.root import run as treadle
from treadle_testkit.shows import shows

APP = """
from treadle import App

app = App("sqlite:///jobs.db")

@app.task
async def double(n: int) -> int:
    return 2 * n
"""


async def start(folder: Path, *words: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start the command as a process; wait until it prints its address."""
    command = [sys.executable, "-m", "treadle", *words, "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    said = b""
    while b"http://" not in said:
        line = await asyncio.wait_for(process.stderr.readline(), 30)
        assert line, said.decode()
        said += line
    return process, "http://" + said.decode().partition("http://")[2].split()[0]


async def stop(process: asyncio.subprocess.Process) -> int:
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode


async def test_up_serves_and_works(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    process, url = await start(tmp_path, "up", "shop:app")
    try:
        async with App(url) as app:
            job = await app.stub("shop.double").enqueue(21)
            assert await job.result(20) == 42
    finally:
        assert await stop(process) == 0


async def test_up_logs_a_job_that_fails(tmp_path: Path) -> None:
    tasks = """
@app.task
async def refuse() -> None:
    raise ValueError("no such order")
"""
    (tmp_path / "shop.py").write_text(APP + tasks)
    process, url = await start(tmp_path, "up", "shop:app")
    logged = b""
    try:
        async with App(url) as app:
            await app.stub("shop.refuse").options(retry=Retry(attempts=1)).enqueue()
        assert process.stderr is not None
        while b'raise ValueError("no such order")' not in logged:
            line = await asyncio.wait_for(process.stderr.readline(), 30)
            assert line, logged.decode()
            logged += line
    finally:
        assert await stop(process) == 0
    assert b"ERROR treadle.jobs: shop.refuse failed: ValueError: no such order\n    Traceback" in logged


@pytest.mark.slow
@shows("a server reads its tokens from a file and answers 401 without one")
async def test_a_server_with_tokens_from_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle", "token", "web", "--scope", "enqueue"]
    made = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    secret = (await made.communicate())[0].decode().strip()
    assert secret not in (tmp_path / "tokens.toml").read_text()
    assert (tmp_path / "tokens.toml").stat().st_mode & 0o077 == 0
    process, url = await start(tmp_path, "server", "--tokens", "tokens.toml")
    try:
        async with aiohttp.ClientSession() as session:
            for token, expected in (("", 401), (secret, 201)):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                async with session.post(f"{url}/v1/jobs", json={"task": "t"}, headers=headers) as answer:
                    assert answer.status == expected
    finally:
        assert await stop(process) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("server",),
        ("server", "--protocol", "delayed", "--api"),
        ("server", "--protocol", "queuey", "--api"),
        ("up", "--protocol", "delayed", "--api"),
    ],
    ids=" ".join,
)
def test_a_server_without_tokens_refuses_to_listen_for_other_machines(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert treadle([*words, "--host", "0.0.0.0", "--url", "memory://"]) == 2
    assert "can be reached from other machines" in capsys.readouterr().err


def test_the_help_names_the_protocols_without_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Clients of the systems that the protocols replace send no tokens."""
    assert treadle(["server", "--help"]) == 0
    assert "With --protocol and without --api, --host alone allows it" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "greeting"),
    [
        ((), "http://127.0.0.1:{port} (no tokens: every program on this machine has access)"),
        (("--host", "0.0.0.0"), "(no tokens: every program that can reach 0.0.0.0 port {port} has access)"),
        (("--tokens", "tokens.toml"), "http://0.0.0.0:{port} (tokens: web "),
    ],
    ids=["as it is", "a host", "tokens"],
)
def test_a_protocol_reports_its_allowed_clients(tmp_path: Path, words: tuple[str, ...], greeting: str) -> None:
    with Command("token", "web", cwd=tmp_path) as made:
        assert made.ended() == 0
    given = ("server", "--protocol", "delayed", "--url", "memory://", "--port", "0", *words)
    with Command(*given, cwd=tmp_path) as server:
        line = server.wait_for("http://")
        port = line.partition("http://")[2].split()[0].rpartition(":")[2]
        assert greeting.format(port=port) in line
        server.ctrl_c()
        assert server.ended() == 0


def test_a_taken_port_is_an_error_of_one_line(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert treadle(["server", "--url", "memory://", "--port", str(taken.getsockname()[1])]) == 2
