"""A TCP proxy between a program and its server that fails on demand, for tests of network failures.

It can lose the answer to one request of a real driver on a real connection. It does not parse what it carries, so it
works for any server that speaks TCP.

    async with Proxy("127.0.0.1", 6379) as proxy:
        app = App(f"redis://127.0.0.1:{proxy.port}/0")
        cut = proxy.lose_answer()  # of the next request: the server applies it, the client gets no answer
        ...
        assert cut.done
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl as tls
import struct
import weakref
from typing import Literal, Self

from treadle.core.awaiting import async_block

CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends a reset instead of a FIN
PORTS = range(12_000, 32_000)  # below the usual ephemeral ports, see _held_port


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens now."""
    with _held_port() as held:
        return int(held.getsockname()[1])


def _held_port() -> socket.socket:
    """Bind a socket to an unused port of 127.0.0.1. The socket does not listen, so connections are refused.

    The port is not an ephemeral one: an outgoing connection could take such a port while no process listens on it, or
    connect to itself.
    """
    while True:
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", random.SystemRandom().choice(PORTS)))
            return held
        except OSError:
            held.close()


How = Literal["request", "answer", "silence", "instead"]


class Cut:
    """One failure of one request.

    how       "request": it is not delivered, and the connection ends
              "answer": it is delivered; the connection ends after `after` bytes of the answer, or when the client
              disconnects without waiting for one
              "silence": it is delivered, and the client receives nothing more over that connection
              "instead": it is not delivered, and the client receives `data` as the answer
    matching  bytes that the request contains; b"": any request
    call      which of the matching requests from now on; 1 is the next

    `done` is whether it has happened; `happened()` waits for it. A request is the bytes that one read from the client
    returns: the proxy cannot separate two requests that a client sends without waiting for an answer.
    """

    def __init__(self, how: How, matching: bytes, call: int, after: int = 0, data: bytes = b"") -> None:
        self.how, self.matching, self.call, self.after, self.data = how, matching, call, after, data
        self._left = call
        self._done = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Cut {self.how} {self.matching!r}, call {self.call}, after {self.after}, done {self.done}>"

    @property
    def done(self) -> bool:
        return self._done.is_set()

    async def happened(self) -> None:
        await self._done.wait()

    def meets(self, seen: bytes) -> bool:
        """Whether this is the request to fail. Counts the matching ones."""
        if self.done or self._left <= 0 or self.matching not in seen:
            return False
        self._left -= 1
        return self._left == 0

    def finish(self) -> None:
        self._done.set()


class Link:
    """One connection through the proxy. While `silent`, it reads data and forwards none."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._beyond: asyncio.StreamWriter | None = None
        self._cut: Cut | None = None  # applies to the answer in flight
        self._met: list[Cut] = []  # cuts of requests on this connection; finished when it ends
        self._let_through = 0
        self.silent = False

    def reset(self) -> None:
        """End the connection at once, both ways. The client gets "connection reset by peer"."""
        _abort(self._writer)
        if self._beyond is not None:
            _abort(self._beyond)

    async def serve(self) -> None:
        proxy = self._proxy
        try:
            await proxy.flowing()
            reader, self._beyond = await asyncio.open_connection(proxy.host, proxy.to)
        except OSError:
            self.reset()
            return
        ways = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers(reader))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for cut in self._met:
                cut.finish()
            for writer in (self._beyond, self._writer):
                with contextlib.suppress(OSError, RuntimeError):
                    writer.close()

    async def _requests(self) -> None:
        assert self._beyond is not None
        tail = b""
        while data := await self._read(self._reader):
            seen = tail + data
            cut = self._proxy.cut_for(seen)
            if cut is not None:
                tail = b""
                if cut.how == "request":
                    cut.finish()
                    return self.reset()
                if cut.how == "instead":
                    cut.finish()
                    self._writer.write(cut.data)
                    await self._writer.drain()
                    continue
                self._met.append(cut)
                if self._cut is None:
                    self._cut, self._let_through = cut, cut.after
                if cut.how == "silence":
                    self.silent = True
                    cut.finish()
            else:
                tail = seen[-self._proxy.longest :] if self._proxy.longest else b""
            if not self.silent or cut is not None:
                self._beyond.write(data)
                await self._beyond.drain()
        return None

    async def _answers(self, reader: asyncio.StreamReader) -> None:
        while data := await self._read(reader):
            if self.silent:
                continue
            cut = self._cut
            if cut is not None:
                data = data[: self._let_through]
                self._let_through -= len(data)
            if data:
                self._writer.write(data)
                await self._writer.drain()
            if cut is not None and not self._let_through:
                cut.finish()  # before the client notices
                return self.reset()
        return None

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """The next data, after the configured delay; b"" at the end."""
        try:
            data = await reader.read(CHUNK)
        except OSError:
            return b""
        if self._proxy.delay:
            await asyncio.sleep(self._proxy.delay)
        await self._proxy.flowing()
        return data


@async_block("write `async with Proxy(...) as proxy:` in a coroutine")
class Proxy:
    """Listens on a port of 127.0.0.1 and forwards to `host`:`to` until a test changes that.

    host, to  address of the server, which may start later
    port      where clients connect; None: a free one
    ssl       a server context: clients speak TLS to the proxy, and the proxy speaks plain TCP to the server
    delay     seconds by which data is delayed, each way; may be changed at any time

    Raises OSError when the port is taken.
    """

    def __init__(
        self, host: str, to: int, *, port: int | None = None, ssl: tls.SSLContext | None = None, delay: float = 0.0
    ) -> None:
        self.host, self.to, self.delay = host, to, delay
        self.port = self._hold() if port is None else port
        self.links: list[Link] = []  # open connections, oldest first
        self.accepted = 0  # connections accepted so far
        self._ssl = ssl
        self._cuts: list[Cut] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._flow = asyncio.Event()
        self._flow.set()

    def _hold(self) -> int:
        """Reserve a free port for the life of this object, also before `accept` and while connections are refused."""
        held = _held_port()
        port = int(held.getsockname()[1])
        if (
            os.name == "posix"
        ):  # on POSIX, a second socket with SO_REUSEADDR may listen on a port that the first has only bound
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            weakref.finalize(self, held.close)
        else:
            held.close()
        return port

    # --- life

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections and stop listening."""
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- all connections

    async def refuse(self) -> None:
        """Refuse new connections and end the open ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.reset()

    async def accept(self) -> None:
        """Accept new connections (again), on the same port."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._ssl)

    def reset(self) -> None:
        """End the open connections. New ones are accepted."""
        for link in list(self.links):
            link.reset()

    def swallow(self) -> None:
        """Become a black hole: accept connections, keep their data, and forward nothing in either direction."""
        self._flow.clear()

    def flow(self) -> None:
        """End the black hole and forward the data that was kept."""
        self._flow.set()

    async def flowing(self) -> None:
        """Wait for the end of a black hole."""
        await self._flow.wait()

    # --- one request

    def lose_request(self, matching: bytes = b"", call: int = 1) -> Cut:
        """Fail one request before the server receives it, and end its connection."""
        return self._add(Cut("request", matching, call))

    def lose_answer(self, matching: bytes = b"", call: int = 1, *, after: int = 0) -> Cut:
        """Deliver one request, and end its connection after `after` bytes of the answer."""
        return self._add(Cut("answer", matching, call, after))

    def silence(self, matching: bytes = b"", call: int = 1) -> Cut:
        """Deliver one request and never answer it. Its connection stays open and carries nothing."""
        return self._add(Cut("silence", matching, call))

    def answer(self, data: bytes, matching: bytes = b"", call: int = 1) -> Cut:
        """Answer one request with `data`. The server does not receive the request."""
        return self._add(Cut("instead", matching, call, data=data))

    def forget(self) -> None:
        """Drop the failures that have not happened yet."""
        self._cuts.clear()

    def _add(self, cut: Cut) -> Cut:
        self._cuts.append(cut)
        return cut

    @property
    def longest(self) -> int:
        """How many bytes of earlier data may belong to a match."""
        return max((len(cut.matching) - 1 for cut in self._cuts if cut.matching), default=0)

    def cut_for(self, seen: bytes) -> Cut | None:
        """The failure that applies to this request."""
        cuts = [cut for cut in self._cuts if cut.meets(seen)]
        for cut in cuts:
            self._cuts.remove(cut)
        return cuts[0] if cuts else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(self, reader, writer)
        self.links.append(link)
        self.accepted += 1
        try:
            await link.serve()
        except asyncio.CancelledError:
            link.reset()
        finally:
            self.links.remove(link)
            self._tasks.discard(task)


def _abort(writer: asyncio.StreamWriter) -> None:
    transport = writer.transport
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()
