"""Undo: each booking says how it is undone, and if the trip does not succeed, all of it is, in reverse."""

import contextlib

from tests.faults.outside import effect
from treadle import Abort, App, JobFailed, current
from treadle.policy.cleanups import cleanup_id

app = App()


def book(what: str) -> None:
    effect(f"book {what}")
    if what == "hotel":
        raise Abort("no room")


@app.task
async def trip() -> None:
    here = current()
    for what in ("flight", "car", "hotel"):
        here.on_undo(effect, f"cancel {what}")
        await here.step(f"book:{what}", book, what)


# --- in the tests
LINES = ["book flight", "book car", "book hotel", "cancel hotel", "cancel car", "cancel flight"]
KINDS = ["async"]


async def scenario() -> None:
    job = await trip.options(id="trip").enqueue()
    with contextlib.suppress(JobFailed):
        await job.result(timeout=60)
    await (await app.jobs.handle(cleanup_id("trip", 0))).result(timeout=60)
