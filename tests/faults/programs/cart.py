"""Updates with an answer: a shopping cart answers each request with its price, and the first request starts it."""

from tests.faults.outside import effect, result
from treadle import App, current

app = App()
PRICES = {"book": 12, "pen": 3}


@app.task
async def cart() -> int:
    here, total = current(), 0
    while True:
        ask = await here.receive_ask("add", returns=str)
        if ask.value not in PRICES:
            await here.step("pay", effect, f"pay {total}")
            await ask.answer(total)
            return total
        total += PRICES[ask.value]
        await ask.answer(total)


# --- in the tests
LINES = ["pay 15"]
RESULT = [12, 15, 15, 15]


async def scenario() -> list[int]:
    answers = [
        await app.jobs.ask(cart.options(id="cart").job(), "add", what, key=what, timeout=60, returns=int)
        for what in ("book", "pen", "checkout")
    ]
    return [*answers, await result(app, cart.options(id="cart").job())]
