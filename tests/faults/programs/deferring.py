"""Infrequent polling: look whether an order is ready, and come back later if it is not."""

from tests.faults.outside import effect, effects, result
from treadle import App, Defer

app = App()


def is_ready() -> bool:
    effect("look")
    return effects().count("look") >= 3


@app.task
async def fetch(pause: float) -> str:
    if not is_ready():
        raise Defer(pause)
    effect("fetch")
    return "fetched"


# --- in the tests
LINES = ["look", "look", "look", "fetch"]
RESULT = "fetched"


async def scenario() -> str:
    return await result(app, fetch.options(id="fetch").job(0.05))


def right(effects: list[str], result: str, line: int) -> None:
    """A job without steps begins again: after the kill it looks until the order is ready, and fetches it."""
    looks = max(3 - line, 1) if line else 0
    assert (effects, result) == (LINES[: line or 4] + ["look"] * looks + ["fetch"] * bool(line), "fetched")
