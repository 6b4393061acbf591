"""Long work of one request in turns, so that the other requests get theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

A = TypeVar("A")
B = TypeVar("B")

TURN: Final = 0.002  # s


class Turns:
    """Awaited between the steps of a long work: lets others go on once a turn is over."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._over = self._now() + TURN

    async def step(self) -> None:
        if self._now() >= self._over:
            await asyncio.sleep(0)
            self._over = self._now() + TURN


def in_parts(items: Sequence[A], most: int, weight: Callable[[A], int]) -> Iterator[Sequence[A]]:
    """All items in order, in pieces of at most `most` together; one that is heavier is a piece by itself."""
    start = held = 0
    for at, item in enumerate(items):
        added = weight(item)
        if at > start and held + added > most:
            yield items[start:at]
            start, held = at, 0
        held += added
    if start < len(items):
        yield items[start:]


async def in_turns(make: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """`[make(each) for each in items]`. 0.2 us more for each."""
    turns, made = Turns(), []
    for each in items:
        made.append(make(each))
        await turns.step()
    return made
