"""The cost of looking at a storage with many jobs: the calls of pages that are refreshed, and of those opened once.

    python3 dev.py bench looks --url sqlite:////tmp/looks.db [--rows 1000000] [--ended] [--pid PID]

The storage is filled if it is empty: with queued jobs, or with ended ones, of which one in a thousand failed; also 20
running jobs, 200 scheduled and 3 schedules. Each look is made three times; the figures are those of the fastest: the
time of the call, the CPU time of this process (SQLite reads in it), and that of the server with the process id PID and
its children. `bench dashboard` measures what viewers make of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from treadle import App
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.core.query_model import Page, Query
from treadle.storage.contract import Storage

CALL = 1_000  # jobs of one call while the storage is filled
TIMES = 3
LONGEST = 60.0  # s after which a look is given up
RUNNING, SCHEDULED, SCHEDULES = 20, 200, 3
Look = Callable[[], Awaitable[Any]]


async def fill(app: App, storage: Storage, rows: int, ended: bool) -> None:
    begun = time.perf_counter()
    for at in range(0, rows, CALL):
        await storage.enqueue([NewJob(id=f"{at + n:026}", task="mail.send", queue="mail") for n in range(CALL)])
        if not ended:
            continue
        ask = Claim(worker=f"w#{at}", queues=(("mail", CALL),), limit=CALL, lease=1e5)
        claimed = (await storage.claim(ask)).records
        outcomes = [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in claimed]
        failed = Outcome(
            id=claimed[0].id, version=claimed[0].version, state=State.FAILED, reason="error", error="ValueError: 7"
        )
        await storage.settle([failed, *outcomes[1:]])
    await storage.enqueue([NewJob(id=f"run{n:023}", task="mail.send", queue="busy") for n in range(RUNNING)])
    await storage.claim(Claim(worker="w#run", queues=(("busy", RUNNING),), limit=RUNNING, lease=1e6))
    await storage.enqueue(
        [NewJob(id=f"late{n:022}", task="mail.send", queue="later", delay=1e5 + n) for n in range(SCHEDULED)]
    )
    for n in range(SCHEDULES):
        await app.schedules.upsert(f"nightly-{n}", app.tasks["mail.send"].job(), cron="0 3 * * *")
    print(f"filled with {rows:,} rows in {time.perf_counter() - begun:.0f} s\n", flush=True)


def looks(app: App, storage: Storage, last: str | None) -> dict[str, Look]:
    """The looks by name; `last`: the id of the last queued job."""

    def find(**options: Any) -> Look:
        return lambda: storage.find(Query(**options))

    found: dict[str, Look] = {
        "glance": storage.glance,
        "stats (every row)": storage.stats,
        "limits": storage.limits,
        "newest 50": find(),
        "newest 50, a task that does not occur, all rows": find(task="none"),
        "... 10,000 rows": find(task="none", scan=10_000),
        "... 100,000 rows": find(task="none", scan=100_000),
        "newest 50, one failed in a thousand, 10,000 rows": find(state=(State.FAILED,), scan=10_000),
        "latest 50 ended, 10,000 rows": find(order="ended", scan=10_000),
        "latest 50 failed": find(order="ended", state=(State.FAILED,), scan=10_000),
        "running, longest first": find(order="started", scan=10_000),
        "running, newest first": find(state=(State.RUNNING,), scan=10_000),
        "scheduled, next first": find(order="due", ready="scheduled", scan=10_000),
        "blocked": find(ready="blocked", scan=10_000),
        "first 50 of a queue": find(order="queue", queue="mail", scan=10_000),
        "schedules.list": app.schedules.list,
    }
    if last is not None:
        found["position of the last queued job"] = lambda: app.jobs.position(last)
        found["explain of the last queued job"] = lambda: app.jobs.explain(last)
    return found


def cpu(pid: int | None) -> tuple[float, float]:
    """CPU seconds of this process, and of `pid` with its children."""
    return time.process_time(), 0.0 if pid is None else sum(map(_spent, _family(pid)))


def _family(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in _family(child))]


def _spent(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(name: str, look: Look, pid: int | None) -> str:
    best: tuple[float, ...] | None = None
    answer: Any = None
    for _ in range(TIMES):
        before, begun = cpu(pid), time.perf_counter()
        try:
            answer = await asyncio.wait_for(look(), LONGEST)
        except TimeoutError:
            return f"| {name} | more than {LONGEST:g} s | | | |"
        took, after = time.perf_counter() - begun, cpu(pid)
        figures = took, *(late - early for late, early in zip(after, before, strict=True))
        best = figures if best is None else min(best, figures)
    assert best is not None
    took, own, server = (1e3 * seconds for seconds in best)
    rows = len(answer.records) if isinstance(answer, Page) else ""
    return f"| {name} | {took:,.2f} | {own:,.1f} | {'' if pid is None else f'{server:,.0f}'} | {rows} |"


async def run(url: str, rows: int, ended: bool, pid: int | None) -> None:
    app = App(url)

    @app.task(name="mail.send", queue="mail")
    async def send() -> None: ...

    async with app:
        storage = app.storage
        if not (await storage.find(Query(limit=1))).records:
            await fill(app, storage, rows, ended)
        queued = (await storage.find(Query(ready="queued", queue="mail", limit=1, scan=CALL))).records
        print("| look | ms | own CPU, ms | server CPU, ms | rows |\n|---|---|---|---|---|", flush=True)
        for name, look in looks(app, storage, queued[0].id if queued else None).items():
            print(await measure(name, look, pid), flush=True)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench looks", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ended", action="store_true", help="fill with ended jobs instead of queued ones")
    parser.add_argument("--pid", type=int, help="process id of the server whose CPU time is shown")
    args = parser.parse_args(words)
    asyncio.run(run(args.url, args.rows, args.ended, args.pid))
