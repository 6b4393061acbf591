"""The functions and tasks that the children of test_processes find by name and run."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.waiting import until_blocking
from treadle import Abort, App, DefaultCodec, Defer, Flow, Retry, current, flow

app = App("memory://")


class Shouting:
    """A codec that is not Treadle's, which only a decorated task has."""

    def encode(self, value: object) -> str:
        return DefaultCodec().encode(value).encode().hex().upper()

    def decode(self, text: str) -> object:
        return DefaultCodec().decode(bytes.fromhex(text).decode())


@app.task(kind="process", codec=Shouting())
def shouted(n: int) -> int:
    return n + 1


@app.task(name="renamed", kind="process")
def by_another_name(n: int) -> int:
    return n * 10


def paid(order: int) -> str:
    return f"old {order}"


def paid_in(order: str, currency: str) -> str:
    return f"new {order} {currency}"


def double(n: int) -> int:
    return n * 2


def moment(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


def whoami() -> dict[str, object]:
    here = current()
    return {
        "id": here.id,
        "attempt": here.attempt,
        "version": here.version,
        "task": here.task,
        "lost": here.lost,
        "labels": list(here.labels),
        "headers": dict(here.headers),
        "worker": here.worker,
        "cancelled": here.cancelled,
    }


def pid() -> int:
    return os.getpid()


def cwd_and_path() -> tuple[str, list[str], str | None]:
    return str(Path.cwd()), sys.path, os.environ.get("PYTHONPATH")


def says(text: str) -> None:
    print(text)
    print(text, file=sys.stderr)


def reads() -> str:
    return sys.stdin.read()


def big(text: str) -> str:
    return text + "!"


def too_big() -> str:
    return "x" * (16 * 2**20)


def boom() -> None:
    raise ZeroDivisionError("nothing to divide by")


class Picky(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("cannot be made again from its text")


def picky() -> None:
    raise Picky(1, 2)


def unstorable() -> object:
    return object()


def quits() -> None:
    sys.exit("enough")


def later(seconds: float) -> None:
    raise Defer(seconds)


def later_at() -> None:
    raise Defer(until=datetime(2100, 1, 1, tzinfo=UTC))


def ask_again(seconds: float) -> None:
    raise Retry.after(seconds)


def ask_again_because(seconds: float) -> None:
    raise Retry.after(seconds) from KeyError("busy")


def never() -> None:
    raise Abort("bad input")


def never_because() -> None:
    raise Abort("bad input") from ValueError("too short")


def dies(code: int) -> None:
    os._exit(code)


def struck(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def ignores(number: int) -> str:
    os.kill(os.getpid(), number)
    return "still here"


def spins(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    while True:
        pass


def spawns(marker: str) -> None:
    """Something it started holds on to the same process group."""
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    Path(marker).write_text(f"{os.getpid()} {other.pid}")
    other.wait()


def forks_and_dies(marker: str) -> None:
    """The fork keeps our end of the socket open."""
    forked = os.fork()
    if not forked:
        signal.pause()
    Path(marker).write_text(str(forked))
    os.kill(os.getpid(), signal.SIGKILL)


def reports(times: int, marker: str) -> int:
    for n in range(1, times + 1):
        current().report(n / times, f"{n} of {times}")
    if marker:
        until_blocking(Path(marker).exists, "the file that lets it end")
    return times


def spends(tokens: int, end: str) -> int:
    for _ in range(2):
        current().spent(tokens=tokens)
    if end == "raise":
        raise ValueError
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return tokens


@app.task(kind="process", retry=Retry(attempts=1))
def decorated(n: int) -> int:
    return n + 100


@app.task
def leaf(n: int) -> int:
    return n + 1


@app.task(kind="process", name="branches")
def branches(n: int) -> Flow[int]:
    return flow(leaf.job(each) for each in range(n))


def takes_a_step() -> object:
    return current().step("a", double, 1)


def waits_for(url: str, id: str) -> object:
    """The result of another job, which may need the worker of this one."""
    return App(url).sync.jobs.handle(id).result_sync(60)


@app.task(kind="process")
def logged() -> None:
    logging.getLogger("shop").info("in a process")


def leaves(marker: str, size: int) -> object:
    """A result that cannot be stored, or of this size."""
    with Path(marker).open("a") as file:
        file.write("x")
    return "x" * size if size else object()
