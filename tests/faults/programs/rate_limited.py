"""Calls of an API that allows only some in a second, over the whole fleet: each call is a job of its own."""

from tests.faults.outside import effect, result
from treadle import App, Flow, Limit, gather

app = App()
app.limits.declare(Limit("api", rate=3, per=0.2))


@app.task(limits=["api"])
async def call(number: int) -> int:
    effect(f"call {number}")
    return number


@app.task
async def total(numbers: list[int]) -> int:
    effect("add up")
    return sum(numbers)


@app.task
async def report(calls: int) -> Flow[int]:
    return gather(call.job(number) for number in range(calls)).into(total)


# --- in the tests
LINES = [*(f"call {number}" for number in range(7)), "add up"]
RESULT, IN_FLIGHT = 21, 7  # a rate bounds no concurrency


async def scenario() -> int:
    return await result(app, report.options(id="report").job(7))
