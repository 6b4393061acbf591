"""An app with a lifespan, whose tasks run in processes of their own; it writes what happens there to a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from treadle import App, Retry, current, depends

app = App("memory://", retry=Retry(attempts=1))


def note(words: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{words} {os.getpid()}\n")


@app.lifespan
async def resources() -> AsyncIterator[int]:
    note("entered")
    if os.environ.get("FAILS") and os.environ["FAILS"] != str(os.getpid()):
        raise OSError("no database")
    yield os.getpid()
    note("left")


@app.task(kind="process")
def use() -> tuple[int, int]:
    assert resources.state == current().state
    return resources.state, os.getpid()


async def pool(of: int = depends(resources)) -> AsyncIterator[str]:
    note("open pool")
    yield f"pool of {of}"
    note("close pool")


def session(on: str = depends(pool, scope="process")) -> Iterator[str]:
    note("open session")
    yield f"session on {on}"
    note("close session")


@app.task(kind="process")
def use_session(n: int, one: str = depends(session)) -> str:
    return f"{n} {one} in {os.getpid()}"


def undecorated(n: int, one: str = depends(session)) -> str:
    return one
