"""Mistakes with lifespans and dependencies that a type checker must refuse. Each ignore is itself checked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from treadle import App, depends

app = App("memory://")


@app.lifespan
async def pool() -> AsyncIterator[int]:
    yield 1


@App("memory://").lifespan  # type: ignore[arg-type]
async def no_generator() -> int:
    return 1


@App("memory://").lifespan  # type: ignore[arg-type]
async def of_something_else(size: int) -> AsyncIterator[int]:
    yield size


def mistakes() -> str:
    return pool.state  # type: ignore[return-value]


def plain() -> int:
    return 1


async def coroutine() -> int:
    return 1


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@app.task
async def wrong_types(
    one: str = depends(plain),  # type: ignore[assignment]
    two: str = depends(coroutine),  # type: ignore[assignment]
    three: str = depends(generator),  # type: ignore[assignment]
    four: str = depends(async_generator),  # type: ignore[assignment]
    five: str = depends(pool),  # type: ignore[assignment]
    six: int = depends(plain, scope="job"),  # type: ignore[call-overload]
    seven: int = depends(7),  # type: ignore[call-overload]
) -> None: ...


async def wrong_calls() -> None:
    await wrong_types.enqueue(one=3)  # type: ignore[arg-type]
