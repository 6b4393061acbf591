"""A worker process for the pick-up measure: prints the time from each job's enqueue to its start."""

from __future__ import annotations

import asyncio
import sys
import time

from treadle import App, Worker

app = App(sys.argv[1] if __name__ == "__main__" else "memory://")


@app.task(name="stamp")
async def stamp(sent: float) -> None:
    print(time.monotonic() - sent, flush=True)


async def main() -> None:
    worker = Worker(app)
    await worker.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
