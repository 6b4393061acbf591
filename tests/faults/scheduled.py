"""A worker with a schedule, to be killed: `python -m tests.faults.scheduled URL`."""

from __future__ import annotations

import asyncio
import sys

from treadle import App, Worker

EVERY = 0.25


def make(url: str) -> App:
    app = App(url)

    @app.every(EVERY, catch_up="all")
    @app.task(name="beat")
    async def beat() -> None: ...

    return app


async def main(url: str) -> None:
    await Worker(make(url), concurrency=4, lease=1, poll=0.2).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
