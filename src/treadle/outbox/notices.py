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

    def __init__(self, address: Address, poll: float) -> None:
        self._address, self._poll = address, poll
        self._raw: Any = None
        self._not_before = 0.0

    async def wait(self) -> None:
        """Return after a notification, or after `poll` s."""
        if self._address.dialect != "postgresql" or monotonic() < self._not_before:
            await asyncio.sleep(self._poll)
            return
        import psycopg

        try:
            if self._raw is None:
                async with asyncio.timeout(CONNECT):
                    self._raw = await psycopg.AsyncConnection.connect(self._address.target, autocommit=True)
                    await self._raw.execute(f"LISTEN {CHANNEL}")
                return  # a row may have been committed before this
            async for _ in self._raw.notifies(timeout=self._poll, stop_after=1):
                pass
            async for _ in self._raw.notifies(timeout=0):  # one read serves all of them
                pass
        except (psycopg.Error, OSError, TimeoutError):
            self._not_before = monotonic() + AGAIN
            await self.close()
            await asyncio.sleep(self._poll)

    async def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(Exception):
                await raw.close()
