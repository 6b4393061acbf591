"""The dashboard against its budgets; exits with 1 beyond one of them.

    python3 dev.py bench dashboard [--rows 1000000] [--storages sqlite,redis,postgres] [--viewers 1,20,100]
        [--write docs/benchmarks.md]

Without --rows: the sizes of the built files, the first paint and the first live figures in a browser, and the CPU that
viewers cost on a small storage. With --rows: also CPU, looks and the time of an enqueue with that many queued jobs on
each storage, and what remains once nobody looks. All is measured on one machine, so nothing else should run on it.
With --write the table replaces the one between the marks `dashboard` of that page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.dashboard import page, viewers
from benchmarks.dashboard.figures import SECTION, Figure, verdict, write
from benchmarks.dashboard.served import server
from benchmarks.harness.marked_page import Unmarked
from benchmarks.looks import fill
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey
from treadle import App

SMALL = 1_000  # rows of a small storage
BUSY_SMALL = {1: 0.5, 100: 1.0}  # percent of a core that viewers may cost on a small storage
BUSY_LARGE = {1: 1.0, 100: 2.0}  # the same on a large one
LEFT = 0.3  # percent of a core that remains of all viewers once they have left: what the meter does not resolve
SLOWER = 1.1  # p99 of an enqueue with a viewer, relative to none
NOISE = 0.5  # ms by which two p99 differ on an idle machine


class Place(NamedTuple):
    url: str
    pids: list[int]  # processes of the storage's server


@contextlib.contextmanager
def storage(kind: str) -> Iterator[Place]:
    """An empty storage of this kind."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="treadle-bench-") as folder:
            yield Place(f"sqlite:///{folder}/jobs.db?synchronous=normal", [])
    elif kind == "redis":
        with Valkey() as valkey:
            yield Place(valkey.url, [valkey.pid])
    elif kind == "postgres":
        with Postgres() as postgres:
            yield Place(postgres.url, [postgres.pid])
    else:
        raise SystemExit(f"--storages: expected sqlite, redis, postgres; found {kind!r}")


async def on(kind: str, rows: int, numbers: list[int], seconds: float, small: bool) -> list[Figure]:
    """The figures of one storage with that many queued jobs."""
    with storage(kind) as place, tempfile.TemporaryDirectory() as folder:
        app = App(place.url)

        @app.task(name="mail.send", queue="mail")
        async def send() -> None: ...

        async with app:
            await fill(app, app.storage, rows, ended=False)
            with server(place.url, folder) as (url, pid):
                found = await page.visits(url) if small else []
                pids = [pid, *place.pids]
                none = await viewers.measured(app, url, pids, 0, seconds)
                found.append(Figure(f"{kind}, {rows:,} rows: CPU without viewers", none.busy, "%"))
                for number in numbers:
                    one = await viewers.measured(app, url, pids, number, seconds)
                    found += _figures(kind, rows, none, one, small)
                left = await viewers.measured(app, url, pids, 0, seconds)
                more = max(0.0, left.busy - none.busy)
                found.append(Figure(f"{kind}, {rows:,} rows, nobody looks any more: more CPU", more, "%", LEFT))
    return found


def _figures(kind: str, rows: int, none: viewers.Round, one: viewers.Round, small: bool) -> list[Figure]:
    name = f"{kind}, {rows:,} rows, {one.viewers} viewer{'s' * (one.viewers != 1)}"
    most = (BUSY_SMALL if small else BUSY_LARGE).get(one.viewers)
    return [
        Figure(f"{name}: more CPU of server and storage", max(0.0, one.busy - none.busy), "%", most),
        Figure(f"{name}: looks", one.rate, "/s", 0.5 + 1 / one.seconds),  # one each 2 s, and one at the beginning
        Figure(f"{name}: one look", one.cost, "ms"),
        Figure(f"{name}: p99 of an enqueue", one.p99, "ms", none.p99 * SLOWER + NOISE if one.viewers == 1 else None),
    ]


async def run(rows: int, kinds: list[str], numbers: list[int], seconds: float) -> list[Figure]:
    figures = page.sizes() + await on("sqlite", SMALL, [each for each in numbers if each in BUSY_SMALL], seconds, True)
    if rows:
        for kind in kinds:
            figures += await on(kind, rows, numbers, seconds, False)
    return figures


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bench dashboard", description=__doc__)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--storages", default="sqlite,redis,postgres")
    parser.add_argument("--viewers", default="1,20,100")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--write", type=Path, help="a Markdown file whose part between the marks is replaced")
    args = parser.parse_args(words)
    if args.write:
        try:
            SECTION.check(args.write)  # fail before measuring
        except Unmarked as error:
            raise SystemExit(str(error)) from None
    numbers = [int(each) for each in args.viewers.split(",")]
    figures = asyncio.run(run(args.rows, args.storages.split(","), numbers, args.seconds))
    if args.write:
        write(args.write, figures)
    return verdict(figures)
