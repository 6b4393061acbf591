"""A sleep of many days that a signal ends: a reminder every month until the customer has answered."""

from tests.faults.outside import effect, result, seen, signal_once
from treadle import App, current

app = App()


@app.task
async def remind(every: float) -> int:
    here, reminders = current(), 0
    while True:
        try:
            await here.wait_for("answered", timeout=every)
        except TimeoutError:
            reminders += 1
            await here.step("remind", effect, f"reminder {reminders}")
        else:
            return reminders


# --- in the tests
LINES = ["reminder 1", "reminder 2", "reminder 3"]


async def scenario() -> int:
    await remind.options(id="remind").enqueue(0.05)
    await seen("reminder 3")
    await signal_once(app, "remind", "answered")
    return await result(app, remind.options(id="remind").job(0.05))


def right(effects: list[str], result: int, line: int) -> None:
    """The signal may come after further reminders."""
    once = [f"reminder {number + 1}" for number in range(result)]
    assert result >= 3
    assert effects == once[:line] + once[max(line - 1, 0) :]
