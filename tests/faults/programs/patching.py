"""Patching: a deploy adds a check before the payment, while orders of the old code are in progress."""

from tests.faults.outside import effect, killed_before, result
from treadle import App, current

app = App()


@app.task
async def process(order: int) -> None:
    here = current()
    await here.step("reserve", effect, f"reserve {order}")
    if killed_before() and here.patched("check"):  # the process that is killed has the code without this part
        await here.step("check", effect, f"check {order}")
    await here.step("charge", effect, f"charge {order}")
    await here.step("ship", effect, f"ship {order}")


# --- in the tests
LINES = ["reserve 7", "charge 7", "ship 7"]


async def scenario() -> None:
    await result(app, process.options(id="order").job(7))


def right(effects: list[str], result: None, line: int) -> None:
    """A job that has stored its payment is not checked, and every other one is."""
    checked = ["check 7"] if line in (1, 2) else []
    again = LINES[:1] + checked + LINES[1:] if line == 1 else checked + LINES[line - 1 :]
    assert effects == LINES[:line] + (again if line else LINES)
