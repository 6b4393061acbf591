"""Accepts connections up to a limit, and closes those that exceed a time.

It replaces asyncio's server, which does not count connections during their TLS handshake and accepts until the process
has no descriptor left, not even for its storage.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
from contextlib import suppress
from typing import Final, cast

import uvicorn

from treadle.server.bounds import Bounds
from treadle.server.http11 import Bounded, refusal_bytes

log = logging.getLogger("treadle.server")

LOOK: Final = 1.0  # s between checks of all connections: 1,000 of them take 0.3 ms
TURNED_AWAY: Final = 16  # refused connections at once that get a response; more of them are only closed
TELLING: Final = 1.0  # s that a refused connection has to read the response
FULL: Final = refusal_bytes(
    503, "too_many", "the server has reached its limit of connections; try again", b"retry-after: 1"
)
NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connections:
    """The listening socket of a server and its accepted connections, from `open` to `close`."""

    def __init__(self, listening: socket.socket, server: uvicorn.Server, bounds: Bounds) -> None:
        self._socket, self._server, self._bounds = listening, server, bounds
        self._most = bounds.most_connections()
        self._state = server.server_state
        self._coming: dict[asyncio.Task[None], float] = {}  # connections in their TLS handshake, and since when
        self._leaving: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []

    def open(self) -> None:
        self._loops = [asyncio.create_task(self._accept()), asyncio.create_task(self._look())]

    async def close(self) -> None:
        """Stop accepting connections. Open connections stay."""
        ending = [*self._loops, *self._coming, *self._leaving]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._socket.close()

    @property
    def connections(self) -> int:
        """The number of connections, including those in their handshake."""
        return len(self._state.connections) + len(self._coming)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in NO_ROOM:  # other code of this process holds the descriptors
                    log.warning("cannot accept connections: %s", error.strerror)
                    self._make_room()
                    await asyncio.sleep(LOOK)
                await asyncio.sleep(0.01)  # other errors: the client left before it was accepted
                continue
            if self.connections >= self._most and not await self._has_room():
                self._turn_away(client)
                continue
            task = loop.create_task(self._enter(client))
            self._coming[task] = loop.time()
            task.add_done_callback(functools.partial(self._entered, client))

    async def _has_room(self) -> bool:
        """Whether there is room for a connection; if not, the connection that has been idle for longest is closed
        first. Closing takes two turns of the loop."""
        has_closed = self._make_room()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return has_closed or self.connections < self._most

    async def _enter(self, client: socket.socket) -> None:
        """Do the TLS handshake, if any, and start the protocol."""
        loop, config, task = asyncio.get_running_loop(), self._server.config, asyncio.current_task()
        handshake = self._bounds.head_time if config.ssl is not None else None

        def protocol() -> Bounded:
            return Bounded(config, self._state, self._server.lifespan.state, loop, self._bounds, made)

        def made() -> None:  # the server state counts it from now on, so stop counting it here
            self._coming.pop(cast("asyncio.Task[None]", task), None)

        try:
            await loop.connect_accepted_socket(
                protocol,
                client,
                ssl=config.ssl,
                ssl_handshake_timeout=handshake,
                ssl_shutdown_timeout=None if handshake is None else self._bounds.late_time,
            )
        except (OSError, TimeoutError):  # the handshake failed or timed out
            client.close()

    def _entered(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._coming.pop(task, None)
        if task.cancelled():
            client.close()

    def _make_room(self) -> bool:
        """Close the connection that has been without a request for longest: idle, in its handshake or its head."""
        oldest: Bounded | asyncio.Task[None] | None = None
        since = float("inf")
        for task, begun in self._coming.items():
            if begun < since and self._server.config.ssl is not None:
                oldest, since = task, begun
        for connection in self._state.connections:
            assert isinstance(connection, Bounded)
            idle = connection.without_request
            if idle is not None and idle < since:
                oldest, since = connection, idle
        if oldest is None:
            return False
        if isinstance(oldest, Bounded):
            oldest.leave()
        else:
            oldest.cancel()
        return True

    def _turn_away(self, client: socket.socket) -> None:
        if len(self._leaving) >= TURNED_AWAY or self._server.config.ssl is not None:
            client.close()
            return
        task = asyncio.get_running_loop().create_task(_tell(client))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        pause = min(LOOK, self._bounds.shortest / 4)
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self._state.connections):
                assert isinstance(connection, Bounded)
                try:
                    connection.end_if_overdue(now)
                except Exception:  # check the other connections, too
                    log.exception("could not close a connection")


async def _tell(client: socket.socket) -> None:
    """Respond that the server is full. Read until the client closes: an earlier close would discard the response."""
    loop = asyncio.get_running_loop()
    try:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(TELLING):
                await loop.sock_sendall(client, FULL)
                client.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(client, 65_536):
                    pass
    finally:
        client.close()
