"""The outbox of an app: writes rows, delivers its own after their commit, and finds jobs that still wait.

The delivery after a commit is a shortcut of milliseconds. It happens only while the app is open in this process, and
its failures are left to the relay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from treadle.concurrency.spawn import started
from treadle.core.errors import TreadleError
from treadle.outbox.address import place_of
from treadle.outbox.outbox import Found, Outbox
from treadle.outbox.relay import Relay
from treadle.outbox.write import Written

log = logging.getLogger("treadle")

CLOSING: Final = 2.0  # s for which a closing app waits for deliveries in progress
MOST: Final = 10_000  # jobs that wait for such a delivery; the relay finds any further ones


class OutboxTasks:
    """The outbox of one app in one process."""

    def __init__(
        self,
        outbox: Callable[[], Outbox | None],
        storage: Callable[[], Awaitable[Any]],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        url: Callable[[], str | None],
    ) -> None:
        self._outbox, self._storage, self._loop, self._url = outbox, storage, loop, url
        self._begin()

    def _begin(self) -> None:
        self._ids: list[str] = []
        self._delivering: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """Start over in a forked child."""
        self._begin()
        outbox = self._outbox()
        if outbox is not None:
            outbox._forget()

    def within(self, outbox: Outbox, session: Any) -> Written:
        """The verbs inside a transaction of the user."""
        return outbox._within(session, self._committed)

    def relay(self) -> Relay | None:
        """A new relay to the storage of the app; None: there is no outbox."""
        outbox = self._outbox()
        return None if outbox is None else outbox._relay(self._storage, place=self.place)

    @property
    def place(self) -> str | None:
        """The storage of the app, as the relay records it; None: it has no URL."""
        url = self._url()
        return None if url is None else place_of(url)

    async def find(self, id: str) -> Found | None:
        """Raises StorageError."""
        outbox = self._outbox()
        return None if outbox is None else await outbox._find(id)

    # --- after a commit

    def _committed(self, ids: Sequence[str]) -> None:
        """Begin the delivery, from the thread that has committed."""
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):  # it ended meanwhile
                loop.call_soon_threadsafe(self._add, ids)

    def _add(self, ids: Sequence[str]) -> None:
        self._ids += ids[: MOST - len(self._ids)]
        if self._delivering is None:
            self._delivering = started(self._deliver())

    async def _deliver(self) -> None:
        try:
            relay = self.relay()
            while self._ids and relay is not None:
                ids, self._ids = self._ids, []
                await relay.deliver(ids)
        except TreadleError as error:
            log.debug("jobs of a commit are left to the relay: %s", error)
        except Exception:
            log.exception("jobs of a commit are left to the relay")
        finally:
            self._ids, self._delivering = [], None

    async def idle(self) -> None:
        """Wait for the deliveries that have begun."""
        if self._delivering is not None:
            await asyncio.wait([self._delivering])

    async def close(self) -> None:
        """Finish the deliveries that have begun, and release the connection."""
        handing = self._delivering
        if handing is not None:
            await asyncio.wait([handing], timeout=CLOSING)
            handing.cancel()
            await asyncio.wait([handing])
        outbox = self._outbox()
        if outbox is not None:
            await outbox._close()
