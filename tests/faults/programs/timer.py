"""An updatable timer: each signal moves the time at which it rings."""

import time

from tests.faults.outside import effect
from treadle import App, current

app = App()


@app.task
async def ring(at: float) -> int:
    here, moves = current(), 0
    while True:
        now = await here.step("now", time.time)
        try:
            at = await here.wait_for(f"move:{moves + 1}", timeout=max(at - now, 0))
        except TimeoutError:
            await here.step("ring", effect, "ring")
            return moves
        moves += 1
        await here.step("moved", effect, f"moved {moves}")


# --- in the tests
from tests.faults.outside import result, signal_once

LINES = ["moved 1", "moved 2", "ring"]
RESULT = 2
FAR = 4_000_000_000.0


async def scenario() -> int:
    await ring.options(id="ring").enqueue(FAR)
    await signal_once(app, "ring", "move:1", FAR + 1)
    await signal_once(app, "ring", "move:2", 0.0)
    return await result(app, ring.options(id="ring").job(FAR))
