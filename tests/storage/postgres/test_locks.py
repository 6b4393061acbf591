"""No two calls wait for each other; see the order of locks in docs/internals/postgres.md.

Several workers on connections of their own, and an operator, run the mixed load of `dev.py bench waits`, which also
measures how long calls wait. A sampler asks the server which backend waits for which. Two calls that wait for each
other show as a cycle, or as a deadlock that the server ends; neither is allowed. The server reads its locks one backend
after the other, so a cycle counts if the same waits form it in two samples. A lock whose holder waits for its client
shows as a transaction that is idle, which is not allowed either.
"""

from __future__ import annotations

import contextlib
import threading

import psycopg
import pytest

from benchmarks.waits import Load, Watcher, work_off
from tests.servers import postgres
from tests.waiting import until_blocking


def test_the_sampler_finds_two_transactions_that_wait_for_each_other() -> None:
    url = postgres.database()
    watcher = Watcher(url)

    def lock(first: int, second: int, both: threading.Barrier) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("SET deadlock_timeout = '20s'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [first])
            both.wait(60)
            connection.execute("SET statement_timeout = '10s'")
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [second])

    both = threading.Barrier(2)
    threads = [threading.Thread(target=lock, args=(*pair, both)) for pair in ((1, 2), (2, 1))]
    with watcher.watching():
        for thread in threads:
            thread.start()
        until_blocking(lambda: watcher.cycles or not any(thread.is_alive() for thread in threads), "a cycle")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
        for thread in threads:
            thread.join()
    assert watcher.cycles


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_no_two_calls_wait_for_each_other(seed: int) -> None:
    url = postgres.database()
    load, watcher = Load(url, seed), Watcher(url)
    left = await work_off(load, watcher)
    longest = max((seconds for seconds, _ in watcher.waits.values()), default=0.0)
    print(
        f"{watcher.samples} samples, the longest wait {longest * 1000:.0f} ms;"
        f" {len(load.refused)} outcomes settled again after a lock timeout"
    )
    assert watcher.cycles == []
    assert [(row.job.id, row.state, row.blocked_on) for row in left] == []
    assert watcher.deadlocks() == 0
    assert watcher.samples > 20
    assert watcher.idle == set()
