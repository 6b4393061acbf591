"""The store in a file: the suite of all stores, and a program that continues with the files of an earlier one."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from treadle import App, BadOption, StorageUnavailable, Worker
from treadle.core.model import Claim
from treadle.ports import file_backend, file_queue, file_store, memory_pubsub, memory_store
from treadle.ports.disk import Disk
from treadle.testing import HandClock
from treadle_testkit.ports.store import *  # noqa: F403
from treadle_testkit.shows import shows


@pytest.fixture
def make_store(tmp_path: Path) -> Any:
    made: list[Path] = []

    def make(clock: HandClock) -> Any:
        made.append(tmp_path / f"store{len(made)}.db")
        return file_store(made[-1], clock=clock)

    return make


KILLED = """
import asyncio, os, sys
from treadle import App
from treadle.ports import file_backend

app = App(ports=file_backend(sys.argv[1]))

@app.task(name="greet")
async def greet(name: str) -> str: ...

async def main():
    job = await greet.enqueue("Ada")
    print(job.id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@shows("the next process runs the jobs that a killed process stored on a file backend")
async def test_jobs_of_a_killed_program_are_run_by_the_next(tmp_path: Path) -> None:
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, tmp_path], check=False, capture_output=True, text=True
    )
    assert killed.returncode == -9, killed.stderr
    app = App(ports=file_backend(tmp_path))

    @app.task(name="greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app, Worker(app):
        assert await (await app.jobs.handle(killed.stdout.strip())).result(30) == "hello Ada"


HOLDING = """
import asyncio, sys
from treadle import App, Worker
from treadle.ports import file_backend

app = App(ports=file_backend(sys.argv[1]))

@app.task(name="hold")
async def hold() -> str:
    print("runs", flush=True)
    await asyncio.Event().wait()

async def main():
    async with app, Worker(app, lease=3600):
        print((await hold.enqueue()).id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@shows("a job that ran when its process was killed runs again at once in the next process on a file backend")
async def test_a_job_in_flight_at_a_kill_runs_again_at_once(tmp_path: Path) -> None:
    app = App(ports=file_backend(tmp_path))

    @app.task(name="hold")
    async def hold() -> str:
        return "done"

    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDING, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        lines = {(await child.stdout.readline()).decode().strip() for _ in range(2)}
        assert "runs" in lines
        [job] = lines - {"runs"}
        async with app:
            with pytest.raises(StorageUnavailable, match=r"another process, or .* has locked"):
                await app.storage.claim(Claim(worker="w#1", lease=3600))
            assert (await app.jobs.get(job)).lost == 0
    finally:
        child.kill()
        await child.communicate()
    async with app, Worker(app, lease=3600):
        assert await (await app.jobs.handle(job)).result(30) == "done"
        row = await app.jobs.get(job)
        assert (row.lost, row.attempt) == (1, 1)


async def test_a_backend_is_reserved_once_and_its_own_leases_stay(tmp_path: Path) -> None:
    backend = file_backend(tmp_path)
    one, other, third = App(ports=backend), App(ports=backend), App(ports=backend, namespace="third")
    claim = Claim(worker="w#1", lease=3600)
    async with one, other, third:
        await one.enqueue(one.stub("t").job())
        [row] = (await one.storage.claim(claim)).records
        assert not (await other.storage.claim(replace(claim, worker="w#2"))).records
        assert (await other.jobs.get(row.job.id)).version == row.version
        assert not await backend.queue.alone("treadle")
        assert await backend.queue.alone("fourth")


async def test_a_queue_whose_write_failed_stays_locked(tmp_path: Path) -> None:
    class Full(Disk):
        def append(self, path: Path, data: bytes) -> None:
            raise OSError("no space")

    queue = file_queue(tmp_path / "q", fs=Full())
    with pytest.raises(OSError, match="no space"):
        await queue.push("a")
    with pytest.raises(BlockingIOError, match="has locked"):
        await file_queue(tmp_path / "q").push("b")
    await queue.close()


@shows("a file queue with a memory store is refused")
def test_a_memory_store_with_a_file_queue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"use file_store\(path\)"):
        App(ports=(file_queue(tmp_path / "q"), memory_pubsub(), memory_store()))


async def test_two_stores_on_one_file_have_one_winner(tmp_path: Path) -> None:
    stores = [file_store(tmp_path / "s.db") for _ in range(4)]
    won = await asyncio.gather(*(store.set_if_absent("k", str(number)) for number, store in enumerate(stores)))
    assert won.count(True) == 1
    assert {await store.get("k") for store in stores} == {str(won.index(True))}
    for store in stores:
        await store.close()


async def test_many_calls_share_a_commit(tmp_path: Path) -> None:
    store = file_store(tmp_path / "s.db")
    await store.set("first", "")
    commits = 0
    commit = store._commit

    def counted(changes: Any) -> Any:
        nonlocal commits
        commits += 1
        return commit(changes)

    store._commit = counted  # type: ignore[method-assign]
    await asyncio.gather(*(store.set(str(number), "v") for number in range(200)))
    assert commits <= 2
    await store.close()


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("no database, and long enough to be looked at as one" * 100)
    store = file_store(tmp_path / "s.db")
    with pytest.raises(StorageUnavailable, match=r"s\.db"):
        await store.get("k")


async def test_a_cancelled_call_cancels_no_other(tmp_path: Path) -> None:
    store = file_store(tmp_path / "s.db")
    gone, stays = asyncio.create_task(store.set("a", "1")), asyncio.create_task(store.set("b", "2"))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert (await store.get("a"), await store.get("b")) == ("1", "2")
    await store.close()


def test_a_forked_child_uses_a_connection_of_its_own(tmp_path: Path) -> None:
    store = file_store(tmp_path / "s.db")
    asyncio.run(store.set("k", "parent"))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(store.set("k", "child"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert asyncio.run(store.get("k")) == "child"
    asyncio.run(store.close())
    db = sqlite3.connect(tmp_path / "s.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
async def test_only_their_owner_can_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store, queue = file_store(tmp_path / "kv.db"), file_queue(tmp_path / "queue.log")
        await store.set("a", "card 4111")
        await queue.push("card 4111")
        found = {name: os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)}
        await store.close()
        await queue.close()
    finally:
        os.umask(before)
    assert len(found) == 6
    assert set(found.values()) == {0o600}, found
