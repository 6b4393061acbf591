"""A small HTTP listener for probes and scrapers: GET and HEAD only, one request on each connection.

A hostile client cannot hold it: a request has a size and a time, and when all connections are in use, the oldest one
is closed in favour of the new one.
"""

from __future__ import annotations

import asyncio
import http
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qsl

from treadle.core.errors import BadOption
from treadle.core.host_names import is_loopback, is_own_host
from treadle.core.open_files import most_open_files

LOCAL = "127.0.0.1"
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:\s]*):)?(?P<port>\d{1,5})", re.ASCII)


class Address(NamedTuple):
    """A host and a port. host: "" for every address of the machine; port: 0 for any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `8080` (this machine only), `:8080` (every address), `HOST:8080` or `[::1]:8080`. Raises BadOption."""
        match = ADDRESS.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65_535:
            expected = "expected a port such as 8080, or :8080 for every address, 10.0.0.5:8080 or [::1]:8080"
            raise BadOption("health", f"{expected}; found {text!r}")
        host = LOCAL if match["host"] is None else match["host"].strip("[]")
        return cls(host, int(match["port"]))

    @property
    def url(self) -> str:
        """The URL of its root, for people: `http://HOST:PORT`."""
        host = self.host or "0.0.0.0"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


log = logging.getLogger("treadle.health")

HEAD_SIZE: Final = 8_192  # bytes of a request line with its headers
HEAD_TIME: Final = 5.0  # s that a client has to send them
PAGE_TIME: Final = 10.0  # s that a page may take
SEND_TIME: Final = 5.0  # s that a client has to read a response
CONNECTIONS: Final = 512  # open at once; each costs 10 kB at most until its page is made
FEWEST: Final = 16  # connections, however few files the process may open
TURNS: Final = 8  # turns of the loop that accept CONNECTIONS; a request is read within six of them
QUEUE: Final = 1_024  # connections that the system holds until they are accepted; it drops others for a second
TEXT: Final = "text/plain; charset=utf-8"


class PageRequest(NamedTuple):
    """A request, as a page sees it. Header names are in lower case; of a repeated header, the last one counts."""

    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """The response of a page."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[PageRequest], Awaitable[Reply]]


def text_reply(status: int, text: str) -> Reply:
    """A line of plain text."""
    return Reply(status, TEXT, text.encode() + b"\n")


class _Refused(Exception):
    """A request that no page gets."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.reply = text_reply(status, words)


class PageListener:
    """Serves `pages`, by path, inside an `async with` block. Raises BadOption if it cannot listen there.

    A page is an async function from a PageRequest to a Reply. One that raises or takes longer than 10 seconds is
    answered with 500 or 503 and logged. A page runs once for each request, also for requests at the same time: a page
    with a cost keeps its last reply.
    """

    def __init__(self, address: Address, pages: Mapping[str, Page]) -> None:
        self._asked, self._pages = address, dict(pages)
        self._server: asyncio.Server | None = None
        self._most = CONNECTIONS
        self._serving: dict[asyncio.Task[None], asyncio.WriteTransport] = {}  # in the order of their arrival

    @property
    def address(self) -> Address:
        """Where it listens: the port is the real one."""
        if self._server is None or not self._server.sockets:
            return self._asked
        return Address(self._asked.host, self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        host, port = self._asked
        files = most_open_files()
        # Half of the files is for the jobs and the storage: clients of this port must not use up all of them.
        self._most = CONNECTIONS if files is None else max(FEWEST, min(CONNECTIONS, files // 2))
        at_once = self._most // TURNS
        try:
            if host:
                self._server = await asyncio.start_server(self._accept, host, port, limit=HEAD_SIZE, backlog=at_once)
            else:
                listening = _on_every_address(port)
                self._server = await asyncio.start_server(
                    self._accept, sock=listening, limit=HEAD_SIZE, backlog=at_once
                )
            _deepen(self._server)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
            where = f"{host or 'every address'} port {port}"
            reason = getattr(error, "strerror", None) or error
            problem = f"cannot listen for probes on {where} ({reason}); give another [HOST:]PORT"
            raise BadOption("health", problem) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._serving)
        for task in tasks:
            self._close(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    # --- connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._most:
            self._close(next(iter(self._serving)))
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving[task] = writer.transport
        task.add_done_callback(self._ended)

    def _close(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task).abort()
        task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection of the health listener failed: %s", error, exc_info=error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, reply = "GET", None
            try:
                async with asyncio.timeout(HEAD_TIME):
                    method, request = _parsed(await reader.readuntil(b"\r\n\r\n"))
                _check_host(request.headers.get("host"), writer.get_extra_info("sockname"))
            except (asyncio.IncompleteReadError, TimeoutError, OSError):
                return  # the client left, or sends too slowly to get an answer
            except asyncio.LimitOverrunError:
                reply = text_reply(431, f"the request has more than {HEAD_SIZE:,} bytes")
            except _Refused as refused:
                reply = refused.reply
            if reply is None:
                reply = await self._reply(request)
            writer.write(_encoded(reply, method == "HEAD"))
            try:
                async with asyncio.timeout(SEND_TIME):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                return
        finally:
            writer.transport.abort()

    async def _reply(self, request: PageRequest) -> Reply:
        page = self._pages.get(request.path)
        if page is None:
            return text_reply(404, f"no such page; there are {', '.join(sorted(self._pages))}")
        try:
            async with asyncio.timeout(PAGE_TIME):
                return await page(request)
        except TimeoutError:
            log.warning("%s took longer than %g s", request.path, PAGE_TIME)
            return text_reply(503, f"this page took longer than {PAGE_TIME:g} s")
        except Exception:  # the fault of one page
            log.exception("%s failed", request.path)
            return text_reply(500, "this page failed; the log of the process has the reason")


def _deepen(server: asyncio.Server) -> None:
    """Let the system hold more connections than asyncio accepts in one turn: its `backlog` is both numbers."""
    if os.name != "posix":  # a socket of Windows cannot be duplicated by its number
        return
    for listening in server.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.listen(QUEUE)


def _on_every_address(port: int) -> socket.socket:
    """A socket for IPv6 and IPv4, or for IPv4 where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:  # IPv6 is compiled in but disabled, or the port is taken: the next line says which
            pass
    return socket.create_server(("", port))


# --- HTTP/1.1


def _parsed(head: bytes) -> tuple[str, PageRequest]:
    """The method, and what a page sees. Raises _Refused."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        raise _Refused(400, "expected a request of HTTP/1.1, such as GET /livez HTTP/1.1")
    if method not in ("GET", "HEAD"):
        raise _Refused(405, "only GET and HEAD are allowed")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _Refused(400, "a header of this request has no name")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise _Refused(400, "a request must not have a body")
    path, _, query = target.partition("?")
    try:
        parsed = tuple(parse_qsl(query, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise _Refused(400, "the query has more than 100 parts") from None
    return method, PageRequest(path, parsed, headers)


def _check_host(host: str | None, local: object) -> None:
    """Raise _Refused for a web page whose own name resolves to this machine, which is a name with a dot. Scrapers of
    other machines may use any name."""
    if host and isinstance(local, tuple) and is_loopback(local[0]) and not is_own_host(host, None):
        raise _Refused(403, "the Host header names another host: use localhost or an address")


def _encoded(reply: Reply, is_head: bool) -> bytes:
    status = http.HTTPStatus(reply.status)
    allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\n{allow}Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if is_head else reply.body)
