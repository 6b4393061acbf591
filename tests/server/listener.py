"""A server on loopback that sends given answers and records the requests."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Listener:
    """Answers with one status and headers, and with one body after the other, the last one again and again.

    `heard` has the requests, and `asked` is set by the first.
    """

    def __init__(self, status: int = 200, headers: Mapping[str, str] | None = None, *bodies: bytes) -> None:
        self.status, self.headers, self.bodies = status, dict(headers or {}), list(bodies or (b"{}",))
        self.heard: list[Request] = []
        self.asked = threading.Event()
        listener = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self._chunks() if self.headers.get("Transfer-Encoding") else self.rfile.read(length)
                listener.heard.append(Request(self.command, self.path, dict(self.headers), body))
                listener.asked.set()
                content = listener.bodies.pop(0) if len(listener.bodies) > 1 else listener.bodies[0]
                self.send_response(listener.status)
                for name, value in listener.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _chunks(self) -> bytes:
                found = b""
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def redirecting(to: str, status: int = 307) -> Listener:
    return Listener(status, {"Location": to}, b"")
