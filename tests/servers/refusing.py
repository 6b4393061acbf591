"""A small server that speaks PostgreSQL's protocol as far as a refusal: any SQLSTATE, in any language.

Real servers translate their messages only where the system has the locale.
"""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

TLS, GSS = 80877103, 80877104  # the numbers of the requests for an encrypted connection
ASK_PASSWORD = b"R" + (8).to_bytes(4, "big") + (3).to_bytes(4, "big")


class Refusing:
    """Refuses each connection with this error while it is entered. `asks`: after it has asked for a password."""

    def __init__(self, code: str, severity: str, message: str, asks: bool = False) -> None:
        self._fields = {"S": severity, "V": "FATAL", "C": code, "M": message, "F": "auth.c", "L": "1", "R": "auth"}
        self._asks = asks
        self.refused = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def url(self, password: str = "") -> str:
        user = f"me:{password}" if password else "me"
        return f"postgresql://{user}@127.0.0.1:{self.port}/shop"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                found, _ = self._listening.accept()
            except OSError:
                return
            with found, found.makefile("rb") as sent:
                while int.from_bytes((start := _message(sent, 0))[:4], "big") in (TLS, GSS):
                    found.sendall(b"N")
                if start and self._asks:
                    found.sendall(ASK_PASSWORD)
                    if not _message(sent, 1):
                        continue  # the client has no password
                if start:
                    self.refused += 1
                    fields = b"".join(f"{key}{text}\0".encode() for key, text in self._fields.items()) + b"\0"
                    found.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)


def _message(sent: object, kind: int) -> bytes:
    """The body of the next message, whose type has so many bytes; b"": the client has left."""
    head = sent.read(kind + 4)  # type: ignore[attr-defined]
    if len(head) < kind + 4:
        return b""
    found: bytes = sent.read(int.from_bytes(head[kind:], "big") - 4)  # type: ignore[attr-defined]
    return found
