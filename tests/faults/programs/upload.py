"""A heartbeat with details: a long upload continues behind the last part that was stored."""

from tests.faults.outside import effect, result
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
LINES = [f"part {part}" for part in range(6)]
RESULT = 6


async def scenario() -> int:
    return await result(app, upload.options(id="upload").job(6))
