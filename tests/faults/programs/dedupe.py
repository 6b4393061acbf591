"""Deduplication by id: however often the same order is submitted, it is one job."""

from tests.faults.outside import effect
from treadle import App, Job, current

app = App()


@app.task
async def ship(order: int) -> str:
    here = current()
    await here.step("ship", effect, f"ship {order}")
    return f"shipped {order}"


async def submit(order: int) -> Job[str]:
    return await ship.options(id=f"ship:{order}").enqueue(order)


# --- in the tests
KINDS = ["async"]
LINES = ["ship 7"]


async def scenario() -> list[str]:
    jobs = [await submit(7) for _ in range(3)]
    return [await job.result(timeout=60) for job in jobs]


RESULT = ["shipped 7"] * 3
