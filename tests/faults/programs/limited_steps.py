"""Steps with limits: calls of an API that allows only some in a second, over the whole fleet, inside one function."""

from tests.faults.outside import effect, result
from treadle import App, Limit, Retry, current

app = App()
app.limits.declare(Limit("api", rate=2, per=0.2), Limit("tenant", slots=1))


@app.task
async def order(tenant: str) -> str:
    here = current()
    await here.step("reserve", effect, "reserve")
    call = here.step.options(limits=["api", f"tenant:{tenant}"], retry=Retry(attempts=3, base=0))
    for what in ("charge", "invoice", "ship"):
        await call(what, effect, what)
    await here.step("mail", effect, "mail")
    return tenant


# --- in the tests
LINES = ["reserve", "charge", "invoice", "ship", "mail"]
RESULT = "a"


async def scenario() -> str:
    return await result(app, order.options(id="order").job("a"))
