"""The process of `treadle storage relay`: delivers until it is cancelled, also through outages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.core.errors import PASSING, StorageError
from treadle.worker import RECOVERY, StorageOutage
from treadle.worker.probes import Verdict

if TYPE_CHECKING:
    from treadle.app import App

LOOPS = ("open", "relay")


class Relaying:
    """One run of a relay, and its health."""

    def __init__(self, app: App) -> None:
        self._app, self._is_open = app, False
        self._outage = StorageOutage("relay", RECOVERY, app._core.random, lambda *_: None, LOOPS)

    @property
    def verdict(self) -> Verdict:
        """Ready: the database of the outbox and the storage answer."""
        away, problem = self._outage.away, None
        if away is not None:
            problem = f"the outbox or the storage has been unavailable for {away:.0f} s; the log has the reason"
        elif not self._is_open:
            problem = "it connects"
        return Verdict(None, problem, "the relay delivers jobs, or stands by for another one")

    async def run(self) -> None:
        """Relay; after an error of the database or of the storage, again after a growing pause."""
        outage = self._outage
        while True:
            try:
                async with self._app:
                    outage.answered("open")
                    self._is_open = True
                    await self._relay()
            except PASSING as error:
                self._is_open = False
                await outage.failed("open", error)

    async def _relay(self) -> None:
        relay, outage = self._app._core.relay, self._outage
        assert relay is not None
        while True:
            try:
                await relay.run(lambda: outage.answered("relay"))
            except StorageError as error:
                await outage.failed("relay", error)
