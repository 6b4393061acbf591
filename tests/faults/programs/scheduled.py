"""A schedule of a durable function: a report at each of its times, collected once and sent once."""

from tests.faults.outside import effect, seen
from treadle import App, current

app = App()


@app.every(0.2, overlap="skip")
@app.task
async def report() -> None:
    here = current()
    moment = current().headers["treadle-moment"]
    await here.step("collect", effect, f"collect {moment}")
    await here.step("send", effect, f"send {moment}")


# --- in the tests
LINES = ["collect", "send"] * 3


async def scenario() -> None:
    await seen("send", 3)


def right(effects: list[str], result: None, line: int) -> None:
    """Each time has one report. At most one line is repeated for the kill, another one for the stop at the end."""
    moments = {effect.partition(" ")[2] for effect in effects}
    assert len(moments) >= 2
    for moment in moments:
        counts = [effects.count(f"{what} {moment}") for what in ("collect", "send")]
        assert max(counts) <= 2
    assert len(effects) - len({*effects}) <= (line > 0)
