"""A query: everybody can read how far a delivery is, while it runs and afterwards."""

from tests.faults.outside import effect, result
from treadle import App, current

app = App()


@app.task
async def deliver(parcels: int) -> str:
    here = current()
    for parcel in range(1, parcels + 1):
        await here.step("deliver", effect, f"deliver {parcel}")
        await here.publish("status", {"delivered": parcel, "of": parcels})
    return "done"


async def status(job: str) -> dict[str, int]:
    return await app.jobs.value(job, "status", wait=10)


# --- in the tests
LINES = ["deliver 1", "deliver 2", "deliver 3"]
RESULT = ["done", {"delivered": 3, "of": 3}]


async def scenario() -> list[object]:
    spec = deliver.options(id="deliver").job(3)
    return [await result(app, spec), await app.jobs.value("deliver", "status")]
