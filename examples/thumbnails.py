"""CPU-bound work: each job runs in its own process, so the worker uses all cores and can stop a job.

    treadle worker examples/thumbnails.py:app --concurrency 4
    python examples/thumbnails.py

There is no picture library here: an "image" is a square of grey values, and shrinking it is plain arithmetic.
"""

from __future__ import annotations

import asyncio
import sys

from treadle import App, JobFailed, Retry, Worker

app = App()


@app.task(kind="process", timeout=20, retry=Retry(attempts=2, base=0.1))
def shrink(picture: str, side: int, factor: int) -> list[list[int]]:
    """Plain `def`, at the top of a module: the other process imports it by name."""
    seed = sum(picture.encode())
    pixels = [[(seed + x * y) % 256 for x in range(side)] for y in range(side)]
    small = side // factor
    return [
        [
            sum(pixels[y * factor + dy][x * factor + dx] for dy in range(factor) for dx in range(factor)) // factor**2
            for x in range(small)
        ]
        for y in range(small)
    ]


@app.task(kind="process", timeout=0.5, retry=Retry(attempts=1))
def endless(picture: str) -> None:
    """A broken picture with which a decoder never ends. A thread could not be stopped; a process is killed."""
    while True:
        pass


async def main(with_worker: bool) -> None:
    async with app:
        jobs = await app.enqueue(shrink.job(f"cat-{number}", 200, 50) for number in range(8))
        bad = await endless.enqueue("broken")
        if with_worker:
            async with Worker(app, concurrency=4):
                await show(jobs, bad)
        else:
            await show(jobs, bad)


async def show(jobs: list, bad: object) -> None:
    for number, job in enumerate(jobs):
        small = await job.result(timeout=60)
        print(f"cat-{number}: {len(small)} x {len(small[0])}, first pixel {small[0][0]}")
    try:
        await bad.result(timeout=60)
    except JobFailed as error:
        print("broken:", error.error.splitlines()[-1])


if __name__ == "__main__":
    asyncio.run(main(with_worker="--worker" in sys.argv))
