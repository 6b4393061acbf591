"""A forked child that opens the file again: SQLite believes that it still has the locks of its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.sqlite.support import integrity, sql

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

PROGRAM = """
import asyncio, os, sys
from treadle.core.model import NewJob
from treadle.errors import StorageError
from treadle.storage.sqlite import SqliteStorage

path, how = sys.argv[1:]
closed, tell = os.pipe()
opened, say = os.pipe()

async def child():
    if how == "closed before":
        os.read(closed, 1)
    storage = SqliteStorage(path)
    try:
        await storage.open()
    except StorageError as error:
        print(error, flush=True)
        return
    await storage.enqueue([NewJob(id="first", task="t")])
    os.write(say, b"x")
    if how == "closed after":
        os.read(closed, 1)
    await storage.enqueue([NewJob(id="second", task="t")])

async def parent():
    storage = SqliteStorage(path)
    await storage.open()
    await storage.enqueue([NewJob(id="before", task="t")])
    if how == "in a transaction":
        storage._file.db.execute("BEGIN IMMEDIATE")
    return storage

loop = asyncio.new_event_loop()
storage = loop.run_until_complete(parent())
pid = os.fork()
if not pid:
    try:
        asyncio.run(child())
    finally:
        os._exit(9)
if how == "in a transaction":
    os.waitpid(pid, 0)
    storage._file.db.execute("ROLLBACK")
if how == "closed after":
    os.read(opened, 1)
loop.run_until_complete(storage.close())
os.write(tell, b"x")
if how != "in a transaction":
    os.waitpid(pid, 0)
"""


def ran(path: Path, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), how], capture_output=True, text=True, timeout=60, check=True
    )
    assert integrity(path) == "ok"
    return done.stdout


def test_its_jobs_are_kept_when_the_parent_closes_the_file(tmp_path: Path) -> None:
    """The parent is not the last process at the file: it does not delete the log that the child writes to."""
    path = tmp_path / "jobs.db"
    assert ran(path, "closed after") == ""
    assert sql(path, "SELECT id FROM job ORDER BY seq") == [("before",), ("first",), ("second",)]


@pytest.mark.parametrize(
    ("how", "why"), [("closed before", "has closed it since"), ("in a transaction", "in the middle of a transaction")]
)
def test_a_child_that_cannot_use_the_file_raises_the_reason(tmp_path: Path, how: str, why: str) -> None:
    path = tmp_path / "jobs.db"
    assert why in ran(path, how)
    assert sql(path, "SELECT id FROM job ORDER BY seq") == [("before",)]
