"""A site on a port: bound before anything is announced, and stopped without cutting off an answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Self

import uvicorn

from treadle.errors import BadOption
from treadle.server.bounds import Bounds
from treadle.server.connections import Connections
from treadle.server.settings import GRACE


def listen(host: str, port: int, tries: int = 1) -> socket.socket:
    """A listening socket. `tries` ports upward from `port` are tried; 0: any free one. Raises BadOption."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, port + (tries if port else 1)):
        # With the protocol named: asyncio switches Nagle's delay off only where it is, 40 ms an answer otherwise.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(1024)
        except OSError as error:
            found.close()
            last = error
            continue
        found.setblocking(False)
        return found
    raise BadOption("port", f"cannot listen on {host} port {port}: {last.strerror or last}")


class Serving:
    """A site that is served in this event loop, from `async with` to its end.

    grace    s that requests under way get to end
    on_stop  called when no more requests are taken, to answer those that wait
    bounds   what one connection may take, and how many there may be. Raises BadOption
    """

    def __init__(
        self,
        site: Callable[..., Awaitable[Any]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tries: int = 1,
        certificate: str | None = None,
        key: str | None = None,
        grace: float = GRACE,
        on_stop: Callable[[], None] = lambda: None,
        bounds: Bounds | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        bounds.most_connections()
        self._socket = listen(host, port, tries)
        self.host, self.port = self._socket.getsockname()[:2]
        self._on_stop = on_stop
        self.scheme = "https" if certificate else "http"
        config = uvicorn.Config(
            site,
            log_config=None,
            access_log=False,
            http="httptools",
            ws="none",
            lifespan="on",
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=max(1, round(grace)),
            server_header=False,
            timeout_keep_alive=max(1, round(bounds.idle_time)),
            proxy_headers=False,  # any client of this machine could choose the address by which it is counted
        )
        self._server = uvicorn.Server(config)
        self._door = Connections(self._socket, self._server, bounds)
        self._ticking: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        # Step by step instead of `serve()`: that would take the signals of the whole process, accept connections
        # without a bound, and look only ten times a second whether it is to stop.
        config, server = self._server.config, self._server
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.lifespan.startup()
        if server.lifespan.should_exit:
            self._socket.close()
            raise BadOption("server", "the storage could not be opened; the log says why")
        server.servers, server.started = [], True
        self._door.open()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def _tick(self) -> None:
        """What uvicorn does ten times a second: the Date header."""
        count = 0
        while True:
            await self._server.on_tick(count)
            count += 1
            await asyncio.sleep(0.1)

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._on_stop()
        await self._door.close()
        await self._server.shutdown()
