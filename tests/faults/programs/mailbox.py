"""Signals in a mailbox: a greeter greets everybody who is named to it, in order, until it is sent home."""

from tests.faults.outside import effect, result
from treadle import App, current

app = App()


@app.task
async def greeter() -> int:
    here, greetings = current(), 0
    while name := await here.receive("greet", returns=str):
        await here.step("greet", effect, f"hello {name}")
        greetings += 1
    return greetings


# --- in the tests
LINES = ["hello ada", "hello bob", "hello eve"]
RESULT = 3


async def scenario() -> int:
    await greeter.options(id="greeter").enqueue()
    for name in ("ada", "bob", "eve", ""):
        await app.jobs.send("greeter", "greet", name, key=f"greet:{name}")
    return await result(app, greeter.options(id="greeter").job())
