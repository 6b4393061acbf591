"""HTTP requests written by hand, for bytes that a client library would not send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATIENCE = 30.0  # seconds


class Answer(NamedTuple):
    """The response. `body` is decoded if it is JSON."""

    status: int
    headers: dict[str, str]
    body: Any


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection to the server of that URL."""
    parts = urlsplit(url)
    assert parts.hostname
    with socket.create_connection((parts.hostname, parts.port or 80), PATIENCE) as found:
        yield found


def head(method: str, path: str, headers: dict[str, str], http: str = "HTTP/1.1") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} {http}\r\n{lines}\r\n".encode()


def rest(found: socket.socket) -> bytes:
    """Read until the server ends the connection, in whatever way."""
    pieces = []
    try:
        while piece := found.recv(65_536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def one(found: socket.socket) -> Answer:
    """One answer on a connection that stays open."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += _some(found)
    top = raw.partition(b"\r\n\r\n")[0]
    size = len(top) + 4 + int(parsed(top).headers["content-length"])
    while len(raw) < size:
        raw += _some(found)
    assert len(raw) == size
    return parsed(raw)


def _some(found: socket.socket) -> bytes:
    piece = found.recv(65_536)
    assert piece, "the server has ended the connection"
    return piece


def parsed(raw: bytes) -> Answer:
    """The first answer in the bytes."""
    top, _, body = raw.partition(b"\r\n\r\n")
    line, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    content: Any = body.decode("latin-1")
    if headers.get("content-type", "").startswith("application/json") and body:
        content = json.loads(body)
    return Answer(int(line.split()[1]), headers, content)


def ask(url: str, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
    """Send one request on a connection of its own. `_` in a header's name becomes `-`; None leaves out Host."""
    parts = urlsplit(url)
    named = {"host": parts.netloc, "connection": "close", **{name.replace("_", "-"): v for name, v in headers.items()}}
    if body is not None:
        named["content-length"] = str(len(body))
    sent = {name: value for name, value in named.items() if value is not None}
    with connected(url) as found:
        found.sendall(head(method, parts.path + path, sent) + (body or b""))
        return parsed(rest(found))
