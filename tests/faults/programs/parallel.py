"""Activities in parallel: read the prices of three shops at once, then order from the cheapest one."""

import asyncio

from tests.faults.outside import effect, result
from treadle import App, current

app = App()


def price(shop: str) -> int:
    effect(f"ask {shop}")
    return len(shop)


@app.task
async def buy(shops: list[str]) -> str:
    here = current()
    prices = await asyncio.gather(*(here.step(f"price:{shop}", price, shop) for shop in shops))
    cheapest = min(zip(prices, shops, strict=True))[1]
    await here.step("order", effect, f"order from {cheapest}")
    return cheapest


# --- in the tests
KINDS = ["async"]
LINES = ["ask north", "ask middle", "ask east", "order from east"]
RESULT, IN_FLIGHT = "east", 3


async def scenario() -> str:
    return await result(app, buy.options(id="buy").job(["north", "middle", "east"]))
