"""Parent close policy: an order takes the first of two offers, and the other is withdrawn when the order has ended."""

from tests.faults.outside import effect, result
from treadle import App, current
from treadle.policy.cleanups import cleanup_id

app = App()


@app.task
async def quick() -> str:
    await current().step("offer", effect, "offer")
    return "offer"


@app.task(name="slow")
async def slow(order: str) -> None:
    here = current()
    await here.step("begin", str)
    try:
        await here.step("tell", app.jobs.send, order, "begun", key="slow")
        await here.sleep(86_400)
    finally:
        await here.step("withdraw", effect, "withdraw")


@app.task
async def process() -> None:
    here = current()
    async for done in here.as_completed([slow.job(here.record.id), quick.job()]):
        assert done.result() == "offer"
        break
    await here.receive("begun")
    await here.step("take", effect, "take the offer")


# --- in the tests
LINES = ["offer", "take the offer", "withdraw"]
KINDS = ["async"]


async def scenario() -> None:
    await result(app, process.options(id="order").job())
    await (await app.jobs.handle(cleanup_id("order", 0))).result(timeout=60)
    [offer] = [row for row in (await app.jobs.list(task="slow")).records if row.job.parent == "order"]
    await (await app.jobs.handle(cleanup_id(offer.id, 0))).result(timeout=60)
