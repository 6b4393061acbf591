"""Mistakes with lifespans that a type checker must refuse. Each ignore is itself checked."""

from __future__ import annotations

from collections.abc import AsyncIterator

from treadle import App

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
