"""Shared parts of the tests of the SQLite storage."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from treadle.core.model import Claim, NewJob, Outcome, Record, State
from treadle.storage.sqlite import SqliteStorage


def job(id: str, **options: object) -> NewJob:
    return NewJob(id=id, **{"task": "t", **options})  # type: ignore[arg-type]


def jobs(count: int, name: str = "j") -> list[NewJob]:
    return [job(f"{name}{number:05d}") for number in range(count)]


def ask(number: int = 1, limit: int = 10) -> Claim:
    return Claim(worker=f"w#{number}", queues=(("default", limit),), limit=limit)


def done(row: Record) -> Outcome:
    return Outcome(id=row.job.id, version=row.version, state=State.SUCCEEDED)


@asynccontextmanager
async def opened(path: Path, synchronous: str = "off") -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(str(path), synchronous=synchronous)
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


def played(path: Path, law: Callable[[SqliteStorage], Awaitable[None]], synchronous: str = "off") -> None:
    """Run a coroutine with the storage open on a loop of its own, then check the file."""

    async def go() -> None:
        async with opened(path, synchronous) as storage:
            await law(storage)

    asyncio.run(go())
    assert integrity(path) == "ok"


def sql(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        found: list[tuple[object, ...]] = db.execute(statement).fetchall()
        db.commit()
        return found


def integrity(path: Path) -> object:
    return sql(path, "PRAGMA integrity_check")[0][0]


@contextmanager
def child(path: Path, body: str, first: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process at the file. `body` runs inside a coroutine with `storage` open and `say` to print a line;
    `first` runs before that."""
    script = (
        "import asyncio, os, signal, sys, time\n"
        "from treadle.core.model import *\nfrom treadle.errors import *\n"
        "from treadle.storage.sqlite import SqliteStorage\n"
        f"def say(*words): print(*words, flush=True)\n{first}\n"
        "async def main(path):\n"
        "    storage = SqliteStorage(path)\n"
        "    await storage.open()\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
        + "\n    await storage.close()\nasyncio.run(main(sys.argv[1]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    """Let it continue where it waits in `sys.stdin.readline()`."""
    assert process.stdin is not None
    process.stdin.write("on\n")
    process.stdin.flush()


AS_NOBODY = "import encodings.idna, selectors\nos.setuid(65534)" if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
"""The code with which a child becomes another user than root."""


@contextmanager
def open_folder(mode: int = 0o755) -> Iterator[Path]:
    """A folder that other users can enter. They cannot enter pytest's, and a later session of pytest closes it
    again."""
    with tempfile.TemporaryDirectory(prefix="treadle-open-") as folder:
        os.chmod(folder, mode)
        yield Path(folder)


def names(folder: Path | str) -> list[str]:
    """The names in a folder; none if the folder does not exist."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def size(path: Path | str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def swept(folder: str) -> None:
    shutil.rmtree(folder)
