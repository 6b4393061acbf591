"""A process that is paused in the middle of a call: its loop is blocked, a thread keeps the GIL, or it is stopped."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.storage.sqlite.support import ask, integrity, job, line, opened, sql
from tests.waiting import Signal, each_turn, turn, until
from treadle import App
from treadle.concurrency.threads import let_threads_start, starting
from treadle.core.model import Outcome, State
from treadle.storage.sqlite import SqliteStorage, shared_transaction, threads
from treadle.storage.sqlite.threads import Relay, Standby, Steps

LONGEST = 60.0  # s until a wait counts as endless


async def fanned_in(storage: SqliteStorage) -> None:
    """A call of many turns of the loop: one ending that releases 300 jobs."""
    [row] = (await storage.claim(ask(1, 1))).records
    [settled] = await storage.settle([Outcome(id=row.job.id, version=row.version, state=State.SUCCEEDED)])
    assert settled.status == "applied"


async def stored(storage: SqliteStorage) -> None:
    assert len(await storage.enqueue([job("theirs", delay=99)])) == 1


CALLS = {"many turns": fanned_in, "a commit in the thread": stored, "a wait in the thread": stored}


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("turns", range(6))
async def test_a_blocked_loop_stops_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, turns: int
) -> None:
    """Its thread runs the rest of the transaction, and the call returns when the loop is back."""
    path = tmp_path / "jobs.db"
    blocked, release = threading.Event(), threading.Event()

    async def theirs() -> None:
        async with opened(path, "full") as storage:
            call = asyncio.ensure_future(CALLS[what](storage))
            await turn(turns)
            blocked.set()
            release.wait(LONGEST)
            await call

    async with opened(path, "full") as storage:
        await storage.enqueue([job("up"), *(job(f"d{number}", after=("up",)) for number in range(300))])
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            waits = Signal().around(monkeypatch, shared_transaction, "begin_patiently")
            if what == "a wait in the thread":
                shell.execute("BEGIN IMMEDIATE")
            other = asyncio.ensure_future(asyncio.to_thread(asyncio.run, theirs()))
            await asyncio.to_thread(blocked.wait, LONGEST)
            if what == "a wait in the thread":
                if turns:
                    await waits.until(lambda: waits.sent, "the other call waits")
                shell.execute("COMMIT")
            assert len(await storage.enqueue([job("ours")])) == 1
        release.set()
        await other
        assert sql(path, "SELECT count(*) FROM job WHERE id = 'ours'") == [(1,)]
    assert integrity(path) == "ok"


# --- steps on the loop, and in the thread when the loop is absent


async def relayed(steps: Steps[Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return await Relay(asyncio.get_running_loop(), steps, next(steps), Standby(pool)).run()


@pytest.mark.parametrize("seed", range(20))
async def test_each_step_is_run_once_and_in_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Also if the thread takes over at any moment, and the loop comes back at any other."""
    monkeypatch.setattr(threads, "ABSENT", 0.000_1)
    rng, seen = random.Random(seed), list[int]()

    def steps() -> Steps[str]:
        for number in range(200):
            answer = yield rng.choice((None, lambda number=number: number))
            assert answer in (None, number)
            seen.append(number)
        return "end"

    async def busy() -> None:
        async for _ in each_turn(lambda: len(seen) < 200):
            threading.Event().wait(rng.choice((0, 0.000_1, 0.000_3)))

    found, _ = await asyncio.gather(relayed(steps()), busy())
    assert found == "end"
    assert seen == list(range(200))


async def test_an_error_of_a_function_reaches_the_steps_and_their_error_the_caller() -> None:
    def steps() -> Steps[None]:
        with pytest.raises(KeyError):
            yield lambda: {}["a"]
        yield None
        raise ValueError("of the steps")

    with pytest.raises(ValueError, match="of the steps"):
        await relayed(steps())


async def test_a_cancelled_caller_ends_the_steps_before_it_returns() -> None:
    begun, heard, release = asyncio.Event(), list[str](), threading.Event()
    loop = asyncio.get_running_loop()

    def steps() -> Steps[None]:
        try:
            yield lambda: (loop.call_soon_threadsafe(begun.set), release.wait(LONGEST))
            heard.append("too late")
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    call = asyncio.ensure_future(relayed(steps()))
    await begun.wait()
    call.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert heard == ["cancelled"]


@pytest.mark.parametrize("turns", range(5))
async def test_a_transaction_whose_loop_has_ended_is_finished_by_the_thread(tmp_path: Path, turns: int) -> None:
    """For example by `KeyboardInterrupt` in a turn of a program that does not cancel its tasks."""
    path = tmp_path / "jobs.db"
    loop, storage = asyncio.new_event_loop(), SqliteStorage(str(path))

    async def begin() -> asyncio.Task[Any]:
        await storage.open()
        await storage.enqueue([job("up"), *(job(f"d{number}", after=("up",)) for number in range(300))])
        call = asyncio.ensure_future(fanned_in(storage))
        await turn(turns)
        return call

    call = await asyncio.to_thread(loop.run_until_complete, begin())
    async with opened(path) as other:
        assert len(await other.enqueue([job("ours")])) == 1
    await asyncio.to_thread(loop.run_until_complete, call)
    await asyncio.to_thread(loop.run_until_complete, storage.close())
    loop.close()


def test_a_thread_that_waits_for_the_gil_begins_before_a_transaction() -> None:
    begun, hold = threading.Event(), object()

    def run() -> None:
        starting.discard(hold)
        begun.set()

    starting.add(hold)
    thread = threading.Thread(target=run)
    thread.start()
    let_threads_start()
    starting.discard(hold)
    thread.join()
    assert begun.is_set()
    let_threads_start()


def test_a_thread_that_never_begins_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example in a forked child, which has no thread of its parent."""
    sleeps = list[float]()
    monkeypatch.setattr("treadle.concurrency.threads.time.sleep", sleeps.append)
    starting.add(object())
    let_threads_start()
    assert sleeps
    sleeps.clear()
    let_threads_start()
    assert not sleeps


# --- whole processes

WORKER = """
import asyncio, os, sys, time
from treadle import App, Worker

app = App(sys.argv[1])

@app.task(name="blocks")
async def blocks() -> None:
    await asyncio.sleep(0.01)  # as after one await of a client
    os.write(1, b"in\\n")
    time.sleep(float(sys.argv[2]))

@app.task(name="small")
async def small() -> None:
    await asyncio.sleep(0.002)

async def main() -> None:
    async with app, Worker(app):
        os.write(1, b"up\\n")
        await asyncio.sleep(3600)

asyncio.run(main())
"""
PAUSE = 2.5  # s; twice as long as a call waits here


@pytest.mark.slow
async def test_a_worker_with_a_blocked_loop_refuses_no_enqueue_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid other jobs. `python3 dev.py bench paused` makes more rounds, and pauses a worker in other ways."""
    monkeypatch.setattr("treadle.storage.sqlite.lockfile.WAIT", PAUSE / 2)
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url)
    pause, small = app.stub("blocks"), app.stub("small")
    async with app:
        words = [sys.executable, "-c", WORKER, url, str(PAUSE)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:  # noqa: ASYNC220 - it is short
            try:
                assert await asyncio.to_thread(line, worker) == "up"
                for _ in range(3):
                    others = [small.job() for _ in range(100)]
                    await app.enqueue([*others, pause.job(), *others])
                    assert await asyncio.to_thread(line, worker) == "in"
                    for _ in range(3):
                        await small.enqueue()
                    await until(lambda: _is_idle(app), "all jobs have ended")
            finally:
                worker.kill()


async def _is_idle(app: App) -> bool:
    return all(not each.queued and not each.running for each in (await app.storage.glance()).queues)
