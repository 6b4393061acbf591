"""A saga: book a flight, a car and a hotel. If one of them fails, cancel those that were booked."""

from tests.faults.outside import effect, killed_before, result
from treadle import Abort, App, current

app = App()


def book(what: str) -> None:
    if what == "hotel" and not killed_before():  # after the kill a room is free
        effect("no hotel")
        raise RuntimeError("no room")
    effect(f"book {what}")


def cancel(what: str) -> None:
    effect(f"cancel {what}")


@app.task
async def trip() -> str:
    here, booked = current(), list[str]()
    try:
        for what in ("flight", "car", "hotel"):
            await here.step(f"book:{what}", book, what)
            booked.append(what)
    except RuntimeError as error:
        for what in reversed(booked):
            await here.step(f"cancel:{what}", cancel, what)
        raise Abort(f"no trip: {error}") from error
    return "booked"


# --- in the tests
LINES = ["book flight", "book car", "no hotel", "cancel car", "cancel flight"]


async def scenario() -> str:
    return await result(app, trip.options(id="trip").job())


def right(effects: list[str], result: str, line: int) -> None:
    """All is booked, or all is cancelled; the failure is decided once."""
    last = {what: deed for deed, _, what in (effect.partition(" ") for effect in effects)}
    if 0 < line <= LINES.index("no hotel") + 1:
        assert (result, last) == ("booked", {"flight": "book", "car": "book", "hotel": "book"})
    else:
        assert (result, last) == ("JobFailed", {"flight": "cancel", "car": "cancel", "hotel": "no"})
    assert len(effects) <= len(LINES) + 1
