"""A small server of the S3 protocol for tests, in this process: it keeps objects, and responds with a chosen fault."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate

Fault = bytes | None  # the raw response; None: the connection is reset

WHO = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def xml(status: str, code: str, more: str = "", headers: str = "") -> bytes:
    """An error as S3 sends it."""
    return page(
        status,
        f"<?xml version='1.0'?><Error><Code>{code}</Code>{more}</Error>",
        f"Content-Type: application/xml\r\n{headers}",
    )


def page(status: str, body: str, headers: str = "Content-Type: text/html\r\n") -> bytes:
    """A whole response."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


FAULTS: dict[str, Fault] = {
    "a bucket that was deleted": xml("404 Not Found", "NoSuchBucket"),
    "a gateway without a route": page("404 Not Found", "<html>nothing here</html>"),
    "a gateway that asks for a login": page("200 OK", "<html>log in</html>"),
    "no right": xml("403 Forbidden", "AccessDenied"),
    "expired credentials": xml("400 Bad Request", "ExpiredToken"),
    "another region": xml("301 Moved Permanently", "PermanentRedirect", "", "x-amz-bucket-region: eu-9\r\n"),
    "a signature for another region": xml("400 Bad Request", "AuthorizationHeaderMalformed", "<Region>eu-9</Region>"),
    "a stalled request": xml("400 Bad Request", "RequestTimeout"),
    "an internal error": xml("500 Internal Server Error", "InternalError"),
    "too many requests": xml("503 Slow Down", "SlowDown"),
    "a body that ends early": b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 9000\r\n\r\nxxxxx',
    "a length that is no number": b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: many\r\n\r\nxxxxx',
    "no HTTP": b"\0\1\2\r\n\r\n",
    "a connection that is reset": None,
}
RETRIED = (
    "a stalled request",
    "an internal error",
    "too many requests",
    "a body that ends early",
    "a connection that is reset",
)


class FaultyBucket:
    """The bucket `texts`. `fault` is the response to every request, or to the next `times`; `silent`: there is none."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fault: Fault = b""
        self.times = 1_000_000
        self.silent = False
        self.requests = list[str]()  # method and path
        self.url = ""

    def fail(self, fault: Fault, times: int = 1_000_000) -> None:
        """Respond like this; b"" ends it."""
        self.fault, self.times = fault, times

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultyBucket]:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks.add(asyncio.current_task())
            try:
                while await self._one(reader, writer):
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.transport.abort()

        talks = set[asyncio.Task[None] | None]()
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self.url = f"s3://texts/some?endpoint=http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for each in talks:
                assert each is not None
                each.cancel()
            await asyncio.gather(*filter(None, talks), return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request -> whether the connection stays open."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(f"{method} {target}")
        if self.silent:
            await asyncio.Event().wait()
        if self.fault != b"" and self.times > 0:
            self.times -= 1
            if self.fault is None:
                return False
            head, _, body = self.fault.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n" + (b"" if method == "HEAD" else body))
            await writer.drain()
            return f"Content-Length: {len(body)}".encode() in head
        writer.write(self._answer(method, target.partition("?")[0], content))
        return True

    def _answer(self, method: str, path: str, content: bytes) -> bytes:
        now = formatdate(usegmt=True)
        if method == "PUT":
            self.objects[path] = content
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        if method == "DELETE":
            self.objects.pop(path, None)
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        found = self.objects.get(path)
        if found is None:
            missing = xml("404 Not Found", "NoSuchKey")
            return missing.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else missing
        etag = hashlib.md5(found, usedforsecurity=False).hexdigest()
        dates = f"Date: {now}\r\nLast-Modified: {now}\r\n"
        head = f'HTTP/1.1 200 OK\r\n{dates}ETag: "{etag}"\r\nContent-Length: {len(found)}\r\n\r\n'.encode()
        return head if method == "HEAD" else head + found
