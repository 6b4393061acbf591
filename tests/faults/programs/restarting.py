"""Continue as new: an account is billed each month, for years, in one job with a short history."""

from tests.faults.outside import effect, result
from treadle import App, current

app = App()


def bill(month: int) -> int:
    effect(f"bill {month}")
    return month * 10


@app.task
async def bill_monthly(month: int, last: int, pause: float, total: int = 0) -> int:
    here = current()
    total += await here.step("bill", bill, month)
    await here.sleep(pause)
    if month < last:
        await here.restart(month + 1, last, pause, total)
    return total


# --- in the tests
LINES = [f"bill {month}" for month in range(1, 6)]
RESULT = 150


async def scenario() -> int:
    return await result(app, bill_monthly.options(id="bill").job(1, 5, 0.01))
