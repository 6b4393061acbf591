"""`bench outbox`: how fast a relay delivers the rows of an outbox to Redis, and that none is lost or doubled while it
is killed.

    python3 dev.py bench outbox [--rows 100000] [--kills 20] [--data sqlite postgresql mysql]

First one relay delivers all rows, for the rate. Then the same rows are delivered by relays that are killed with
kill -9 at random moments, while workers run the jobs and count how often each ran.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from tests.outbox.kit import Data, a_database
from tests.servers import valkey
from tests.waiting import until
from treadle import App, Outbox, Worker
from treadle.outbox import relay as relays
from treadle.outbox.rows import text_of

SEED = 20_261_126
LEASE = 0.5  # s, so that the next relay does not wait for long
CHUNK = 5_000  # rows of one INSERT
RAN = "outbox:ran"  # a hash of Redis: number -> how often its job ran


def make(url: str, outbox: str) -> App:
    app = App(url, outbox=Outbox(outbox))

    @app.batch(name="count", size=500, max_wait=0.01, keep=3600)
    async def count(items: list[int]) -> list[None]:
        pipe = redis.Redis.from_url(url.partition("?")[0]).pipeline(transaction=False)
        for number in items:
            pipe.hincrby(RAN, str(number), 1)
        pipe.execute()
        pipe.connection_pool.disconnect()
        return [None] * len(items)

    return app


async def fill(app: App, data: Data, rows: int) -> None:
    """Write one row for each job, as `within=` does in transactions of one job."""
    assert app.outbox is not None
    await app.outbox.create()
    data.run("DELETE FROM treadle_outbox")
    task, statements = app.tasks["count"], app.outbox._statements
    with closing(data.connect()) as db:
        for start in range(0, rows, CHUNK):
            from treadle.outbox.table import New

            some = [task.job(n).new for n in range(start, min(start + CHUNK, rows))]
            text, values = statements.insert([New(job.id, text_of(job), None) for job in some])
            if data.kind == "postgresql":
                import psycopg

                psycopg.RawCursor(db).execute(text, tuple(values))
            else:
                db.cursor().execute(text, tuple(values))
            db.commit()


async def rate(url: str, data: Data, rows: int) -> tuple[float, float, float]:
    """Rows that one relay delivers: a second, a second of its own processor time, and a second of the Redis server's
    processor time. The last two do not depend on what else the machine does."""
    app, server = make(url, data.url), redis.Redis.from_url(url.partition("?")[0])
    await fill(app, data, rows)
    async with app:
        relay = app._core.relay
        assert relay is not None
        began, cpu, servers = time.perf_counter(), time.process_time(), _cpu(server)
        delivered = await relay.everything()
        took, cpu, servers = time.perf_counter() - began, time.process_time() - cpu, _cpu(server) - servers
    server.close()
    assert delivered == rows, f"{delivered} of {rows}"
    return rows / took, rows / cpu, rows / servers


def _cpu(server: Any) -> float:
    found = server.info("cpu")
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


# --- with kills


async def relaying(url: str, outbox: str, page: int, goal: int, after: float) -> None:
    """The process that is killed: `after` s after it has delivered `goal` jobs; 0: never."""
    relays.PAGE = page  # type: ignore[misc]
    app = make(url, outbox)
    async with app:
        assert app.outbox is not None
        relay = app.outbox._relay(app._core.opened, lease=LEASE)
        deliver, killer = relay._page, threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))

        async def counted(*page: Any) -> Any:
            done = await deliver(*page)
            if goal and relay.delivered >= goal and not killer.ident:
                killer.start()  # a thread, so it strikes at any statement
            return done

        relay._page = counted  # type: ignore[method-assign]
        await relay.run()


async def _empty(app: App) -> bool:
    assert app.outbox is not None
    return not (await app.outbox.stats()).rows


async def killed(
    app: App, url: str, data: Data, rows: int, kills: int, rng: random.Random, page: int = relays.PAGE
) -> int:
    """Kill the relay `kills` times before all rows are delivered; `page`: rows of one delivery. Returns how often it
    was killed."""
    server = redis.Redis.from_url(url.partition("?")[0])
    server.delete(RAN)
    await fill(app, data, rows)
    assert app.outbox is not None
    count, turn = 0, rows // (kills + 1)
    words = [sys.executable, "-m", "benchmarks.outbox", "--relay", url, data.url, str(page)]
    async with app, Worker(app, concurrency=2_000, relay=False):
        while count < kills:
            goal, after = rng.randint(turn // 2, turn), rng.uniform(0.0, 0.01)
            relay = await asyncio.create_subprocess_exec(*words, str(goal), str(after))
            assert await relay.wait() == -signal.SIGKILL
            count += 1
        assert not await _empty(app), "all rows were delivered before the last kill: give more --rows"
        relay = await asyncio.create_subprocess_exec(*words, "0", "0")
        await until(lambda: _empty(app), "the last delete", 300)
        relay.terminate()
        await relay.wait()

        async def ran() -> bool:
            counts = (await app.queues.stats()).counts
            return not any(each.jobs for each in counts if each.task == "count" and not each.state.final)

        await until(ran, "the end of all jobs", 600)
    found = {int(number): int(times) for number, times in server.hgetall(RAN).items()}
    lost, twice = rows - len(found), sum(times > 1 for times in found.values())
    assert (lost, twice) == (0, 0), f"{lost} lost, {twice} ran twice"
    return count


async def both(kind: str, rows: int, kills: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = a_database(kind, Path(folder))
        best = []
        for _ in range(rounds):
            with valkey.Valkey() as server:
                best.append(await rate(f"{server.url}?ns=rate", data, rows))
        rates = ", ".join(f"{each:,.0f} ({cpu:,.0f}, {servers:,.0f})" for each, cpu, servers in best)
        words = "rows/s (a second of the relay's processor, of the Redis server's)"
        print(f"{kind} -> Redis: {rows:,} rows, {rates} {words}", flush=True)
        if kills:
            with valkey.Valkey() as server:
                url, began = f"{server.url}?ns=killed", time.perf_counter()
                count = await killed(make(url, data.url), url, data, rows, kills, random.Random(SEED))
                took = time.perf_counter() - began
            print(f"{kind} -> Redis: {rows:,} rows, {count} kills in {took:.0f} s: none lost, none twice", flush=True)


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--relay"]:
        asyncio.run(relaying(words[1], words[2], int(words[3]), int(words[4]), float(words[5])))
        return
    parser = argparse.ArgumentParser(prog="bench outbox", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20, help="0: only the rate")
    parser.add_argument("--rounds", type=int, default=3, help="of the rate")
    parser.add_argument("--data", nargs="+", default=["postgresql", "sqlite"], metavar="KIND")
    given = parser.parse_args(words)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for kind in given.data:
        asyncio.run(both(kind, given.rows, given.kills, given.rounds))


if __name__ == "__main__":
    main(sys.argv[1:])
