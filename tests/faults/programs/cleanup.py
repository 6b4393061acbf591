"""Cancellation with cleanup: a reservation that is cancelled while it waits is released, and the guest gets a mail."""

import asyncio
import contextlib

from tests.faults.outside import effect, effects
from treadle import App, JobCancelled, current
from treadle.policy.cleanups import cleanup_id

app = App()


@app.task
async def reserve(room: int) -> None:
    here = current()
    await here.step("reserve", effect, f"reserve {room}")
    try:
        await here.wait_for("confirmed", timeout=86_400)
    except JobCancelled:
        await here.step("mail", effect, f"mail: {room} is cancelled")
        raise
    finally:
        await here.step("release", effect, f"release {room}")


# --- in the tests
LINES = ["reserve 7", "mail: 7 is cancelled", "release 7"]
waits = asyncio.Event()
app.on("waiting")(lambda _: waits.set())


async def scenario() -> None:
    job = await reserve.options(id="reserve").enqueue(7)
    if LINES[1] not in effects():
        await waits.wait()
        await app.jobs.cancel(job)
    with contextlib.suppress(JobCancelled):
        await job.result(timeout=60)
    await (await app.jobs.handle(cleanup_id("reserve", 0))).result(timeout=60)
