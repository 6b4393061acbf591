"""A promise that a webhook fulfils: the payment provider calls back, perhaps twice, and it is paid only once."""

from tests.faults.outside import effect, result, seen
from treadle import App, Signalled, current

app = App()


def begin_payment(order: int, amount: int) -> None:
    effect(f"begin {amount}, call back {current().id}, key {current().step_key()}")


@app.task
async def checkout(order: int, amount: int) -> str:
    here = current()
    await here.step("begin", begin_payment, order, amount)
    receipt = await here.wait_for("paid", timeout=3600, returns=str)
    await here.step("ship", effect, f"ship {order}")
    return receipt


async def webhook(job: str, receipt: str) -> int:
    """The HTTP handler for the provider. Returns the status."""
    try:
        await app.jobs.signal(job, "paid", receipt)
    except Signalled:
        return 200  # called before
    return 201


# --- in the tests
KINDS = ["async"]
LINES = ["begin 5, call back order:7, key order:7:begin", "ship 7"]
RESULT = "receipt 1"


async def scenario() -> str:
    await checkout.options(id="order:7").enqueue(7, 5)
    await seen(LINES[0])
    assert await webhook("order:7", "receipt 1") in (200, 201)
    assert await webhook("order:7", "receipt 2") == 200
    return await result(app, checkout.options(id="order:7").job(7, 5))
