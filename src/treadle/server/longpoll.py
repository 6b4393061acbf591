"""Long polls for work: a notification wakes the runner that has waited longest, not all of them.

A runner that finds work wakes the next one. Waking all runners for one job would cost a claim each; with 200 runners
that is most of a core.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.core import defaults
from treadle.core.errors import StorageError
from treadle.server.errors import Refused
from treadle.server.middleware import unchanged
from treadle.storage.contract import Storage

BEAT: Final = 15.0  # s between comments on an idle stream; shorter than the timeouts of proxies

T = TypeVar("T")
Look = Callable[[], Awaitable[tuple[T, bool, float | None]]]


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected. The body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def _client(receive: Receive | None, on_left: Callable[[], None]) -> Iterator[None]:
    """Call `on_left` if the client disconnects within the block."""
    if receive is None:
        yield
        return

    def ended(gone: asyncio.Future[None]) -> None:
        if not gone.cancelled():
            gone.exception()  # the server raised: read the error, or asyncio logs it
            on_left()

    gone = asyncio.ensure_future(disconnected(receive))
    gone.add_done_callback(ended)
    try:
        yield
    finally:
        gone.cancel()


class WaitingLine:
    """The runners that poll for the same jobs. One notification wakes one of them, in order of arrival."""

    def __init__(self) -> None:
        self.here = 0  # runners that wait or claim
        self.seats: deque[asyncio.Event] = deque()  # one for each waiting runner
        self.missed = False  # a notification arrived while none was waiting: the next runner claims again
        self.due: float | None = None  # loop time at which the next job may be due
        self.watcher: asyncio.Task[None] | None = None

    def call_one(self) -> None:
        """Wake the runner that has waited longest."""
        if self.seats:
            self.seats.popleft().set()
        else:
            self.missed = True

    async def rest(self, next_in: float | None, until: float) -> None:
        """Wait until woken, or until the loop's time is `until`."""
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
                    self.call_one()  # woken and cancelled at once: wake another runner
                else:
                    self.seats.remove(seat)
                raise


class LongPoll:
    """All long polls, grouped by the jobs that they ask for."""

    def __init__(self, storage: Callable[[], Storage]) -> None:
        self._storage = storage
        self._benches: dict[tuple[tuple[str, ...], Hashable], WaitingLine] = {}
        self._limits: set[asyncio.Timeout] = set()  # time limits of requests that wait for notifications
        self.stopping = asyncio.Event()  # set when the server stops: every waiting request returns

    @asynccontextmanager
    async def bench(self, queues: Sequence[str], which: Hashable = None) -> AsyncIterator[WaitingLine]:
        """Join the runners that poll these queues for the same jobs (`which`).

        Notifications arrive from here on, so claim after entering the block.
        """
        names = tuple(sorted(set(queues)))
        bench = self._benches.setdefault((names, which), WaitingLine())
        bench.here += 1
        new = bench.watcher is None
        if bench.watcher is None:
            bench.watcher = asyncio.create_task(self._watch(names, bench))
        try:
            if new:
                await asyncio.sleep(0)  # let the watcher start
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
        """Poll for work until `look` finds some or `wait` seconds have passed -> the last result of `look`.

        which  identifies the jobs of these queues that the request asks for
        look   returns a result, whether it contains work, and the seconds until the next job may be due
        back   releases the work of a result

        Raises Refused if the client has disconnected before or during `look`, or if its rights have changed meanwhile;
        work that was found is released, because it would otherwise stay leased until the lease expires.
        """
        if wait <= 0:
            return (await look())[0]
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        async with self.bench(queues, which) as bench:
            while not await request.is_disconnected():
                result, is_some, next_in = await look()
                if is_some:
                    if await request.is_disconnected():
                        await back(result)
                        break
                    bench.call_one()
                if is_some or loop.time() >= until or self.stopping.is_set():
                    try:
                        await unchanged(request)
                    except Refused:
                        if is_some:
                            await back(result)
                        raise
                    return result
                await bench.rest(next_in, until)
            bench.call_one()
            raise Refused(400, "gone", "the runner disconnected while it waited")

    async def unless_stopped(self, work: Awaitable[T], receive: Receive | None = None) -> T | None:
        """The result of `work`; None as soon as the server stops, or the client of this `receive` disconnects."""
        limit = asyncio.timeout(0 if self.stopping.is_set() else None)
        try:
            async with limit:
                self._limits.add(limit)
                with _client(receive, lambda: limit.reschedule(0) if limit in self._limits else None):
                    return await work
        except TimeoutError:
            if limit.expired():
                return None
            raise
        finally:
            self._limits.discard(limit)

    def stop(self) -> None:
        """Make all waiting requests return what they have, because the server stops."""
        self.stopping.set()
        for limit in self._limits:
            limit.reschedule(0)
        for bench in self._benches.values():
            for seat in bench.seats:
                seat.set()
            bench.seats.clear()

    async def _watch(self, names: tuple[str, ...], bench: WaitingLine) -> None:
        """Watch the queues for a group of runners. Wake one on a notification, a due time, or after a second."""
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


# --- streams of events
#
# A response of server-sent events that ends with its client, and closes its source at once in any case.
#
# It sends nothing more to a caller whose token was removed.


HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # no proxy may keep events back


class EventStream(Response):
    """Sends what a generator yields. The generator is closed before the call returns, so it leaves no task behind."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = [asyncio.ensure_future(self._send(scope, send)), asyncio.ensure_future(disconnected(receive))]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        if not running[0].cancelled():
            running[0].result()  # raises what the source has raised

    async def _send(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                still = scope.get("treadle.still", lambda: True)
                async for text in events:
                    if not still():
                        break
                    await send({"type": "http.response.body", "body": text, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
