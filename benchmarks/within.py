"""The cost of `within=` against a plain INSERT of a row of the same size, in a transaction of its own, on each driver.

    python3 dev.py bench within [--pairs 300] [--drivers psycopg asyncpg ...]

Both are measured alternately on one connection, with the settings of production: a commit waits for the disk. `call` is
the INSERT or the enqueue alone, `transaction` is from its begin to the end of its commit. Figures are medians in ms.
The app is not open. The goal: a transaction that enqueues takes at most twice as long as one that inserts.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psycopg

from tests.drivers import DRIVERS, Driver, Using
from tests.servers.postgres import Postgres
from treadle import App

WARM = 20  # pairs before the measurement: plans and prepared statements are made per connection
TABLE = "CREATE TABLE plain_row (id text PRIMARY KEY, task text, queue text, spec text, state int, due float)"
HEAD = "| driver | INSERT, call | enqueue, call | ratio | INSERT, transaction | enqueue, transaction | ratio |"


def declared(url: str) -> App:
    app = App(url)

    @app.task(name="mail")
    def mail(order: int, to: str, text: str) -> None: ...

    return app


class Pair:
    """The times of both, of one driver."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.calls: tuple[list[float], list[float]] = ([], [])
        self.transactions: tuple[list[float], list[float]] = ([], [])

    async def run(self, using: Using, pairs: int) -> None:
        await using.rollback()
        for number in range(WARM + pairs):
            for kind in (0, 1):
                call, transaction = await self._one(using, kind)
                if number >= WARM:
                    self.calls[kind].append(call)
                    self.transactions[kind].append(transaction)
        await using.begin()  # what the driver rolls back in the end

    async def _one(self, using: Using, kind: int) -> tuple[float, float]:
        spec = self._app.tasks["mail"].job(17, "ada@example.org", "x" * 100)
        new = spec.new
        row = f"'{new.id}', 'mail', 'default', '{new.payload}', 1, 1.5"
        began = time.perf_counter()
        await using.begin()
        begun = time.perf_counter()
        if kind:
            await using.enqueue(self._app, spec)
        else:
            await using.execute(f"INSERT INTO plain_row VALUES ({row})")
        called = time.perf_counter()
        await using.commit()
        return called - begun, time.perf_counter() - began


def told(driver: Driver, pair: Pair) -> str:
    found = []
    for kinds in (pair.calls, pair.transactions):
        plain, ours = (1000 * statistics.median(each) for each in kinds)
        found.append(f"{plain:.2f} | {ours:.2f} | {ours / plain:.2f}")
    return f"| {driver} | {' | '.join(found)} |"


async def measure(drivers: list[Driver], pairs: int) -> None:
    with Postgres(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        url, path = server.database(), str(Path(folder, "app.db"))
        for ours in (url, f"sqlite:///{path}?shared=true"):
            async with declared(ours):
                pass
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(TABLE)
        with closing(sqlite3.connect(path)) as file:
            file.execute(TABLE)
        print(f"{HEAD}\n|{'---|' * 7}", flush=True)
        for driver in drivers:
            theirs = path if driver.dialect == "sqlite" else url
            app = declared(f"sqlite:///{path}?shared=true" if driver.dialect == "sqlite" else url)
            pair = Pair(app)
            await driver.run(theirs, lambda using, pair=pair: pair.run(using, pairs))  # type: ignore[misc]
            await app._core.storage.close()
            print(told(driver, pair), flush=True)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench within", description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--drivers", nargs="+", default=[str(each) for each in DRIVERS])
    args = parser.parse_args(words)
    asyncio.run(measure([each for each in DRIVERS if str(each) in args.drivers], args.pairs))
