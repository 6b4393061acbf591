"""Decides which event loop has an app's storage open: one at a time, chosen under a lock before anything is awaited.

A storage belongs to the loop that opened it. Other loops reach it through `SharedStorage`. An ownership ends when the
app is closed, when the last user leaves it, or when its loop ends. A forked child has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar
from weakref import WeakSet

from treadle.concurrency import forks
from treadle.concurrency.cross_loop import LoopCall, LoopEnded, is_own, stopped
from treadle.concurrency.spawn import started
from treadle.core.errors import StorageError, StorageUnavailable
from treadle.storage.contract import Storage
from treadle.storage.loop_ownership import GuestEnded, Loop, Ownership, Why, _guest
from treadle.storage.move_marks import warn_of_move
from treadle.storage.other_loops import SharedStorage
from treadle.storage.risks import warn_of_risks

T = TypeVar("T")


AGAIN: Final = 0.02  # seconds before a call is repeated that the owning loop cancelled when it ended
ENDING: Final = 500  # attempts of one call, 10 s in all

_all: WeakSet[Lifecycle] = WeakSet()


class Lifecycle:
    """The storage of one app, and which loop has it open.

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
        self._when_open, self._when_forked = when_open, when_forked
        self.own_loop: Loop | None = (
            None  # the portal's loop; it gives the storage up to any other loop that opens the app
        )
        self._parent: int | None = None  # in a child that cannot make its own storage: the parent process
        self._names_risks = names_risks
        self._risks: set[str] = set()  # the names of those that were logged
        self._begin()
        self.shared = SharedStorage(self)
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self.ownership: Ownership | None = None
        self._users: dict[Loop, int] = {}
        self._taking = 0  # number of loops that are taking the storage over from the portal's loop
        self.lazily = False  # a call opened it, so it stays open until `close`
        self.moves = 0  # how often the storage left its loop other than by `close`
        # The hot path reads these two: the loop where the storage is open, and the storage that callers there use.
        self._loop: Loop | None = None
        self._at_hand: Storage | None = None

    def after_fork(self) -> None:
        """Begin anew in a forked child, which must use nothing that its parent has open."""
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
        owner = self.owner
        if owner is None:
            return self.storage
        try:
            return self.storage if asyncio.get_running_loop() is owner else self.shared
        except RuntimeError:
            return self.storage

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
            while True:
                ownership = await self._current(here)
                storage = await self._ready(ownership, here)
                if storage is None:
                    continue
                if ownership.loop is here or ownership.loop is not self.own_loop:
                    return storage
                await self._take_over(ownership)
        except BaseException:
            await self.leave(0)  # it may be open by now and have no other user
            raise

    async def _take_over(self, ownership: Ownership) -> None:
        """Close the storage on the portal's loop. The portal's calls go on once it is open on this loop."""
        self._take(1)
        try:
            await self._shut(ownership, "handed over")
        finally:
            self._take(-1)

    def _take(self, more: int) -> None:
        with self._lock:  # loops of several threads change it
            self._taking += more

    async def opened(self) -> Storage:
        """The storage; the first call opens it, and it stays open until `close`."""
        storage, here = self.at_hand(), asyncio.get_running_loop()
        while storage is None:
            self.lazily = True
            storage = await self._ready(await self._current(here), here)
        return storage

    def _count(self, loop: Loop, more: int) -> int:
        with self._lock:
            self._users[loop] = max(0, self._users.get(loop, 0) + more)
            for each in [each for each, count in self._users.items() if not count or each.is_closed()]:
                del self._users[each]
            return sum(self._users.values())

    async def _current(self, here: Loop) -> Ownership:
        """The current ownership, or a new one of this loop."""
        while self._taking and here is self.own_loop and self.owner is None:  # noqa: ASYNC110 (another thread changes it)
            await asyncio.sleep(AGAIN)
        if self._parent is not None:
            raise StorageError(
                f"this app's storage was opened by process {self._parent}, and this is its child {os.getpid()}: give "
                "the app the URL of a file or a server, or create the app in the child"
            )
        with self._lock:
            found = self.ownership
            if found is not None and not found.is_over:
                if found.loop is not here and is_own(found.thread):
                    raise stopped()
                return found
            self._check_guest(here)
            left = found is not None  # the former loop ended without closing it
            if left and self._make is not None:
                self.storage, left = self._make(), False
            new = self.ownership = Ownership(self, here, self.storage)
            self._loop = self._at_hand = None
        new.opening = started(self._open(new, left), loop=here)
        new.opening.add_done_callback(_seen)
        return new

    def _check_guest(self, here: Loop) -> None:
        """Raise GuestEnded in a call that came from another loop while the storage was open here. It must not open the
        storage again on this loop, which may be ending."""
        guest = _guest.get()
        host = None if guest is None else guest.host
        if host is not None and host.life is self and host.loop is here:
            raise GuestEnded

    async def _open(self, ownership: Ownership, left: bool) -> None:
        storage, ownership.at_loop_end = ownership.storage, self._at_loop_end(ownership)
        try:
            await anext(ownership.at_loop_end)  # register first: the loop may be ending already
            if left:
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
                await self._ended(ownership, "failed")  # lets waiting callers try again
            raise
        with self._lock:
            ownership.state = "open"
            self._at_hand = self.shared if ownership.loop is self.own_loop else storage
            self._loop = ownership.loop
        self._when_open()

    async def _at_loop_end(self, ownership: Ownership) -> AsyncGenerator[None]:
        """Close the storage when the loop ends: `asyncio.run` closes all asynchronous generators, so also this one."""
        try:
            yield
        finally:
            if not ownership.is_over:
                await self._shut_here(ownership, "ended")

    async def _ready(self, ownership: Ownership, here: Loop) -> Storage | None:
        """Wait until the storage is open; return the storage that callers on this loop use. None: the ownership ended
        meanwhile."""
        try:
            if ownership.loop is here:
                await self._settled(ownership)
            elif ownership.state != "open":
                await LoopCall(ownership.loop, lambda: self._settled(ownership)).wait()
        except LoopEnded:
            await asyncio.sleep(AGAIN)
        if ownership.state != "open":
            return None
        return self._at_hand if ownership.loop is here else self.shared

    async def _settled(self, ownership: Ownership) -> None:
        """Wait, on the owning loop, until the storage is open or closed. The last caller to be cancelled also cancels
        the opening."""
        opening, state = ownership.opening, ownership.state
        if state == "closing" and ownership.closing is not None:
            await asyncio.wait([ownership.closing])
        if state != "opening" or opening is None:
            return
        ownership.waiting += 1
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            if ownership.waiting == 1 and not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
            raise
        finally:
            ownership.waiting -= 1
        if not opening.cancelled():
            opening.result()

    # --- closing

    async def leave(self, others: int, *, even_if_lazily: bool = False) -> None:
        """End one use of the storage. Close it when at most `others` uses remain, which need not keep it open. A
        storage that a call opened stays open unless `even_if_lazily`."""
        left = self._count(asyncio.get_running_loop(), -1)
        if left <= others and (even_if_lazily or not self.lazily):
            await self.close("unused")

    async def close(self, why: Why = "closed") -> None:
        """Close the storage on the loop where it is open. If the caller is cancelled, the closing continues."""
        ownership = self.ownership
        if ownership is None or ownership.state == "ended":
            return
        if ownership.loop.is_closed():  # its loop ended without closing it; the next open makes a new ownership
            self._count(ownership.loop, 0)
            self.lazily = False
        elif ownership.loop is not asyncio.get_running_loop() and is_own(ownership.thread):
            raise stopped()
        else:
            await self._shut(ownership, why)

    async def _shut(self, ownership: Ownership, why: Why) -> None:
        if ownership.loop is asyncio.get_running_loop():
            await self._shut_here(ownership, why)
            return
        with contextlib.suppress(LoopEnded):
            await LoopCall(ownership.loop, lambda: self._shut_here(ownership, why)).wait()

    async def _shut_here(self, ownership: Ownership, why: Why) -> None:
        opening = ownership.opening
        if ownership.state == "opening" and opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        task = asyncio.current_task()
        if task is not None:
            ownership.calls.discard(task)  # closing must not cancel the call that closes
        while ownership.state != "ended":
            if ownership.closing is None:
                ownership.closing = started(self._close(ownership, why), loop=ownership.loop)
            await asyncio.shield(ownership.closing)
            if why == "unused":
                return
            # An earlier closing for lack of users is given up if the app is in use again; then close once more.

    async def _close(self, ownership: Ownership, why: Why) -> None:
        try:
            if why != "handed over":
                await self._before_close()
        finally:  # also if this task is cancelled: nothing else closes the storage
            if not self._stays(ownership, why):
                await self._let_go(ownership, why)

    def _stays(self, ownership: Ownership, why: Why) -> bool:
        """Whether the closing is given up because the app is in use again. If not, new calls no longer find the
        storage."""
        with self._lock:
            if why == "unused" and self._users:
                ownership.closing = None
                return True
            ownership.state, ownership.why = "closing", why
            self._loop = self._at_hand = None
            return False

    async def _let_go(self, ownership: Ownership, why: Why) -> None:
        try:
            try:
                await ownership.end_calls()
            finally:
                await ownership.storage.close()
        finally:
            await self._ended(ownership, why)

    async def _ended(self, ownership: Ownership, why: Why) -> None:
        self._end(ownership, why)
        if ownership.at_loop_end is not None:
            with contextlib.suppress(RuntimeError):  # the generator itself may be what closes the storage here
                await ownership.at_loop_end.aclose()

    def _end(self, ownership: Ownership, why: Why) -> None:
        with self._lock:
            self.moves += ownership.state == "closing" and why != "closed"
            ownership.state, ownership.why = "ended", why
            if self.ownership is ownership:
                self.ownership = self._loop = self._at_hand = None
            if why == "closed":
                self._users.clear()
            elif why == "ended":
                self._users.pop(ownership.loop, None)
            if why in ("closed", "unused"):
                self.lazily = False

    # --- calls from any loop

    async def call(self, verb: Callable[[Storage], Awaitable[T]]) -> T:
        """Run one verb on the loop that has the storage open. The call is repeated if that loop ends or gives the
        storage up during it: every verb may be repeated (law 10)."""
        here = asyncio.get_running_loop()
        for _ in range(ENDING):
            ownership = await self._current(here)
            if await self._ready(ownership, here) is None:
                continue
            try:
                if ownership.loop is here:
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


def _seen(opening: asyncio.Task[None]) -> None:
    """Retrieve the error, so that asyncio does not log it if all callers were cancelled."""
    if not opening.cancelled():
        opening.exception()


def _forked() -> None:
    for each in list(_all):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
