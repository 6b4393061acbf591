"""Decides which event loop has an app's storage open: one at a time, chosen under a lock before anything is awaited.

A storage belongs to the loop that opened it. Other loops reach it through `SharedStorage`, threads through `app.sync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

from treadle.concurrency import forks
from treadle.concurrency.cross_loop import LoopCall, LoopEnded, is_own, stopped
from treadle.concurrency.spawn import mark_retrieved, started
from treadle.core.errors import StorageError, StorageUnavailable
from treadle.storage.contract import Storage
from treadle.storage.loop_ownership import GuestEnded, Loop, Ownership, Why, is_guest
from treadle.storage.move_marks import warn_of_move
from treadle.storage.other_loops import SharedStorage
from treadle.storage.risks import warn_of_risks

T = TypeVar("T")

AGAIN: Final = 0.02  # seconds before a call is repeated that the owning loop cancelled when it ended
ENDING: Final = 500  # attempts of one call, 10 s in all


class Lifecycle:
    """The storage of one app, and which loop has it open.

    `ownership` is one period on one loop. Its states, and the method that leads to each:

        opening  `_current`: the first loop that needs the storage opens it, in a task
        open     `_open`: code on that loop uses the storage directly, code on other loops through `call`
        closing  `_close`, a task: the app is closed, its last user has left, the loop ends, or the loop of `app.sync`
                 gives the storage to another loop that opens the app
        ended    `_end`: also after an opening that failed or was cancelled. The next call begins a new period, on its
                 own loop; so it does if a loop is closed in any state. A forked child begins without one.

    make          makes a new storage with the same address; None: the app has only this one
    by_url        a forked child can make its own storage, which shares nothing with that of its parent
    before_close  awaited before the storage is closed
    when_open     called each time after the storage was opened
    when_forked   called in a forked child, before any other method
    names_risks   log the risks of the storage when it was opened: not of one that is only read
    """

    def __init__(
        self,
        storage: Storage,
        make: Callable[[], Storage] | None,
        by_url: bool,
        before_close: Callable[[], Awaitable[object]],
        when_open: Callable[[], None],
        when_forked: Callable[[], None],
        names_risks: bool = True,
    ) -> None:
        self.storage, self._make, self._by_url, self._before_close = storage, make, by_url, before_close
        self._when_open, self._when_forked, self._names_risks = when_open, when_forked, names_risks
        self.own_loop: Loop | None = None  # that of `app.sync`; it gives the storage to any loop that opens the app
        self._parent: int | None = None  # the parent process, in a forked child that cannot make its own storage
        self._risks: set[str] = set()  # the names of those that were logged
        self._begin()
        self.shared = SharedStorage(self)
        forks.register(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self.ownership: Ownership | None = None
        self._users: dict[Loop, int] = {}
        self._takers: set[Loop] = set()  # loops that take the storage over from that of `app.sync`
        self._lazily = False  # a call opened it, so it stays open until `close`
        self.closes = self.moves = 0  # how often `close` was called, and how often it left its loop otherwise
        # The hot path reads these two: the loop where the storage is open, and the storage that callers there use.
        self._loop: Loop | None = None
        self._at_hand: Storage | None = None

    def forked(self) -> None:
        """Start over in a forked child, which must use nothing that its parent has open."""
        before = self.ownership
        self._begin()
        self.own_loop = None
        self._when_forked()
        if before is not None:
            forks.leave(before.storage)  # garbage collection could write to the parent's sockets
            if self._make is not None and self._by_url:
                self.storage = self._make()
            else:
                self._parent = os.getppid()

    # --- lookup

    def at_hand(self) -> Storage | None:
        """The storage, if it is open on the running loop."""
        return self._at_hand if self._loop is asyncio.get_running_loop() else None

    def seen_from_here(self) -> Storage:
        """The storage that the running code may use: itself on the owning loop or without a loop, otherwise shared."""
        here, owner = asyncio._get_running_loop(), self.owner
        return self.storage if here is None or owner is None or here is owner else self.shared

    @property
    def loop(self) -> Loop | None:
        """The event loop on which the storage is open."""
        loop = self._loop
        return None if loop is None or loop.is_closed() else loop

    @property
    def owner(self) -> Loop | None:
        """The event loop on which the storage is open, or is being opened or closed."""
        ownership = self.ownership
        return None if ownership is None or ownership.is_over else ownership.loop

    # --- opening

    async def open(self) -> Storage:
        """Open the storage unless it is open. Each call needs its own `leave`."""
        here = asyncio.get_running_loop()
        self._count(here, 1)
        try:
            ownership = await self._reach()
            while ownership.loop is self.own_loop and self.own_loop is not here:
                self._takers.add(here)  # calls of `app.sync` wait until it is open here
                try:
                    await self._shut(ownership, "handed over")
                finally:
                    self._takers.discard(here)
                ownership = await self._reach()
            return self.at_hand() or self.shared
        except BaseException:
            await self.leave(0)  # it may be open by now and have no other user
            raise

    async def opened(self) -> Storage:
        """The storage, for a call that has none at hand. The first one opens it, and it stays open until `close`."""
        await self._reach(lazily=True)
        return self.at_hand() or self.shared

    def _count(self, loop: Loop, more: int) -> int:
        with self._lock:
            self._users[loop] = max(0, self._users.get(loop, 0) + more)
            self._users = {user: count for user, count in self._users.items() if count and not user.is_closed()}
            return sum(self._users.values())

    async def _reach(self, lazily: bool = False) -> Ownership:
        """The current ownership once it is open; without one, this loop opens the storage."""
        while True:
            while self._takers and self.owner is None and self.own_loop is asyncio.get_running_loop():  # noqa: ASYNC110
                await asyncio.sleep(AGAIN)
            if lazily:  # set each time, because a closing that ends meanwhile resets it
                self._lazily = True
            ownership = self._current()
            try:
                if ownership.state != "open":
                    await ownership.ready()
            except LoopEnded:
                await asyncio.sleep(AGAIN)
            if ownership.state == "open":
                return ownership

    def _current(self) -> Ownership:
        """The current ownership, or a new one of this loop."""
        if self._parent is not None:
            raise StorageError(
                f"this app's storage was opened by process {self._parent}, and this is its child {os.getpid()}: give "
                "the app the URL of a file or a server, or create the app in the child"
            )
        here = asyncio.get_running_loop()
        with self._lock:
            before = self.ownership
            if before is not None and not before.is_over:
                if before.loop is not here and is_own(before.thread):
                    raise stopped()
                return before
            if is_guest(self):  # it must not open the storage again on this loop, which may be ending
                raise GuestEnded
            is_left_open = before is not None  # the former loop ended without closing it
            if is_left_open and self._make is not None:
                self.storage, is_left_open = self._make(), False
            new = self.ownership = Ownership(self, here, self.storage)
            self._loop = self._at_hand = None
        new.at_loop_end = self._at_loop_end(new)
        new.opening = started(self._open(new, is_left_open), loop=here)
        new.opening.add_done_callback(mark_retrieved)
        return new

    async def _open(self, ownership: Ownership, is_left_open: bool) -> None:
        storage = ownership.storage
        try:
            await anext(ownership.at_loop_end)  # register first: the loop may be ending already
            if is_left_open:
                with contextlib.suppress(Exception):
                    await storage.close()
            await storage.open()
            await warn_of_move(storage)
            if self._names_risks:
                await warn_of_risks(storage, self._risks)
        except BaseException:
            try:
                with contextlib.suppress(Exception):
                    await storage.close()
            finally:
                await self._end(ownership, "failed")  # lets waiting callers try again
            raise
        with self._lock:
            ownership.state = "open"
            self._loop, self._at_hand = ownership.loop, self.shared if ownership.loop is self.own_loop else storage
        self._when_open()

    async def _at_loop_end(self, ownership: Ownership) -> AsyncGenerator[None]:
        """Close the storage when the loop ends: `asyncio.run` closes all asynchronous generators, so also this one."""
        try:
            yield
        finally:
            if not ownership.is_over:
                await self._shut(ownership, "ended")

    # --- closing

    async def leave(self, others: int, *, even_if_lazily: bool = False) -> None:
        """End one use of the storage. Close it when at most `others` uses remain, which need not keep it open. A
        storage that a call opened stays open unless `even_if_lazily`."""
        users = self._count(asyncio.get_running_loop(), -1)
        if users <= others and (even_if_lazily or not self._lazily):
            await self.close("unused")

    async def close(self, why: Why = "closed") -> None:
        """Close the storage on the loop where it is open. If the caller is cancelled, the closing continues."""
        with self._lock:
            self.closes += why == "closed"
        ownership = self.ownership
        if ownership is None or ownership.state == "ended":
            return
        if ownership.loop.is_closed():  # its loop ended without closing it; the next open makes a new ownership
            self._count(ownership.loop, 0)
            self._lazily = False
        elif ownership.loop is not asyncio.get_running_loop() and is_own(ownership.thread):
            raise stopped()
        else:
            await self._shut(ownership, why)

    async def _shut(self, ownership: Ownership, why: Why) -> None:
        """Close the storage in whatever state this is, on its loop."""
        if ownership.loop is not asyncio.get_running_loop():
            with contextlib.suppress(LoopEnded):
                await LoopCall(ownership.loop, lambda: self._shut(ownership, why)).wait()
            return
        if ownership.state == "opening":
            ownership.opening.cancel()
            await asyncio.wait([ownership.opening])
        ownership.calls -= {asyncio.current_task()}  # closing must not cancel the call that closes
        while ownership.state != "ended":
            if ownership.closing is None:
                ownership.closing = started(self._close(ownership, why), loop=ownership.loop)
                ownership.closing.add_done_callback(mark_retrieved)
            await asyncio.shield(ownership.closing)
            if why == "unused":
                return
            # An earlier closing for lack of users is given up if the app is in use again; then close once more.

    async def _close(self, ownership: Ownership, why: Why) -> None:
        try:
            if why != "handed over":
                await self._before_close()
        finally:  # even if this task is cancelled: nothing else closes the storage
            with self._lock:
                is_wanted = why == "unused" and bool(self._users)
                if is_wanted:
                    ownership.closing = None  # the app is in use again
                else:
                    ownership.state, ownership.why = "closing", why
                    self.moves += why != "closed"
                    if self.ownership is ownership:  # otherwise its loop was closed meanwhile
                        self._loop = self._at_hand = None
            if not is_wanted:
                async with contextlib.AsyncExitStack() as steps:  # all steps run, even if one is cancelled
                    steps.push_async_callback(self._end, ownership, why)
                    steps.push_async_callback(ownership.storage.close)
                    await ownership.end_calls()

    async def _end(self, ownership: Ownership, why: Why) -> None:
        with self._lock:
            ownership.state, ownership.why = "ended", why
            if self.ownership is ownership:
                self.ownership = None
            if why == "closed":
                self._users.clear()
            elif why == "ended":
                self._users.pop(ownership.loop, None)
            if why in ("closed", "unused"):
                self._lazily = False
        with contextlib.suppress(RuntimeError):  # the generator itself may be what closes the storage here
            await ownership.at_loop_end.aclose()

    # --- calls from any loop

    async def call(self, verb: Callable[[Storage], Awaitable[T]]) -> T:
        """Run one verb on the loop that has the storage open. The call is repeated if that loop ends or gives the
        storage up during it: every verb may be repeated (law 10)."""
        for _ in range(ENDING):
            ownership = await self._reach()
            try:
                if ownership.loop is asyncio.get_running_loop():
                    return await verb(ownership.storage)
                return await ownership.call(lambda: verb(ownership.storage)).wait()  # noqa: B023
            except LoopEnded:
                ownership.check()
            except StorageUnavailable:
                if ownership.state == "open":
                    raise
                ownership.check()
            await asyncio.sleep(AGAIN)
        raise StorageUnavailable("the event loop on which this app is open cancels every call")
