"""A sliding window over a batch: three of many jobs run at a time, and the sum of their results is the workflow's."""

from tests.faults.outside import effect, result
from treadle import App, Flow, Limit, flow

app = App()
app.limits.declare(Limit("window", slots=3))


@app.task(limits=["window"])
async def convert(number: int) -> int:
    effect(f"convert {number}")
    return number


@app.task(reduce="sum")
async def convert_all(count: int) -> Flow[int]:
    return flow(convert.job(number) for number in range(count))


# --- in the tests
LINES = [f"convert {number}" for number in range(8)]
RESULT, IN_FLIGHT = 28, 3


async def scenario() -> int:
    return await result(app, convert_all.options(id="all").job(8))
