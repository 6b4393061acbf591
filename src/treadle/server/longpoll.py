"""Runners that wait for work by long poll, and who of them is woken when some comes.

Without it one new job would wake every waiting runner, each for a claim in vain: with 200 of them that is most of a
core. Here a hint wakes the one who has waited longest; who found work wakes the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from starlette.requests import Request

from treadle.core import defaults
from treadle.errors import StorageError
from treadle.server.errors import Refused
from treadle.storage.contract import Storage

T = TypeVar("T")
Look = Callable[[], Awaitable[tuple[T, bool, float | None]]]


class WaitingLine:
    """Those who look for the same jobs: a hint that wakes one of them is none for the others. Whoever rests sits in a
    seat, in order of arrival."""

    def __init__(self) -> None:
        self.here = 0  # those who rest or look just now
        self.seats: deque[asyncio.Event] = deque()
        self.missed = False  # a hint came while everybody was looking: who sits down next looks once more
        self.due: float | None = None  # loop time at which the storage said the next job may be due
        self.watcher: asyncio.Task[None] | None = None

    def call_one(self) -> None:
        """Let the one who has waited longest look."""
        if self.seats:
            self.seats.popleft().set()
        else:
            self.missed = True

    async def rest(self, next_in: float | None, until: float) -> None:
        """Wait for a turn to look again, or until the loop's time is `until`."""
        if self.missed:
            self.missed = False
            return
        loop = asyncio.get_running_loop()
        if next_in is not None:
            moment = loop.time() + max(next_in, 0.001)
            self.due = moment if self.due is None else min(self.due, moment)
        seat = asyncio.Event()
        self.seats.append(seat)
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout_at(until):
                    await seat.wait()
            except BaseException:
                if seat.is_set():
                    self.call_one()  # called, and gone all the same: somebody else must look
                else:
                    self.seats.remove(seat)
                raise


class LongPoll:
    """All who wait, by the jobs they ask for."""

    def __init__(self, storage: Callable[[], Storage]) -> None:
        self._storage = storage
        self._benches: dict[tuple[tuple[str, ...], Hashable], WaitingLine] = {}
        self._limits: set[asyncio.Timeout] = set()  # of those who wait for hints
        self.home = asyncio.Event()  # the server stops: nobody waits any longer, for work or for an ending

    @asynccontextmanager
    async def bench(self, queues: Sequence[str], which: Hashable = None) -> AsyncIterator[WaitingLine]:
        """A place among those who look at these queues for the same jobs (`which`). Hints are heard from here on: look
        after you came."""
        names = tuple(sorted(set(queues)))
        bench = self._benches.setdefault((names, which), WaitingLine())
        bench.here += 1
        if bench.watcher is None:
            bench.watcher = asyncio.create_task(self._watch(names, bench))
            await asyncio.sleep(0)  # its ear is open
        try:
            yield bench
        finally:
            bench.here -= 1
            if not bench.here:
                self._benches.pop((names, which), None)
                bench.watcher.cancel()

    async def until_found(
        self,
        queues: Sequence[str],
        wait: float,
        request: Request,
        look: Look[T],
        back: Callable[[T], Awaitable[None]],
        which: Hashable = None,
    ) -> T:
        """Look for work until some is found or `wait` seconds are over; what the last look found.

        which  of the jobs of these queues it asks for
        look   answers what it found, whether that is something, and in how many seconds the next may be due
        back   gives what was found to somebody else
        Raises Refused if whoever asks has gone away, before a look or during it: work found for nobody would wait for
        a lease to run out.
        """
        if wait <= 0:
            return (await look())[0]
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        async with self.bench(queues, which) as bench:
            while not await request.is_disconnected():
                found, is_some, next_in = await look()
                if is_some:
                    if await request.is_disconnected():
                        await back(found)
                        break
                    bench.call_one()
                if is_some or loop.time() >= until or self.home.is_set():
                    return found
                await bench.rest(next_in, until)
            bench.call_one()
            raise Refused(400, "gone", "the runner went away while it waited")

    async def unless_stopped(self, hints: Awaitable[set[str]]) -> set[str]:
        """What was heard; nothing as soon as the server stops."""
        limit = asyncio.timeout(0 if self.home.is_set() else None)
        try:
            async with limit:
                self._limits.add(limit)
                return await hints
        except TimeoutError:
            if limit.expired():
                return set()
            raise
        finally:
            self._limits.discard(limit)

    def send_home(self) -> None:
        """The server stops: whoever waits is answered with what there is now."""
        self.home.set()
        for limit in self._limits:
            limit.reschedule(0)
        for bench in self._benches.values():
            for seat in bench.seats:
                seat.set()
            bench.seats.clear()

    async def _watch(self, names: tuple[str, ...], bench: WaitingLine) -> None:
        """One ear for the whole bench. A hint, a due moment or a second of silence lets one of them look."""
        loop = asyncio.get_running_loop()
        topics = [f"queue:{name}" for name in names]
        while True:
            pause = defaults.POLL
            if bench.due is not None:
                pause = min(pause, max(0.0, bench.due - loop.time()))
            try:
                await (self._storage().watch(topics, pause) if topics else asyncio.sleep(pause))
            except StorageError:
                await asyncio.sleep(defaults.POLL)
            if bench.due is not None and bench.due <= loop.time():
                bench.due = None
            bench.call_one()
