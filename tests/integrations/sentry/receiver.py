"""A server that takes envelopes as Sentry does, and keeps what is in them."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import brotli
from sentry_sdk.envelope import Envelope

UNPACK = {"gzip": gzip.decompress, "br": brotli.decompress, None: bytes}


class Receiver:
    """`with Receiver() as sentry:`; `sentry.dsn` is the address for a client."""

    def __init__(self) -> None:
        self.items: list[tuple[str, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                envelope = Envelope.deserialize(UNPACK[self.headers.get("Content-Encoding")](body))
                receiver.items += [(item.type, item.payload.json or {}) for item in envelope.items]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The items of one kind, such as "event", "transaction" or "check_in"."""
        return [item for found, item in self.items if found == kind]
