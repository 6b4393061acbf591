"""The tasks of `bench fleet`, and the worker process that runs them and records each ending.

Every run and every step sleeps for the given seconds, 0 for no-op jobs. So a job with two runs sleeps twice and counts
as two jobs in the comparison.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import struct
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from treadle import Abort, App, Defer, Flow, JobSpec, Keys, Retry, Worker, current, flow
from treadle.core.events import Event

MARK: Final = struct.Struct("d")  # a time of time.monotonic, which all processes of a machine share
QUEUES: Final = tuple(f"q{number}" for number in range(6))
FAMILY: Final = 4  # children per parent
STEPS: Final = 3
SCHEDULES: Final = 20
RESOURCE: Final = "memory"
KEY: Final = "bench:" + base64.b64encode(bytes(range(64))).decode()  # the same in all processes; it hides nothing
SMALL: Final = 1_024  # bytes from which on a text is offloaded
LARGE: Final = "x" * 4_096
WAYS: Final = ("scheduled", "resources", "encrypted", "offloaded")  # differences between the workers of two features
UNCOUNTED: Final = ("parent", "keyed_parent", "tick")  # tasks with endings that do not count


async def nap(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


class Kit:
    """Creates jobs of one app that all sleep for the same number of seconds."""

    def __init__(self, app: App, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    def job(self, task: str, *args: Any, **options: Any) -> JobSpec[Any, Any]:
        """A job with these options; its arguments are `args` and the seconds."""
        return self._app.find_task(task).options(**options).job(*args, self._seconds)

    def foreign(self) -> JobSpec[Any, Any]:
        """A job that no worker can run."""
        return self._app.stub("foreign").job()

    def item(self) -> JobSpec[Any, Any]:
        """An item of the batch task, whose function takes one argument."""
        return self._app.find_task("many").job(self._seconds)


def define(app: App) -> App:
    """Register all tasks except those of schedules."""
    _simple(app)
    _placed(app)
    _durable(app)
    _composed(app)
    return app


def _simple(app: App) -> None:
    @app.task(name="plain")
    async def plain(seconds: float) -> None:
        await nap(seconds)

    @app.task(name="value")
    async def value(seconds: float) -> str:
        await nap(seconds)
        return "x" * 100

    @app.task(name="moment")
    async def moment(seconds: float) -> float:
        begun = time.monotonic()
        await nap(seconds)
        return begun

    @app.task(name="thread")
    def thread(seconds: float) -> None:
        if seconds:
            time.sleep(seconds)

    @app.task(name="flaky", retry=Retry(attempts=2, base=0))
    async def flaky(seconds: float) -> None:
        await nap(seconds)
        if current().attempt == 1:
            raise ValueError("the first try")

    @app.task(name="doomed")
    async def doomed(seconds: float) -> None:
        await nap(seconds)
        raise Abort("always")

    @app.task(name="noted")
    async def noted(seconds: float) -> None:
        await current().progress(0.5, "half")
        await nap(seconds)

    @app.batch(name="many", size=50)
    async def many(items: list[float]) -> Sequence[None]:
        await nap(items[0])
        return [None] * len(items)


def _placed(app: App) -> None:
    """Tasks of features that change how a worker claims, or how it stores texts."""

    @app.task(name="deferring")
    async def deferring(seconds: float) -> None:
        await nap(seconds)
        if current().version == 1:  # its first run
            raise Defer(0)

    @app.task(name="using", uses={RESOURCE: 1})
    async def using(seconds: float) -> None:
        await nap(seconds)

    @app.task(name="large")
    async def large(text: str, seconds: float) -> str:
        await nap(seconds)
        return text


def _durable(app: App) -> None:
    @app.task(name="steps")
    async def steps(seconds: float) -> None:
        await nap(seconds)
        for _ in range(STEPS):
            await current().step("step", nap, seconds)

    @app.task(name="sleeper")
    async def sleeper(seconds: float) -> None:
        await nap(seconds)
        await current().sleep(0.01)

    @app.task(name="once")
    async def once(key: str, seconds: float) -> None:
        async with current().once(key):
            await nap(seconds)

    @app.task(name="waiter")
    async def waiter(seconds: float) -> None:
        await nap(seconds)
        await current().wait_for("go")

    @app.task(name="sender")
    async def sender(waiting: str, seconds: float) -> None:
        await nap(seconds)
        await app.jobs.signal(waiting, "go", 1)


def _composed(app: App) -> None:
    child = app.task(name="child")(_child)

    @app.task(name="parent", reduce="sum")
    async def parent(seconds: float) -> Flow[int]:
        await nap(seconds)
        return flow(child.job(number, seconds) for number in range(FAMILY))

    @app.task(name="keyed_parent", reduce="sum")
    async def keyed_parent(number: int, seconds: float) -> Flow[int]:
        await nap(seconds)
        return flow(child.options(key=f"{number}-{each}").job(each, seconds) for each in range(FAMILY))

    @app.task(name="joined")
    async def joined(seconds: float) -> int:
        await nap(seconds)
        return sum([each for each in await current().upstream() if isinstance(each, int)])

    @app.task(name="passed")
    async def passed(number: int, seconds: float) -> int:
        await nap(seconds)
        return number


async def _child(number: int, seconds: float) -> int:
    await nap(seconds)
    return number


def make(url: str, folder: Path, ways: Collection[str] = ()) -> App:
    """An app with all tasks whose payloads are stored in these ways, of `WAYS`; large ones in that folder."""
    kinds: dict[str, Any] = {}
    if "encrypted" in ways:
        kinds["keys"] = Keys(KEY)
    if "offloaded" in ways:
        kinds |= {"blobs": folder / "blobs", "offload": SMALL}
    return define(App(url, **kinds))


def schedule(app: App) -> None:
    """Twenty schedules, each of which runs one job per second."""
    for number in range(SCHEDULES):

        async def tick() -> None: ...

        app.every(1.0, name=f"tick{number}")(app.task(name="tick" if not number else f"tick{number}")(tick))


def note(app: App, file: int) -> None:
    """Write to `file` the time when the first job starts, and the time of each counted ending."""
    started = False

    def on_start(_: Event) -> None:
        nonlocal started
        if not started:
            started = True
            os.write(file, MARK.pack(time.monotonic()))

    def on_end(event: Event) -> None:
        if not event.task.startswith(UNCOUNTED):
            os.write(file, MARK.pack(time.monotonic()))

    app.on("started")(on_start)
    app.on("succeeded", "failed")(on_end)


def work(url: str, concurrency: int, marks: str, ways: Collection[str]) -> None:
    """One worker, which starts when a line arrives on stdin."""
    logging.getLogger("treadle.jobs").setLevel(logging.CRITICAL)  # failing jobs are part of the measure
    app = make(url, Path(marks).parent, ways)
    if "scheduled" in ways:
        schedule(app)
    note(app, os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    resources = {RESOURCE: concurrency} if "resources" in ways else {}
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(Worker(app, concurrency=concurrency, queues=[*QUEUES, "default"], resources=resources).run())


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
