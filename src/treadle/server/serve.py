"""Serves a site on a port. The port is bound before anything is announced, and a stop completes open responses."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Self

import uvicorn

from treadle.core.errors import BadOption
from treadle.server.bounds import Bounds
from treadle.server.connections import Connections
from treadle.server.settings import GRACE


def listen(host: str, port: int, tries: int = 1) -> socket.socket:
    """A socket that listens on the first free one of `tries` ports from `port`; 0: any free port. Raises BadOption."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, port + (tries if port else 1)):
        # Name the protocol: asyncio disables Nagle's algorithm only then, which saves 40 ms per response.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            last = error
            continue
        listener.setblocking(False)
        return listener
    hint = "; give another port, or 0 for any free one" if last.errno == errno.EADDRINUSE else ""
    raise BadOption("port", f"cannot listen on {host} port {port}: {last.strerror or last}{hint}")


class Serving:
    """Serves a site in this event loop inside an `async with` block. Raises BadOption.

    tls      the files of the certificate and of its key
    grace    seconds for requests in progress to end
    on_stop  called when no more requests are accepted, to answer long polls
    bounds   the bounds of connections
    """

    def __init__(
        self,
        site: Callable[..., Awaitable[Any]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tries: int = 1,
        tls: tuple[str, str] | None = None,
        grace: float = GRACE,
        on_stop: Callable[[], None] = lambda: None,
        bounds: Bounds | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        bounds.most_connections()
        self._socket = listen(host, port, tries)
        self.host, self.port = self._socket.getsockname()[:2]
        self._on_stop = on_stop
        self.scheme = "https" if tls else "http"
        config = uvicorn.Config(
            site,
            log_config=None,
            access_log=False,
            http="httptools",
            ws="none",
            lifespan="on",
            ssl_certfile=tls and tls[0],
            ssl_keyfile=tls and tls[1],
            timeout_graceful_shutdown=max(1, round(grace)),
            server_header=False,
            timeout_keep_alive=max(1, round(bounds.idle_time)),
            proxy_headers=False,  # a local client could otherwise choose the address that it is counted under
        )
        self._server = uvicorn.Server(config)
        self._door = Connections(self._socket, self._server, bounds)
        self._ticking: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        # Not `serve()`, which would handle the signals of the whole process, accept connections without a bound, and
        # check only ten times a second whether to stop.
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
        """Call uvicorn's tick ten times a second, which updates the Date header."""
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
