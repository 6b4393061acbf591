"""A response of server-sent events that ends with its client, and closes its source at once in any case.

It sends nothing more to a caller whose token was removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.server.longpoll import disconnected

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
