"""Each command at a storage whose jobs have moved says so, and where they are now."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.test_moved import KINDS, NEW, left
from treadle.cli.root import run as treadle
from treadle.cli.root import treadle as root

HERE = "tests.cli.check_app:app"
CALLS: dict[str, tuple[str, ...]] = {  # command -> the arguments of each call
    "enqueue": ("t",),
    "jobs cancel": ("ready",),
    "jobs delete": ("done",),
    "jobs explain": ("ready", "new", "ready --eta"),
    "jobs export": ("",),
    "jobs failures": ("",),
    "jobs list": ("", "--json"),
    "jobs retry": ("done",),
    "jobs run-now": ("ready",),
    "jobs show": ("ready", "new"),
    "jobs signal": ("ready go",),
    "jobs send": ("ready add 1",),
    "jobs follow": ("done",),
    "jobs approvals": ("",),
    "jobs approve": ("ready",),
    "jobs reject": ("ready",),
    "jobs approval-link": ("ready --to ann --server http://localhost",),
    "jobs pause": ("ready",),
    "jobs resume": ("ready",),
    "jobs rerun": ("done",),
    "jobs fork": ("done",),
    "jobs workflows": ("",),
    "jobs workflow": ("ready",),
    "queues list": ("",),
    "queues pause": ("default",),
    "queues resume": ("default",),
    "queues plan": ("default",),
    "limits list": ("",),
    "limits pause": ("mail",),
    "limits remove": ("mail",),
    "limits resume": ("mail",),
    "limits set": ("mail --slots 2",),
    "schedules delete": ("daily",),
    "schedules list": ("",),
    "schedules pause": ("daily",),
    "schedules resume": ("daily",),
    "schedules trigger": ("daily",),
    "queues workers": ("",),
    "top": ("--once",),
    "queues stats": ("",),
    "storage metrics": ("",),
    "mcp": ("",),
    "storage audit list": ("",),
    "storage blobs clean": ("",),
    "storage blobs list": ("",),
    "storage blobs missing": ("",),
    "storage blobs unused": ("",),
    "storage keys used": ("",),
    "storage migrate": ("", "--check"),
    "storage check": (HERE, f"{HERE} --json", f"{HERE} --no-outbox --sample 1"),
    "doctor": ("", "--json"),
}
OTHERS = {
    "init": "writes files",
    "jobs replay": "reads a file and no storage",
    "token": "writes a file",
    "from celery": "changes files",
    "storage keys new": "prints a key",
    "demo": "makes a storage of its own",
    "storage export": "reads a storage that was moved, too; see tests/storage/test_job_lines.py",
    "storage import": "says that the storage has a mark; see tests/storage/test_job_lines.py",
    "storage move": "continues or reports the move; see tests/storage/test_moving.py",
    "storage relay ddl": "prints SQL",
    "storage relay delete": "opens the database of the outbox only",
    "storage relay list": "opens the database of the outbox only",
    "storage relay retry": "opens the database of the outbox only",
    "storage relay run": "needs an outbox; delivering raises StorageMoved, see tests/outbox",
    "delayed submit": "calls a server",
    "wasi discover": "calls a server",
    "wasi enqueue": "calls a server",
    "wasi get": "calls a server",
    "wasi list": "calls a server",
    "wasi ping": "calls a server",
    "wasi put": "calls a server",
    "wasi result": "calls a server",
    "wasi run": "calls a server",
    "wasi status": "calls a server",
    "wasi runner": "calls a server",
    "shell": "reads lines until it is ended; see the banner in cli/shell.py",
    "worker": "runs until it is stopped",
    "server": "runs until it is stopped; see test_a_server_over_it_is_not_ready in test_moved.py",
    "up": "runs until it is stopped, as the server and workers do",
    "dashboard": "runs until it is stopped, as the server does",
}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def test_every_command_is_called_here_or_has_a_reason() -> None:
    assert CALLS.keys() | OTHERS.keys() == set(commands(root))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_every_command_reports_that_the_jobs_have_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    url = await left(kind, tmp_path)
    monkeypatch.setenv("TREADLE_BLOBS", f"{tmp_path}/blobs")
    silent = []
    for name, forms in CALLS.items():
        for form in forms:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))  # `mcp` reads it
            capsys.readouterr()
            await asyncio.to_thread(treadle, [*name.split(), *form.split(), "--url", url])
            out, err = capsys.readouterr()
            if NEW not in out + err:
                silent.append((f"{name} {form}", out + err))
    assert silent == []
