"""A heartbeat with details: a long upload goes on behind the last part that has arrived."""

from tests.faults.outside import effect
from treadle import App, current

app = App()


def send(part: int) -> None:
    effect(f"part {part}")


@app.task
async def upload(parts: int) -> int:
    here = current()
    for part in range(parts):
        await here.step("part", send, part)
    return parts


# --- in the tests
from tests.faults.outside import result

LINES = [f"part {part}" for part in range(6)]
RESULT = 6


async def scenario() -> int:
    return await result(app, upload.options(id="upload").job(6))
