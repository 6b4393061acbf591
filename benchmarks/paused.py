"""What a paused worker does to the other processes at a SQLite file: how many enqueues it refuses, and the longest.

    python3 dev.py bench paused [--rounds 100] [--only blocks]

In each round a worker runs 200 small jobs and one that pauses its process for longer than a call waits (here `PATIENCE`
seconds instead of 10). Meanwhile this process enqueues three jobs.

blocks   an async task blocks the event loop
keeps    a plain function keeps the GIL from its first line on, as a regular expression does, or an extension
later    the same after 20 ms of work in Python and of waiting
stops    the process is stopped (SIGSTOP) at a random moment of the work, as by Ctrl-Z or a debugger
idle     it is stopped while it runs one job and nothing else
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from treadle import App
from treadle.errors import StorageUnavailable
from treadle.storage.sqlite import lockfile

PATIENCE, PAUSE = 1.0, 2.0  # seconds
OTHERS = 200
KINDS = ("blocks", "keeps", "later", "stops", "idle")
WORKER = """
import asyncio, ctypes, os, sys, time
from treadle import App, Worker

app, pause = App(sys.argv[1]), float(sys.argv[2])
libc = ctypes.PyDLL(None)  # its functions keep the GIL

@app.task(name="blocks")
async def blocks() -> None:
    await asyncio.sleep(0.01)
    os.write(1, b"in\\n")
    time.sleep(pause)

@app.task(name="keeps")
def keeps() -> None:
    libc.write(1, b"in\\n", 3)
    libc.usleep(int(pause * 1e6))

@app.task(name="later")
def later() -> None:
    time.sleep(0.01)
    sum(range(300_000))
    libc.write(1, b"in\\n", 3)
    libc.usleep(int(pause * 1e6))

@app.task(name="stops")
async def stops() -> None:
    os.write(1, b"in\\n")

@app.task(name="idle")
async def idle() -> None:
    await asyncio.sleep(0.3)
    os.write(1, b"in\\n")
    await asyncio.sleep(0.3)

@app.task(name="small")
async def small() -> None:
    await asyncio.sleep(0.002)

async def main() -> None:
    async with app, Worker(app):
        os.write(1, b"up\\n")
        await asyncio.sleep(1e6)

asyncio.run(main())
"""


async def measured(how: str, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{folder}/jobs.db")
        words = [sys.executable, "-c", WORKER, f"sqlite:///{folder}/jobs.db", str(PAUSE)]
        async with app:
            with subprocess.Popen(words, stdout=subprocess.PIPE) as worker:  # noqa: ASYNC220 - it is short
                try:
                    await asyncio.to_thread(worker.stdout.readline)  # type: ignore[union-attr]
                    took = [await one(app, worker, how) for _ in range(rounds)]
                finally:
                    worker.kill()
    refused = sum(each is None for each in took)
    worst = max((each for each in took if each is not None), default=0.0)
    return f"{how:8} refused in {refused} of {rounds} rounds; the longest of the others {1000 * worst:,.0f} ms"


async def one(app: App, worker: Any, how: str) -> float | None:
    """The longest enqueue of this round, in seconds. None: one was refused."""
    pause, small = app.stub(how), app.stub("small")
    others = [small.job() for _ in range(0 if how == "idle" else OTHERS // 2)]
    await app.enqueue([*others, pause.job(), *others])
    await asyncio.to_thread(worker.stdout.readline)
    if how in ("stops", "idle"):
        await asyncio.sleep(random.random() * 0.1 if how == "stops" else 0)
        worker.send_signal(signal.SIGSTOP)
    longest: float | None = 0.0
    try:
        for _ in range(3):
            begun = time.perf_counter()
            await small.enqueue()
            longest = max(longest or 0.0, time.perf_counter() - begun)
    except StorageUnavailable:
        longest = None
    worker.send_signal(signal.SIGCONT)
    while any(each.queued or each.running for each in (await app.storage.glance()).queues):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return longest


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench paused", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="Rounds of each kind. [default: 100]")
    parser.add_argument("--only", choices=KINDS, help="Only this kind of pause. [default: all]")
    options = parser.parse_args(words)
    lockfile.WAIT = PATIENCE  # type: ignore[misc]
    for how in KINDS if options.only is None else (options.only,):
        print(asyncio.run(measured(how, options.rounds)), flush=True)
