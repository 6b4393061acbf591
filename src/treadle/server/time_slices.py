"""Splits the long work of a request into slices of 1 ms, so that other requests are served in between.

An ordinary request needs several turns of the loop. If every long request worked in every turn, each turn would take as
many slices as there are long requests. So only one long request works in each turn of the loop, and the others wait in
order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

A = TypeVar("A")
B = TypeVar("B")

TURN: Final = 0.001  # s


class Line:
    """The waiting long requests of one event loop. One of them continues in each turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._call_next)
        await mine

    def _call_next(self) -> None:
        first = self._waiting.popleft()
        if not first.done():  # done: the request was cancelled
            first.set_result(None)
        if self._waiting:
            first.get_loop().call_soon(self._call_next)


# A line does not name its loop: it would keep it for ever.
_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = WeakKeyDictionary()


class TimeSlices:
    """Await `step` between the steps of long work. It waits for the other requests once the slice is used up."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._over = self._now() + TURN

    async def step(self) -> None:
        if self._now() >= self._over:
            line = _lines.get(self._loop)
            if line is None:
                line = _lines[self._loop] = Line()
            await line.turn()
            self._over = self._now() + TURN


def in_parts(items: Sequence[A], most: int, weight: Callable[[A], int]) -> Iterator[Sequence[A]]:
    """Split items in order into parts of at most `most` weight; an item that is heavier is a part of its own."""
    start = held = 0
    for position, item in enumerate(items):
        added = weight(item)
        if position > start and held + added > most:
            yield items[start:position]
            start, held = position, 0
        held += added
    if start < len(items):
        yield items[start:]


async def in_turns(make: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """`[make(each) for each in items]` in slices; 0.2 us more per item."""
    turns, results = TimeSlices(), []
    for item in items:
        results.append(make(item))
        await turns.step()
    return results
