"""Calls an ASGI application in this process, as a server does."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Answer(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


async def call(
    app: Any,
    path: str,
    method: str = "GET",
    *,
    client: tuple[str, int] | None = ("127.0.0.1", 50_000),
    root: str = "",
    **headers: str,
) -> Answer:
    """One request. Underscores in the names of headers stand for hyphens."""
    heads = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": root,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in heads.items()],
        "client": client,
        "server": ("127.0.0.1", 80),
    }
    found = Answer(0, {}, b"")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            for name, value in message["headers"]:
                assert name.decode() not in found.headers, f"two headers {name.decode()}"
                found.headers[name.decode()] = value.decode("latin-1")
        else:
            found.body += message.get("body", b"")

    await app(scope, receive, send)
    return found
