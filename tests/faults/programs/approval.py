"""Human approval: a payment waits up to a day for somebody's answer, without a slot and without a worker."""

from tests.faults.outside import effect, result, seen, signal_once
from treadle import Abort, App, current

app = App()


def pay(amount: int) -> str:
    effect(f"pay {amount} with the key {current().step_key()}")
    return f"paid {amount}"


@app.task
async def pay_out(amount: int) -> str:
    here = current()
    await here.step("ask", effect, f"ask for {amount}")
    answer = await here.wait_for("answer", timeout=86_400)
    if not answer["yes"]:
        raise Abort(f"refused by {answer['by']}")
    return await here.step("pay", pay, amount)


# --- in the tests
LINES = ["ask for 7", "pay 7 with the key payment:pay"]
RESULT = "paid 7"


async def scenario() -> str:
    spec = pay_out.options(id="payment").job(7)
    await app.enqueue(spec)
    await seen(LINES[0])
    await signal_once(app, "payment", "answer", {"yes": True, "by": "ada"})
    return await result(app, pay_out.options(id="payment").job(7))
