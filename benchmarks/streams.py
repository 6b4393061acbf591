"""Readers of a stream: the CPU of one process with the job that writes it, and `readers` that follow it.

Run `python -m benchmarks.streams URL [READERS]`; without readers, one and a hundred.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from treadle import App, Worker, current

RATE: Final = 100  # chunks a second
SECONDS: Final = 10.0


async def measure(url: str, readers: int) -> None:
    app = App(url)

    @app.task
    async def talk() -> None:
        out, begun = current().stream("out"), time.monotonic()
        for number in range(1, int(RATE * SECONDS) + 1):
            await out.write("token ")
            await asyncio.sleep(max(0.0, begun + number / RATE - time.monotonic()))

    async def read(job: str) -> int:
        return len([entry async for entry in app.jobs.follow(job, "out")])

    async with app, Worker(app):
        job = await talk.enqueue()
        used, begun = time.process_time(), time.monotonic()
        counts = set(await asyncio.gather(*(read(job.id) for _ in range(readers))))
        used, passed = time.process_time() - used, time.monotonic() - begun
    assert counts == {int(RATE * SECONDS)}, counts
    print(f"{url.partition(':')[0]}: {readers} readers of {RATE} chunks/s: {used / passed:.1%} of a core")


if __name__ == "__main__":
    for count in [int(text) for text in sys.argv[2:]] or [1, 100]:
        asyncio.run(measure(sys.argv[1], count))
