"""The processes that are killed: a worker and a producer on one storage, each with a ledger of what it knows.

A ledger line is one write of a process to a file opened for appending, so kill -9 of the process leaves whole lines.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from treadle import App, Event, Retry, StorageUnavailable, Worker, current

LEASE = 1.0


def ledger(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def make(url: str, book: int) -> App:
    app = App(url, retry=Retry(attempts=50, base=0.05, max=0.2))

    @app.task(name="work", max_lost=1_000)
    async def work(n: int) -> str:
        here = current()
        os.write(book, f"start {here.id} {here.version}\n".encode())
        await asyncio.sleep(random.random() * 0.02)
        if n % 7 == 0 and here.attempt == 1:
            raise RuntimeError("every seventh fails once")
        return f"{here.id} {here.version}"

    @app.on("succeeded")
    def settled(event: Event) -> None:
        assert event.record is not None
        os.write(book, f"settled {event.id} {event.record.version}\n".encode())

    return app


async def worker(url: str, book: int) -> None:
    app = make(url, book)
    runner = Worker(app, concurrency=16, lease=LEASE, poll=0.2)
    await runner.start()
    os.write(book, b"up\n")
    await asyncio.Event().wait()


async def producer(url: str, book: int, most: int) -> None:
    app = make(url, book)
    task, sent = app.find_task("work"), 0
    while sent < most:
        specs = [task.job(sent + i) for i in range(random.choice((1, 1, 5, 40)))]
        try:
            jobs = await app.enqueue(specs)
            while random.random() < 0.01:  # like a producer that did not get the answer
                jobs = await app.enqueue(specs)
        except StorageUnavailable:  # the server was killed; these jobs may be stored or not
            await asyncio.sleep(0.02)
            continue
        sent += len(specs)
        os.write(book, "".join(f"stored {job.id}\n" for job in jobs).encode())
        await asyncio.sleep(0.002)
    await app.close()
    os.write(book, b"done\n")


if __name__ == "__main__":
    role, url, path, most = sys.argv[1:5]
    book = ledger(path)
    asyncio.run(worker(url, book) if role == "worker" else producer(url, book, int(most)))
