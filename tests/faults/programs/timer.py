"""An updatable timer: each signal moves the time at which it ends."""

import time

from tests.faults.outside import effect, result, signal_once
from treadle import App, current

app = App()


@app.task
async def wake(at: float) -> int:
    here, moves = current(), 0
    while True:
        now = await here.step("now", time.time)
        try:
            at = await here.wait_for(f"move:{moves + 1}", timeout=max(at - now, 0))
        except TimeoutError:
            await here.step("wake", effect, "wake")
            return moves
        moves += 1
        await here.step("moved", effect, f"moved {moves}")


# --- in the tests
LINES = ["moved 1", "moved 2", "wake"]
RESULT = 2
FAR = 4_000_000_000.0


async def scenario() -> int:
    await wake.options(id="wake").enqueue(FAR)
    await signal_once(app, "wake", "move:1", FAR + 1)
    await signal_once(app, "wake", "move:2", 0.0)
    return await result(app, wake.options(id="wake").job(FAR))
