"""A worker of workflows, to be killed: `python -m tests.faults.workflows URL LEDGER WELL`.

Some children fail, as the file WELL says: with each letter in it, the workflows get one round further.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from tests.faults.workload import LEASE, ledger
from treadle import Abort, App, Event, Flow, Retry, Worker, current, flow, gather

CHILDREN = 3


def total(n: int) -> int:
    """The value of workflow n: its children, and those of its inner workflow."""
    return sum(10 * n + each for each in range(CHILDREN)) + sum(range(CHILDREN))


def gives_up(n: int, each: int, round_: int) -> bool:
    """Whether a child fails: one child of every third workflow, in its first two rounds."""
    return n % 3 == 0 and each == 1 and round_ < 2


def rounds(well: Path) -> int:
    return len(well.read_text())


def make(url: str, book: int, well: Path) -> App:
    app = App(url, retry=Retry(attempts=50, base=0.02, max=0.1))

    @app.task(name="child", max_lost=1_000)
    async def child(n: int, each: int) -> int:
        await asyncio.sleep(random.random() * 0.02)
        if (n + each) % 4 == 0 and current().attempt == 1:
            raise RuntimeError("every fourth fails once")
        if gives_up(n, each, rounds(well)):
            raise Abort("not before another round")
        return 10 * n + each

    @app.task(name="inner", max_lost=1_000, reduce="sum")
    async def inner() -> Flow[int]:
        return flow(child.job(0, each) if each != 1 else even.job(each) for each in range(CHILDREN))

    @app.task(name="even", max_lost=1_000)
    async def even(each: int) -> int:
        return each

    @app.task(name="add", max_lost=1_000)
    async def add(parts: list[int]) -> int:
        return sum(parts)

    @app.task(name="outer", max_lost=1_000)
    async def outer(n: int) -> Flow[int]:
        return gather(*(child.job(n, each) for each in range(CHILDREN)), inner.job()).into(add)

    @app.on("workflow.ended")
    def ended(event: Event) -> None:
        assert event.record is not None
        os.write(book, f"ended {event.id} {event.record.reopenings} {event.record.state}\n".encode())

    return app


async def main(url: str, book: int, well: Path) -> None:
    worker = Worker(make(url, book, well), concurrency=8, lease=LEASE, poll=0.2)
    await worker.start()
    os.write(book, b"up\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], ledger(sys.argv[2]), Path(sys.argv[3])))
