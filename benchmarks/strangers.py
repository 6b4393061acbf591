"""How long plain enqueues take on PostgreSQL while a transaction of another program holds a key that other calls need.

    python3 dev.py bench strangers [--seconds 60] [--waiting 20] [--rounds 3]

One process enqueues a job without a key every 5 ms, one call after the other. Rounds alternate: alone; while 20 calls
of the same process wait for the key of an open transaction, each repeated as soon as it has raised Locked; and while
the transaction holds another key for each of these calls. The goal: p99 within twice that of the rounds alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator

import psycopg

from benchmarks.claim_cost import there
from treadle import App, Locked

EVERY = 0.005  # s between two calls
KINDS = ("alone", "one key", "many keys")


def declared(url: str) -> App:
    app = App(url)

    @app.task(name="mail")
    async def mail(order: int) -> None: ...

    return app


@contextlib.asynccontextmanager
async def held(app: App, url: str, kind: str, waiting: int) -> AsyncIterator[list[int]]:
    """An open transaction, and calls that wait for it. Yields how many calls have raised Locked."""
    raised = [0]
    mail = app.tasks["mail"]

    async def need(key: str) -> None:
        while True:
            try:
                await app.enqueue(mail.options(key=key).job(2))
            except Locked:
                raised[0] += 1

    if kind == "alone":
        yield raised
        return
    async with await psycopg.AsyncConnection.connect(url) as stranger:
        keys = ["k" if kind == "one key" else f"k{n}" for n in range(waiting)]
        for key in dict.fromkeys(keys):
            await app.enqueue(mail.options(key=key).job(1), within=stranger)
        calls = [asyncio.ensure_future(need(key)) for key in keys]
        await asyncio.sleep(0)
        try:
            yield raised
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await stranger.rollback()


async def plain(app: App, seconds: float) -> list[float]:
    """The ms that each of the calls without a key took."""
    took, ends, mail = list[float](), time.perf_counter() + seconds, app.tasks["mail"]
    while time.perf_counter() < ends:
        began = time.perf_counter()
        await app.enqueue(mail.job(1))
        took.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(EVERY)
    return took


def told(kind: str, took: list[float], raised: int) -> str:
    parts = statistics.quantiles(took, n=1000)
    figures = (statistics.median(took), parts[989], parts[998], max(took))
    return f"| {kind} | {len(took)} | {' | '.join(f'{each:.2f}' for each in figures)} | {raised} |"


async def measure(where: str, seconds: float, waiting: int, rounds: int) -> None:
    async with there(where) as url, declared(url) as app:
        await plain(app, 1.0)
        print("| while calls wait for | calls | median, ms | p99 | p99.9 | longest | raised Locked |")
        print(f"|{'---|' * 7}")
        for _ in range(rounds):
            for kind in KINDS:
                async with held(app, url, kind, waiting) as raised:
                    print(told(kind, await plain(app, seconds), raised[0]), flush=True)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench strangers", description=__doc__)
    parser.add_argument("--url", default="postgres")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--waiting", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(words)
    asyncio.run(measure(args.url, args.seconds, args.waiting, args.rounds))
