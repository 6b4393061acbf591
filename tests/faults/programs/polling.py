"""Polling with steps: look, sleep, look again. Each answer is in the history of the job."""

from tests.faults.outside import effect, effects, result
from treadle import App, current

app = App()


def is_ready(order: int) -> bool:
    effect("look")
    return effects().count("look") > 3


@app.task
async def fetch(order: int, pause: float) -> str:
    here = current()
    while not await here.step("look", is_ready, order):
        await here.sleep(pause)
    await here.step("fetch", effect, f"fetch {order}")
    return "fetched"


# --- in the tests
LINES = ["look", "look", "look", "look", "fetch 7"]
RESULT = "fetched"


async def scenario() -> str:
    return await result(app, fetch.options(id="fetch").job(7, 0.05))


def right(effects: list[str], result: str, line: int) -> None:
    """The look behind which the process was killed is repeated, and no stored look is."""
    looks = effects.count("look")
    assert result == "fetched"
    assert effects == ["look"] * looks + ["fetch 7"] * (1 + (line == 5))
    assert looks == (5 if line == 4 else 4)
