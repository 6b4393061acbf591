"""The part that all adapters share: the parameters of a measure, the marks that jobs write, and the two processes.

An adapter is a module that defines

    ABOUT       an `About`: the features of the system, and how to see that all its jobs are settled
    producer()  an async context manager that yields a `Producer`
    worker()    runs jobs until SIGTERM
    setup()     creates tables and the like; optional; plain or async

and ends with `main(sys.modules[__name__])`. The harness runs it as `python -m benchmarks.adapters.NAME COMMAND` in the
system's environment, with the parameters as JSON in the variable BENCH.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import itertools
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

NAP = 0.005  # seconds that a job of the kind "nap" sleeps
SPIN = 0.001  # seconds of CPU that a job of the kind "spin" uses
PRODUCERS = 100  # coroutines that enqueue concurrently
MARK = struct.Struct("dd")  # when the body ran, when it was sent (0: not recorded); CLOCK_MONOTONIC


@dataclass(frozen=True)
class Ask:
    """The parameters of a measure.

    concurrency  jobs at once in one worker process; None: the recommendation of the system's documentation
    feature      "results", "limits", "lanes", "fanin" or ""
    kind         of the body: "noop", "nap" or "spin"
    ballast      bytes of text in each job
    processes    number of worker processes
    """

    url: str = ""
    storage: str = ""
    variant: str = ""
    concurrency: int | None = None
    feature: str = ""
    kind: str = "noop"
    ballast: int = 0
    processes: int = 1
    marks: str = "."
    capacity: int = 100_000

    @property
    def results(self) -> bool:
        return self.feature in ("results", "fanin")


@dataclass(frozen=True)
class About:
    """The description of a system.

    packages  packages with recorded versions
    settled   counts the jobs that are not settled yet: one SQL query, or commands with results to add up. Empty: the
              system keeps nothing of a job that it has delivered, so a job counts as settled when its body has run
    worker    the fate of running jobs when a worker is killed, in the measured setup
    server    what a crash of the server loses, in the measured setup
    notes     the setup, in a few words
    can       of "results", "limits", "lanes", "fanin", "processes"; missing ones are "-" in the tables
    """

    packages: Sequence[str]
    worker: str
    server: str
    notes: str
    settled: str | Sequence[Sequence[str]] = ()
    can: Sequence[str] = ()
    forks: bool = False  # whether its one worker creates the processes itself
    serial: bool = False  # whether a worker always runs one job at a time


@dataclass(frozen=True)
class Producer:
    """The ways to send jobs. Each may be plain or async; None if the system lacks it.

    one     one job, with its send time
    many    that many jobs by the bulk call
    result  one job, and wait for its result
    fan     a fan-in of that many jobs, with the job that follows them
    """

    one: Callable[[float], Any]
    many: Callable[[int], Any] | None = None
    result: Callable[[], Any] | None = None
    fan: Callable[[int], Any] | None = None
    done: Callable[[], Any] | None = field(default=None)  # waits until all jobs passed to `one` are stored


CRASH = {  # the losses of a server crash, with the durability in the storage's name
    "postgres": "loses nothing",
    "redis": "loses everything: nothing is written to disk",
    "redis-aof": "loses at most about a second",
}
ASK = Ask(**json.loads(os.environ.get("BENCH", "{}")))
BALLAST = "x" * ASK.ballast
CALL = max(10, min(1_000, 10_000_000 // max(1, ASK.ballast)))  # jobs per bulk call: 10 MB at most
VALUE = 1 if ASK.results else None  # the result of a job


class Tape:
    """The marks of this process, in its own mapped file: a mark costs a fraction of a write."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.file: mmap.mmap | None = None
        self.numbers = itertools.count()

    def open(self) -> mmap.mmap:
        descriptor = os.open(os.path.join(ASK.marks, f"{os.getpid()}.marks"), os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, ASK.capacity * MARK.size)
        self.file = mmap.mmap(descriptor, ASK.capacity * MARK.size)
        os.close(descriptor)
        return self.file


tape = Tape()
os.register_at_fork(after_in_child=tape.begin)  # each fork writes its own file


def mark(sent: float = 0.0) -> None:
    """Record that a body has run. Threads share one counter."""
    MARK.pack_into(tape.file or tape.open(), next(tape.numbers) * MARK.size, time.monotonic(), sent)


def spin() -> None:
    end = time.thread_time() + SPIN
    while time.thread_time() < end:
        pass


async def _nap(sent: float) -> None:
    await asyncio.sleep(NAP)
    mark(sent)


async def _spin(sent: float) -> None:
    spin()
    mark(sent)


async def _noop(sent: float) -> None:
    mark(sent)


def _nap_plain(sent: float) -> None:
    time.sleep(NAP)
    mark(sent)


def _spin_plain(sent: float) -> None:
    spin()
    mark(sent)


body = {"noop": _noop, "nap": _nap, "spin": _spin}[ASK.kind]  # for an async job
body_plain = {"noop": mark, "nap": _nap_plain, "spin": _spin_plain}[ASK.kind]  # for a plain function


def run(coroutine: Any, uvloop: bool = False) -> Any:
    if uvloop:
        import uvloop as loops

        return loops.run(coroutine)
    return asyncio.run(coroutine)


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    answer = function(*args)
    return await answer if inspect.isawaitable(answer) else answer


async def _one(producer: Producer, seconds: float, most: int) -> int:
    end, sent = time.monotonic() + seconds, 0
    plain = not inspect.iscoroutinefunction(producer.one)
    while sent < most and time.monotonic() < end:
        if plain:
            producer.one(0.0)
        else:
            await producer.one(0.0)
        sent += 1
    return sent


async def _together(producer: Producer, seconds: float, most: int) -> int:
    """Send from many coroutines. Plain calls go to the loop's threads, as an async program would call them."""
    end, left, sent = time.monotonic() + seconds, most, 0
    plain = not inspect.iscoroutinefunction(producer.one)

    async def send() -> None:
        nonlocal left, sent
        while left > 0 and time.monotonic() < end:
            left -= 1
            await (asyncio.to_thread(producer.one, 0.0) if plain else producer.one(0.0))
            sent += 1

    await asyncio.gather(*(send() for _ in range(PRODUCERS)))
    return sent


async def _many(producer: Producer, seconds: float, most: int) -> int:
    assert producer.many is not None
    end, sent = time.monotonic() + seconds, 0
    while sent < most and time.monotonic() < end:
        await _called(producer.many, min(CALL, most - sent))
        sent += min(CALL, most - sent)
    return sent


async def _steady(producer: Producer, count: int, every: float) -> int:
    due = time.monotonic()
    for _ in range(count):
        due += every
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await _called(producer.one, time.monotonic())
    return count


async def _results(producer: Producer, count: int, seconds: float) -> list[float]:
    assert producer.result is not None
    took: list[float] = []
    end = time.monotonic() + seconds
    while len(took) < count and time.monotonic() < end:
        begun = time.monotonic()
        await _called(producer.result)
        took.append(time.monotonic() - begun)
    return took


async def _answer(producer: Producer, order: dict[str, Any]) -> dict[str, Any]:
    kind, seconds, most = order["do"], order.get("seconds", 1e9), order.get("n", 10**9)
    ways = {"one": _one, "together": _together, "many": _many}
    if kind == "has":
        return {"has": [name for name in ("many", "result", "fan") if getattr(producer, name) is not None]}
    begun = time.monotonic()
    if kind in ways:
        sent = await ways[kind](producer, seconds, most)
        if producer.done is not None:
            await _called(producer.done)
        return {"n": sent, "begin": begun, "end": time.monotonic()}
    if kind == "steady":
        return {"n": await _steady(producer, most, order["every"]), "begin": begun, "end": time.monotonic()}
    if kind == "result":
        return {"took": await _results(producer, most, seconds)}
    if kind == "fan":
        assert producer.fan is not None
        await _called(producer.fan, most)
        return {"n": most + 1, "begin": begun, "end": time.monotonic()}
    raise ValueError(f"expected an order that this frame knows, found {kind!r}")


def say(what: dict[str, Any]) -> None:
    """Send one answer to the harness. Other output of the libraries is ignored."""
    sys.stdout.write(f"\nBENCH {json.dumps(what)}\n")
    sys.stdout.flush()


async def _produce(module: Any) -> None:
    loop = asyncio.get_running_loop()
    async with module.producer() as producer:
        say({"ready": True})
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                say(await _answer(producer, json.loads(line)))
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})


def _about(about: About, module: Any) -> dict[str, Any]:
    return {
        "versions": {name: importlib.metadata.version(name) for name in about.packages},
        "python": sys.version.split()[0],
        "settled": about.settled,
        "worker": about.worker,
        "server": about.server,
        "notes": " ".join(about.notes.split()),
        "can": [*about.can, *(() if about.serial else ("concurrency",))],
        "forks": about.forks,
        "setup": hasattr(module, "setup"),
    }


def _leave_with(parent: int) -> None:
    """End this process once the harness has ended, in whichever way."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main(module: Any) -> None:
    """The command line of an adapter."""
    command, uvloop = sys.argv[1], getattr(module, "UVLOOP", False)
    threading.Thread(target=_leave_with, args=(int(os.environ.get("BENCH_PARENT", os.getppid())),), daemon=True).start()
    if command == "about":
        say(_about(module.ABOUT, module))
    elif command == "setup":
        made: Awaitable[None] | None = module.setup() if hasattr(module, "setup") else None
        if inspect.isawaitable(made):
            run(made, uvloop)
    elif command == "worker":
        module.worker()
    elif command == "produce":
        run(_produce(module), uvloop)
    else:
        sys.exit(f"expected about, setup, worker or produce, found {command!r}")
