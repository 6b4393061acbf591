"""A child workflow: an order waits for the invoice that a job of its own makes, without a slot."""

from tests.faults.outside import effect, result
from treadle import App, current

app = App()


@app.task
async def make_invoice(order: int) -> str:
    effect(f"invoice {order}")
    return f"invoice of {order}"


@app.task
async def process(order: int) -> str:
    here = current()
    await here.step("charge", effect, f"charge {order}")
    invoice = await here.call(make_invoice.job(order))
    await here.step("mail", effect, f"mail the {invoice}")
    return invoice


# --- in the tests
LINES = ["charge 7", "invoice 7", "mail the invoice of 7"]
RESULT = "invoice of 7"


async def scenario() -> str:
    return await result(app, process.options(id="order").job(7))
