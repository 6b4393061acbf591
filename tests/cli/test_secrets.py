"""Planted secrets: passwords, tokens, headers and payloads appear in no output, log, exception or process list."""

from __future__ import annotations

import json
import logging
import os
import secrets
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import Command
from tests.server.listener import Listener
from treadle import App
from treadle.cli.root import COMMANDS, run
from treadle.ports.nats import nats_pubsub, nats_store
from treadle.ports.redis import redis_pubsub, redis_store

SECRET = "hunter2secret"

URLS = [
    f"postgresql://u:{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}%23x@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?user=u&password={SECRET}",
    f"postgresql://u:p#{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:a/{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}@@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}%zz@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}@127.0.0.1:1/db?pool=0",
    f"postgres://u:{SECRET}@[::1/db",
    f"postgresql+psycopg://u:{SECRET}@h/db",
    f"redis://:{SECRET}@127.0.0.1:1/0",
    f"redis://127.0.0.1:1/0?password={SECRET}",
    f"redis://u:{SECRET}@127.0.0.1:bad/0",
    f"redis://u:a/{SECRET}@127.0.0.1:1/0",
    f"rediss://:{SECRET}@127.0.0.1:1/0",
    f"redis+cluster://u:{SECRET}@127.0.0.1:1/7",
    f"redis+sentinel://u:{SECRET}@a:b/main",
    f"redis+sentinel://127.0.0.1:1?sentinel_password={SECRET}",
    f"http://127.0.0.1:1?token={SECRET}",
    f"http://x:{SECRET}@127.0.0.1:1",
    f"http://127.0.0.1:1?tok={SECRET}",
    f"http://127.0.0.1:1#{SECRET}",
    f"http://u:{SECRET}@127.0.0.1:1/?x=1",
    f"http://u:{SECRET}@127.0.0.1:bad",
    f"sqlite://u:{SECRET}@h/a.db",
    f"mysql://u:{SECRET}@h/db",
    f"sqs://u:{SECRET}@h",
    f"mysql:u:{SECRET}",
]

ANY = "0" * 26
CALLS: dict[str, list[list[str]]] = {  # every command that takes --url, with each of its groups
    "jobs": [
        ["list"],
        ["list", "--json"],
        ["show", ANY],
        ["explain", ANY],
        ["explain", ANY, "--eta"],
        ["cancel", ANY],
        ["retry", ANY],
        ["export"],
        ["workflows"],
    ],
    "queues": [[], ["pause", "q"], ["plan", "q"], ["stats"], ["workers"]],
    "limits": [[], ["set", "x", "--slots", "1"]],
    "schedules": [[]],
    "enqueue": [["task", "1"]],
    "dashboard": [["--no-open", "--port", "0"]],
    "mcp": [[]],
    "top": [["--times", "1"]],
    "storage": [
        ["migrate"],
        ["check", "tests.cli.check_app:app"],
        ["check", "tests.cli.check_app:app", "--json"],
        *(["blobs", *word] for word in ([], ["unused"], ["missing"], ["clean"])),
        ["keys", "used"],
        ["audit"],
        ["metrics"],
    ],
    "doctor": [[], ["--json"]],
    "server": [["--port", "0"]],
    "up": [["--protocol", "delayed", "--port", "0"]],
    "worker": [["--protocol", "delayed"]],
    "shell": [[]],
}
WITHOUT_URL = {"token", "wasi", "delayed", "demo", "from", "init"}  # tested below, with `storage move` and `relay`


def test_every_command_is_called_here() -> None:
    assert CALLS.keys() | WITHOUT_URL == COMMANDS.keys()


@pytest.mark.parametrize("url", URLS)
def test_no_command_shows_the_secret_of_a_url(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    calls = [[name, *words, "--url", url] for name in QUICK for words in CALLS[name]]
    calls += [["storage", "move", url, "sqlite:///to.db"], ["storage", "move", "sqlite:///from.db", url], ["doctor"]]
    calls += [["wasi", "ping", "--server", url], ["wasi", "ping", "--server", "http://127.0.0.1:1", "--store", url]]
    if url.startswith("postgres"):
        calls += [["storage", "relay", word, "--outbox", url] for word in ("list", "retry", "delete")]
    calls += [["delayed", "submit", "--endpoint", url, "--patience", "0"]]
    monkeypatch.setenv("TREADLE_URL", url)
    for call in calls:
        assert run(call) != 0, call
        out, err = capfd.readouterr()
        assert out + err, call
        assert SECRET not in out + err, call
    assert SECRET not in caplog.text


QUICK = ("jobs", "enqueue", "queues", "storage", "doctor")  # the other commands reach the storage in the same way


@pytest.mark.parametrize("name", sorted(CALLS.keys() - set(QUICK)))
def test_the_other_commands_do_not_print_secrets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"mysql://u:{SECRET}@h/db", f"http://u:{SECRET}@127.0.0.1:1", f"redis://u:{SECRET}@127.0.0.1:bad/0"):
        for words in CALLS[name]:
            if name in ("worker", "up", "server") and url.startswith("http"):
                continue  # they wait until the storage answers
            assert run([name, *words, "--url", url]) != 0
            out, err = capfd.readouterr()
            assert out + err
            assert SECRET not in out + err


@pytest.mark.parametrize("url", URLS)
async def test_no_exception_shows_the_secret_of_a_url(url: str) -> None:
    """Error trackers keep messages, causes and contexts."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        await App(url, token=SECRET).open()
    assert SECRET not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


async def used(make: Any, url: str) -> None:
    """Use a port once."""
    port = make(url)
    try:
        await (port.get("a") if hasattr(port, "get") else port.publish("a", "b"))
    finally:
        await port.close()


PORTS = {
    f"redis://u:{SECRET}@127.0.0.1:1/0": (redis_store, redis_pubsub),
    f"redis://u:a/{SECRET}@127.0.0.1:1/0": (redis_store, redis_pubsub),
    f"nats://u:a/{SECRET}@127.0.0.1:1": (nats_store, nats_pubsub),
}


@pytest.mark.parametrize("url", PORTS)
async def test_no_exception_of_a_port_shows_the_secret_of_its_url(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.ports.nats.TIMEOUT", 1.0)
    caplog.set_level(logging.DEBUG)
    for make in PORTS[url]:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
            await used(make, url)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in caplog.text


# --- a run in which every call fails

TASKS = """
from treadle import App

app = App("sqlite:///jobs.db")

@app.task
async def add(a: int) -> int:
    return a

@app.task(kind="process")
def count(a: str) -> int:
    raise ValueError("no")

@app.task
async def fail(a: str) -> int:
    raise ValueError("no")
"""


def command_lines() -> bytes:
    """The command lines of all processes on this machine."""
    found = b""
    for each in os.listdir("/proc"):
        if each.isdigit():
            try:
                found += Path("/proc", each, "cmdline").read_bytes() + b"\n"
            except OSError:
                continue
    return found


def ask(url: str, method: str, path: str, token: str, body: bytes | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url + path, body, {"Authorization": f"Bearer {token}"}, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a process list in /proc")
def test_no_output_log_or_process_list_of_a_run_shows_a_secret(tmp_path: Path) -> None:
    planted = {
        name: f"planted-{name}-{secrets.token_hex(6)}"
        for name in ("hook", "query", "header", "payload", "wrong", "path", "body")
    }
    (tmp_path / "shop.py").write_text(TASKS)
    made = run_in(tmp_path, "token", "all")
    planted["token"] = token = made.stdout.strip()
    with Listener(500, {"Content-Type": "text/plain"}, b"not today") as hook:
        host = f"127.0.0.1:{hook.port}"
        (tmp_path / "hook").write_text(f"http://u:{planted['hook']}@{host}/x?key={planted['query']}\n")
        (tmp_path / "headers").write_text(f"X-Key: {planted['header']}\n")
        words = (
            "up",
            "shop.py:app",
            "--protocol",
            "delayed",
            "--api",
            "--tokens",
            "tokens.toml",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--roles",
            "leader",
            "--webhook",
            "@hook",
            "--header",
            "@headers",
        )
        with Command(*words, cwd=tmp_path, TREADLE_TOKEN=token, PYTHONPATH=str(tmp_path)) as up:
            url = up.wait_for("http://").partition("treadle: ")[2].split()[0]
            up.wait_for("1 slot")
            for call in provoked(planted):
                status, _ = ask(url, *call)
                assert status >= 400, call
            for task, queue in (("shop.fail", "default"), ("shop.count", "default"), ("delayed.job", "delayed")):
                body = {"task": task, "queue": queue, "args": [planted["payload"]], "retry": {"attempts": 1}}
                status, job = ask(url, "POST", "/v1/jobs", token, json.dumps(body).encode())
                assert status == 201, job
                while job["state"] not in ("succeeded", "failed"):
                    job = ask(url, "GET", f"/v1/jobs/{job['id']}/wait?timeout=10", token)[1]
                assert job["state"] == "failed"
            listed = command_lines()
            here = {"cwd": tmp_path, "TREADLE_TOKEN": planted["wrong"]}
            with Command("jobs", "list", "--url", url, **here) as refused:
                assert refused.ended() != 0
            up.ctrl_c()
            up.ended()
    assert hook.heard[0].headers["X-Key"] == planted["header"]
    output = up.stdout + up.stderr + refused.stdout + refused.stderr
    assert "failed" in output
    assert "401" in output
    for name, secret in planted.items():
        assert secret not in output, name
        assert secret.encode() not in listed, name


def provoked(planted: dict[str, str]) -> list[tuple[str, str, str, bytes | None]]:
    """Calls that the server refuses, each for another reason."""
    secret, token = planted["body"].encode(), planted["token"]
    return [
        ("GET", "/v1/jobs", planted["wrong"], None),
        ("POST", "/v1/jobs", token, b'{"task": "' + secret),
        ("POST", "/v1/jobs", token, b'{"task": ["' + secret + b'"]}'),
        ("POST", "/v1/jobs", token, b'{"task": "a", "queue": "\\u0000' + secret + b'"}'),
        ("POST", "/v1/jobs", token, b'{"task": "shop.add", "args": ["' + secret + b'"]}'),
        ("POST", "/v1/work/enqueue", token, b'{"jobs": "' + secret + b'"}'),
        ("GET", "/v1/jobs/none", token, secret),
        ("POST", "/v1/jobs/none/cancel", token, None),
    ]


def run_in(folder: Path, *words: str) -> Command:
    with Command(*words, cwd=folder) as command:
        assert command.ended() == 0, command.stderr
    return command
