"""Waits for new rows: on PostgreSQL for a notification of the commit, elsewhere for the next poll."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from treadle.core.clock import monotonic
from treadle.outbox.address import CONNECT, Address
from treadle.outbox.table import CHANNEL

AGAIN: Final = 30.0  # s until listening is tried again after it failed; meanwhile the relay polls


class Notices:
    """A connection that listens. If it is lost, or a pooler drops the notifications, the relay still polls."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._raw: Any = None
        self._not_before = 0.0

    async def wait(self, most: float) -> bool:
        """Wait for a notification, for at most this many seconds. Returns whether there may be new rows."""
        if self._address.dialect != "postgresql" or monotonic() < self._not_before:
            await asyncio.sleep(most)
            return False
        import psycopg

        try:
            if self._raw is None:
                async with asyncio.timeout(CONNECT):
                    self._raw = await psycopg.AsyncConnection.connect(self._address.target, autocommit=True)
                    await self._raw.execute(f"LISTEN {CHANNEL}")
                return True  # a row may have been committed before this
            notices = [notice async for notice in self._raw.notifies(timeout=most, stop_after=1)]
            async for _ in self._raw.notifies(timeout=0):  # one read serves all of them
                pass
        except (psycopg.Error, OSError, TimeoutError):
            self._not_before = monotonic() + AGAIN
            await self.close()
            await asyncio.sleep(most)
            return False
        return bool(notices)

    async def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(Exception):
                await raw.close()
