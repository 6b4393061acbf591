"""kill -9 of what writes to an outbox and of what relays from it: every committed job is delivered, and only once."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from benchmarks import outbox as bench
from tests.faults.relaying import JOBS
from tests.outbox.kit import KINDS, a_database, an_app, relayed
from tests.servers import valkey
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow


@shows("a writer and a relay of an outbox may be killed at any statement: each committed job is delivered once")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_relay_killed_at_every_statement_delivers_each_job_once(kind: str, tmp_path: Path) -> None:
    data, namespace = a_database(kind, tmp_path), f"killed-{tmp_path.name}"
    data.run("CREATE TABLE orders (name VARCHAR(20))")
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    words = [f"{valkey.url()}?ns={namespace}", data.url, kind, str(tmp_path)]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.relaying", *words, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    kills = dict(line.split() for line in out.decode().splitlines())
    assert int(kills["writer"]) >= 8, "before and after three statements and the commit"
    assert int(kills["relay"]) >= 10, "before and after the lease, the page, the delivery, the delete, the last look"
    async with app:
        await relayed(app)
        orders = [name for (name,) in data.run("SELECT name FROM orders")]
        rows = [row.job.payload async for row in app.jobs.iterate()]
    assert orders
    assert sorted(rows) == sorted(f'["{name}-{n}"]' for name in orders for n in range(JOBS))
    assert (await app.outbox.stats()).rows == 0
    await app.outbox._close()


@shows("no row of an outbox is lost or delivered twice while its relays are killed with kill -9")
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_a_relay_killed_at_random_times_delivers_each_job_once(kind: str, tmp_path: Path) -> None:
    """`bench outbox` does the same with 100,000 rows and 20 kills."""
    data = a_database(kind, tmp_path)
    with valkey.Valkey() as server:
        url = f"{server.url}?ns=killed"
        app = bench.make(url, data.url)
        assert await bench.killed(app, url, data, rows=2_000, kills=2, rng=random.Random(1), page=20) == 2
