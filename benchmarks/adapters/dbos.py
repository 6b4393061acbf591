"""dbos queues on PostgreSQL or SQLite: async workflows, with a queue polled every 10 ms (its default is 1 s).

It has no bulk enqueue. It keeps each workflow's status and output in its tables by design.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from benchmarks.adapters.frame import ASK, BALLAST, VALUE, About, Producer, body, main

SQLITE = ASK.storage.startswith("sqlite")
if SQLITE:
    import sqlite3

    if sqlite3.sqlite_version_info < (3, 42):  # the schema of dbos needs unixepoch('subsec')
        import pysqlite3

        sys.modules["sqlite3"] = pysqlite3  # before dbos imports sqlite3

from dbos import DBOS, SetEnqueueOptions  # noqa: E402

ABOUT = About(
    packages=("dbos", "sqlalchemy"),
    settled=f"SELECT count(*) FROM {'' if SQLITE else 'dbos.'}workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
    worker="loses nothing: a process with the same executor id recovers its workflows when it starts",
    server="loses nothing" + (": a rollback journal, synchronous=full" if SQLITE else ""),
    notes="worker_concurrency 100 unless set, polling_interval_sec 0.01, pool of 20; outputs are always kept; "
    "no bulk call",
    can=("results", "limits", "lanes", "fanin", "processes"),
)
DBOS(
    config={
        "name": "peer",
        "system_database_url": ASK.url,
        "log_level": "ERROR",
        "run_admin_server": False,
        "sys_db_pool_size": 20,
    }
)
LANES = ASK.feature == "lanes"


@DBOS.workflow(name="noop")
async def noop(sent: float, ballast: str = "") -> int | None:
    await body(sent)
    return VALUE


@DBOS.workflow(name="fold")
async def fold(n: int) -> int:
    queue = await DBOS.retrieve_queue_async("peer")
    handles = [await queue.enqueue_async(noop, 0.0) for _ in range(n)]
    values = [await handle.get_result() for handle in handles]
    await body(0.0)
    return len(values)


def register() -> Any:
    options: dict[str, Any] = {"worker_concurrency": ASK.concurrency or 100}
    if ASK.feature == "limits":
        options |= {"global_concurrency": 1_000_000}
    if LANES:
        options |= {"partition_worker_concurrency": max(1, options["worker_concurrency"] // 10)}
    return DBOS.register_queue("peer", polling_interval_sec=0.01, **options)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    DBOS.listen_queues([])
    DBOS.launch()
    queue = await asyncio.to_thread(register)
    numbers = count()

    def arguments(sent: float) -> tuple[Any, ...]:
        return (sent, BALLAST) if BALLAST else (sent,)

    async def one(sent: float) -> None:
        if LANES:
            with SetEnqueueOptions(queue_partition_key=f"tenant-{next(numbers) % 10}"):
                await queue.enqueue_async(noop, *arguments(sent))
        else:
            await queue.enqueue_async(noop, *arguments(sent))

    async def result() -> None:
        handle = await queue.enqueue_async(noop, 0.0)
        await handle.get_result(polling_interval_sec=0.01)

    async def fan(n: int) -> None:
        await queue.enqueue_async(fold, n)

    yield Producer(one, result=result, fan=fan)
    DBOS.destroy()


def worker() -> None:
    DBOS.launch()
    register()
    signal.sigwait({signal.SIGTERM})
    DBOS.destroy()


def setup() -> None:
    DBOS.launch()
    register()
    DBOS.destroy()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(sys.modules[__name__])
