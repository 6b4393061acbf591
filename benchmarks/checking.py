"""The cost of `treadle storage check` with many unfinished jobs, and what other callers notice of it.

    python3 dev.py bench check --url sqlite:////tmp/check.db [--rows 1000000] [--other]

The storage is filled if it is empty, with queued jobs of two parameters; one in a thousand does not fit the code. The
figures are the time of the check, the CPU time of this process, and the longest and the median time that an enqueue of
another connection took meanwhile, next to the same without a check. The figures are in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable
from typing import Any

from treadle import App
from treadle.admin.code_check import Options, check_code
from treadle.core.model import NewJob
from treadle.storage import connect
from treadle.storage.contract import Storage

CALL = 1_000  # jobs of one call while the storage is filled
PAUSE = 0.01  # s between two enqueues of the other caller


def program(url: str) -> App:
    app = App(url)

    @app.task(name="mail.send", queue="mail")
    async def send(to: str, number: int) -> None: ...

    return app


async def fill(storage: Storage, rows: int) -> None:
    for at in range(0, rows, CALL):
        jobs = [
            NewJob(
                id=f"{at + n:026}",
                task="mail.send",
                queue="mail",
                payload=f'["user-{at + n}@example.org",{"null" if n == 7 else n}]',
            )
            for n in range(CALL)
        ]
        await storage.enqueue(jobs)


async def other(url: str, until: Awaitable[Any]) -> list[float]:
    """The times of enqueues on another connection while something else runs."""
    storage, times, done = connect(url), list[float](), asyncio.ensure_future(until)
    await storage.open()
    while not done.done():
        began = time.perf_counter()
        await storage.enqueue([NewJob(id=f"other-{time.time_ns()}", task="mail.send", queue="q", payload='["x",1]')])
        times.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE)
    await done
    await storage.close()
    return times


async def checked(url: str) -> None:
    app = program(url)
    began, spent = time.perf_counter(), time.process_time()
    with app._core.looking():
        async with app:
            report = await check_code(app._core, Options(serves=("mail", "q")))
    print(
        f"{report.looked:,} jobs looked at in {time.perf_counter() - began:.1f} s, "
        f"{time.process_time() - spent:.1f} s of CPU; {len(report.findings)} findings"
    )


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bench check", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--other", action="store_true", help="also measure another caller, in this process")
    given = parser.parse_args(words)

    async def run() -> None:
        storage = connect(given.url)
        await storage.open()
        if not (await storage.stats()).counts:
            began = time.perf_counter()
            await fill(storage, given.rows)
            print(f"filled with {given.rows:,} rows in {time.perf_counter() - began:.0f} s", flush=True)
        await storage.close()
        if not given.other:
            await checked(given.url)
            return
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks", "check", "--url", given.url)
        for name, work in (("during the check", process.wait()), ("without it", asyncio.sleep(3.0))):
            times = await other(given.url, work)
            print(f"{name}: {len(times)} enqueues, median {_ms(statistics.median(times))}, longest {_ms(max(times))}")

    asyncio.run(run())
    return 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
