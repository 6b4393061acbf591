"""HTTP/1.1 on one connection, with bounds on the size and time of heads, bodies and responses.

There is no timer per request: `Connections` checks all connections periodically with `end_if_overdue`.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final, cast

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from treadle.server.bounds import Bounds
from treadle.storage import messages

access = logging.getLogger("treadle.access")
SAFE: Final = (
    b"x-content-type-options: nosniff\r\ncontent-security-policy: default-src 'none'; frame-ancestors 'none'\r\n"
)


class Phase(Enum):
    """The part of a request that the connection reads."""

    HEAD = 1
    BODY = 2
    BETWEEN = 3  # waits: the request is complete, and no byte of the next one has arrived
    CLOSING = 4  # bytes to discard: it has refused the connection


def refusal_bytes(status: int, error: str, message: str, *headers: bytes) -> bytes:
    """A complete error response that closes the connection."""
    body = msgspec.json.encode(messages.Problem(error, message))
    line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-length: {len(body)}\r\n"
    named = b"".join(header + b"\r\n" for header in headers)
    return line.encode() + b"content-type: application/json\r\nconnection: close\r\n" + named + SAFE + b"\r\n" + body


class Bounded(HttpToolsProtocol):
    """One bounded HTTP/1.1 connection."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        bounds: Bounds,
        made: Callable[[], None],
    ) -> None:
        super().__init__(config, state, app_state, loop)
        self._bounds, self._made = bounds, made
        self._phase = Phase.HEAD
        self._since = loop.time()  # when the phase began; for a body, when its last piece arrived
        self._size = 0  # bytes of the head read so far, or bytes discarded
        self._length, self._count = 0, 0  # bytes and number of the headers
        self._heads = 0  # complete heads that were accepted
        self._pieces = 0  # pieces of bodies
        self._beside = 0  # bytes since the last piece that belong to a chunk extension or to headers after a body
        self._is_full = False  # too many requests wait: they are answered, and those behind them are refused
        self._late_since: float | None = None  # since when the body still arrives after its response
        self._earlier: list[RequestResponseCycle] = []  # requests before the last one without a complete response
        self._unread: tuple[float, int] | None = None  # since when this many bytes are unread by the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made()
        self._late = cast("asyncio.Transport", _Late(self))

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify every request, also pipelined ones, that its client has disconnected."""
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    # --- requests

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._phase is Phase.CLOSING:
            self._size += len(data)
            if self._size > self._bounds.late_size:
                self.transport.abort()
            return
        now = self.loop.time()
        if self._phase is not Phase.HEAD:
            if self._phase is Phase.BETWEEN:
                self._phase, self._size = Phase.HEAD, 0
            self._since = now
        before, pieces = self._heads, self._pieces
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if self._phase is not Phase.CLOSING:
                self._refuse(400, "malformed", f"expected an HTTP request: {type(error).__name__}")
            return
        if self._phase is Phase.HEAD and before == self._heads:  # all bytes belong to an incomplete head
            self._size += len(data)
            if self._size > self._bounds.head:
                self._refuse_head()
        is_beside = self._phase is Phase.BODY and (before, pieces) == (self._heads, self._pieces)
        self._beside = self._beside + len(data) if is_beside else 0
        if self._beside > self._bounds.head:  # the parser would keep it, and copy it with each piece
            self._refuse_head()

    def _feed(self, data: bytes) -> None:
        """Parse the data. Raises HttpParserError.

        No path supports an Upgrade. Clients that offer an upgrade (Java's, `curl --http2`) send an ordinary request,
        but the parser would leave its body to the other protocol. The head is therefore parsed again without the offer.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if self._phase is not Phase.HEAD:  # refused, or a CONNECT, which gets an error response
                    return
                data = self._head_again() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                with suppress(AttributeError):  # httptools before 0.6.3
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # uvicorn sets this, too

    def _head_again(self) -> bytes:
        """The head that was just parsed, without its Upgrade header."""
        line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        named = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return line + b"".join(named) + b"\r\n"

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._bounds.head:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase is not Phase.CLOSING:
            self._phase = Phase.HEAD
            self._size = self._length = self._count = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        self._length += len(name) + len(value) + 4
        if self._count > self._bounds.headers or self._length > self._bounds.head:
            self._refuse_head()
        elif self._phase is Phase.HEAD:  # ignore trailers after a body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._phase is Phase.CLOSING:
            return
        if len(self.url) + self._length > self._bounds.head:
            self._refuse_head()
        elif len(self.pipeline) >= self._bounds.pipelined:
            self._phase, self._size, self._is_full = Phase.CLOSING, 0, True
        elif not self.parser.should_upgrade() or self.parser.get_method() == b"CONNECT":  # otherwise parsed again
            self._phase = Phase.BODY
            self._late_since = None
            before = self.cycle
            super().on_headers_complete()
            self._heads += 1
            self.cycle.transport = self._late
            if self.pipeline:
                self._earlier = [cycle for cycle in (*self._earlier, before) if not cycle.response_complete]
                if len(self.pipeline) <= self._bounds.pipelined // 2:
                    self.flow.resume_reading()  # otherwise a disconnect would go unnoticed

    def on_body(self, body: bytes) -> None:
        if self._phase is not Phase.BODY:
            return
        self._pieces += 1
        if self._late_since is not None:
            self._size += len(body)
            if self._size > self._bounds.late_size:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._phase is not Phase.BODY:
            return
        self._phase, self._late_since = Phase.BETWEEN, None
        self._since = self.loop.time()
        super().on_message_complete()

    # --- responses

    def on_response_complete(self) -> None:
        now = self.loop.time()
        if self._phase is Phase.BETWEEN:
            self._since = now
        elif self._phase is Phase.BODY and self.cycle.response_complete:
            self._late_since, self._size = now, 0
        super().on_response_complete()
        if self._is_full and not self._is_answering and not self.transport.is_closing():
            self._phase, self._is_full = Phase.HEAD, False
            self._refuse(429, "too_many", "too many requests on this connection waited for their responses")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = (self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None

    # --- time limits

    @property
    def without_request(self) -> float | None:
        """The time since which the connection has had no request; None if it has one."""
        if self._is_answering or self._phase in (Phase.BODY, Phase.CLOSING):
            return None
        return self._since

    @property
    def _is_answering(self) -> bool:
        return bool(self.pipeline) or (self._heads > 0 and not self.cycle.response_complete)

    def end_if_overdue(self, now: float) -> None:
        """Refuse or close the connection if it has exceeded a time limit. Called periodically."""
        bounds, transport = self._bounds, self.transport
        if self._is_unread(now):
            transport.abort()
        elif self._is_full and self._is_answering:
            pass
        elif self._phase is Phase.CLOSING or self._late_since is not None:
            since = self._since if self._late_since is None else self._late_since
            if now - since > bounds.late_time:
                transport.abort()
        elif self.flow.read_paused:
            self._since = now  # the server, not the client, causes the delay
        elif self._phase is Phase.BODY:
            if now - self._since > bounds.body_time:
                message = f"no byte of the body arrived for {bounds.body_time:g} s"
                self._refuse(408, "too_slow", message)
        elif self._is_answering:
            pass
        elif self._phase is Phase.HEAD:
            if now - self._since > bounds.head_time:
                self._refuse(408, "too_slow", f"expected a complete request head within {bounds.head_time:g} s")
        elif now - self._since > bounds.idle_time:
            transport.close()

    def _is_unread(self, now: float) -> bool:
        """Whether the client reads its response too slowly."""
        if self._unread is None:
            return False
        since, waiting = self._unread
        unread = self.transport.get_write_buffer_size()
        if unread <= waiting - self._bounds.read_step:
            self._unread = (now, unread)
            return False
        if unread > waiting:
            self._unread = (since, unread)
        return now - since > self._bounds.read_time

    def leave(self) -> None:
        """Refuse and close the connection to make room for another one."""
        self._refuse(
            503, "too_many", "the server has reached its limit of connections and closes those without a request"
        )
        self.transport.close()

    # --- ending it

    def close(self) -> None:
        """Close after the last response; a request body is read to its end first."""
        if self._phase is Phase.BODY:
            self._throw_away()
        else:
            self.transport.close()

    def _throw_away(self) -> None:
        """Discard further bytes for a moment: closing at once would discard the response."""
        self._phase, self._since, self._size, self._late_since = Phase.CLOSING, self.loop.time(), 0, None
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            cast("asyncio.WriteTransport", self.transport).write_eof()

    def _refuse_head(self) -> None:
        bounds = self._bounds
        message = f"expected a request head of at most {bounds.head:,} bytes and {bounds.headers} headers"
        self._refuse(431, "too_large", message)

    def _refuse(self, status: int, error: str, message: str) -> None:
        """Send an error response and stop reading requests."""
        if self._phase is Phase.CLOSING:
            return
        self._phase = Phase.CLOSING
        access.info("refused a connection of %s: %d %s", self.client[0] if self.client else "-", status, error)
        begun = bool(self.pipeline)
        if self._heads and not self.cycle.response_complete:
            begun = begun or self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if begun or self.transport.is_closing():  # a second response would be read as part of the one in progress
            self.pipeline.clear()
            self.transport.abort()
            return
        self.transport.write(refusal_bytes(status, error, message))
        self._throw_away()


class _Late:
    """The transport for a response. Its `close` waits until the body of the request has been read."""

    def __init__(self, connection: Bounded) -> None:
        self._connection = connection
        self.is_closing = connection.transport.is_closing

    def write(self, data: bytes) -> None:
        """Write, unless the connection is closing: then uvloop would raise, because pipelined requests are not
        notified."""
        if not self.is_closing():
            self._connection.transport.write(data)

    def close(self) -> None:
        self._connection.close()
