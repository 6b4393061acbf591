"""The world outside of the programs in `tests/faults/programs`: each effect is a line of a ledger on disk.

The process dies by SIGKILL as soon as the ledger has `KILL_AT` lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import psycopg

from treadle import App, JobSpec, Signalled

_writing = threading.Lock()
_waiting: list[tuple[str, int, asyncio.AbstractEventLoop, asyncio.Event]] = []


def effect(text: str) -> None:
    """An effect outside: when this returns, its line is on disk."""
    with _writing:
        with open(os.environ["LEDGER"], "a") as ledger:
            ledger.write(text + "\n")
            ledger.flush()
            os.fsync(ledger.fileno())
        lines = effects()
        if len(lines) == int(os.environ["KILL_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        for beginning, count, loop, event in _waiting:
            if _count(lines, beginning) >= count:
                loop.call_soon_threadsafe(event.set)


def effects() -> list[str]:
    """All lines so far, also those of a process that was killed."""
    ledger = Path(os.environ["LEDGER"])
    return ledger.read_text().splitlines() if ledger.exists() else []


def _count(lines: list[str], beginning: str) -> int:
    return sum(line.startswith(beginning) for line in lines)


async def seen(beginning: str, count: int = 1) -> None:
    """Wait until the ledger has so many lines that begin so."""
    event = asyncio.Event()
    with _writing:
        if _count(effects(), beginning) >= count:
            return
        _waiting.append((beginning, count, asyncio.get_running_loop(), event))
    await event.wait()


def killed_before() -> bool:
    """Whether a process of this program has been killed: meanwhile the world has changed."""
    return os.environ["LIFE"] != "1"


async def result(app: App, spec: JobSpec[Any]) -> Any:
    """The result of this job, which an earlier process may have enqueued."""
    return await (await app.enqueue(spec)).result(timeout=60)


async def signal_once(app: App, job: str, name: str, value: Any = None) -> None:
    """Send a signal that an earlier process may have sent."""
    with contextlib.suppress(Signalled):
        await app.jobs.signal(job, name, value)


@contextlib.contextmanager
def database() -> Iterator[Any]:
    """A connection to the database of the jobs, in which there is a table `orders`."""
    url, _, options = os.environ["TREADLE_URL"].partition("?")
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        connection = psycopg.connect(url, options=f"-csearch_path={parse_qs(options)['schema'][0]}")
    with contextlib.closing(connection):
        connection.execute("CREATE TABLE IF NOT EXISTS orders (number integer PRIMARY KEY)")
        connection.commit()
        yield connection
