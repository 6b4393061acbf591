"""A race of a signal and a sleep: an order is cancelled if it is not paid in time, and that decision is final."""

from tests.faults.outside import effect, killed_before, result, signal_once
from treadle import App, current

app = App()


@app.task
async def collect(order: int, patience: float) -> str:
    here = current()
    await here.step("ask", effect, f"ask for {order}")
    match await here.first(paid=here.wait_for("paid", returns=str), late=here.sleep(patience)):
        case ("paid", receipt):
            await here.step("ship", effect, f"ship {order}")
            return receipt
        case _:
            await here.step("cancel", effect, f"cancel {order}")
            return "cancelled"


# --- in the tests
KINDS = ["async"]
LINES = ["ask for 7", "cancel 7"]


async def scenario() -> str:
    spec = collect.options(id="collect").job(7, 0.05)
    await app.enqueue(spec)
    if killed_before():  # too late, if the process was killed while it cancelled
        await signal_once(app, "collect", "paid", "receipt")
    return await result(app, collect.options(id="collect").job(7, 0.05))


def right(effects: list[str], result: str, line: int) -> None:
    """The sleep has won in the first process. If it did not get so far, either may win."""
    if line == 1:
        assert effects[:2] == ["ask for 7"] * 2
        assert (effects[2:], result) in ((["ship 7"], "receipt"), (["cancel 7"], "cancelled"))
    else:
        assert (effects, result) == (LINES + ["cancel 7"] * (line == 2), "cancelled")
