"""Notifies other processes that the log has grown, and follows it when one of them does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.core.errors import StorageUnavailable
from treadle.storage.composed.port_calls import Port, soon

logger = logging.getLogger("treadle")

Work = Callable[[], Awaitable[None]]


class Notifier:
    """Publishes and receives positions of the log. Lost messages are harmless: each call reads the log to its end.

    position  the position of this process in the log
    follow    applies the new entries
    start     runs work next to the calls
    """

    def __init__(
        self, pubsub: Port, channel: str, position: Callable[[], int], follow: Work, start: Callable[[Work], None]
    ) -> None:
        self._pubsub, self._channel, self._position = pubsub, channel, position
        self._follow, self._start = follow, start
        self._unsubscribe: Any = None
        self._subscribing = self._publishing = self._following = False

    @property
    def is_listening(self) -> bool:
        return self._unsubscribe is not None

    def changed(self) -> None:
        """Note that this process has appended to the log. Changes of one moment share a message."""
        if not self._publishing:
            self._publishing = True
            self._start(self._publish)

    async def _publish(self) -> None:
        self._publishing = False  # a later change starts another publish
        await self._pubsub(self._pubsub.port.publish, self._channel, str(self._position()))

    async def listen(self) -> None:
        """Subscribe to the log's channel. If that fails, the next `watch` tries again."""
        if self._unsubscribe is not None or self._subscribing:
            return
        self._subscribing = True
        try:
            self._unsubscribe = await self._pubsub(self._pubsub.port.subscribe, self._channel, self._received)
        except StorageUnavailable as error:
            logger.warning("no notifications of new jobs; polling: %s", error)
        finally:
            self._subscribing = False

    def _received(self, text: str) -> None:
        """Follow the log after a message with a position. A text that is not a number is ignored."""
        if self.is_listening and not self._following and text.isdecimal() and int(text) > self._position():
            self._following = True
            self._start(self._caught_up)

    async def _caught_up(self) -> None:
        try:
            await self._follow()
        finally:
            self._following = False

    async def close(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            await soon(self._pubsub(unsubscribe))
