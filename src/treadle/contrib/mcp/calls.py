"""Calls of the HTTP API within this process: the same operations, rights, redaction and audit log, and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from treadle.admin.audit import whoami
from treadle.core.plain_json import read_json
from treadle.server import Settings, Token, make_site

if TYPE_CHECKING:
    from starlette.requests import Request

    from treadle.app import App

ANSWER: Final = 60.0  # s for one answer
OPENAPI: Final = "/v1/openapi.json"


class Rights(Struct, frozen=True, kw_only=True):
    """The rights of the assistant.

    acts      whether it may change anything
    queues    the only queues whose jobs it may see; (): all
    payloads  whether it may read arguments, results, errors and logs; False: only their shapes
    redact    more keys whose values are hidden; reveal: keys that are shown although they look like secrets
    """

    acts: bool = False
    queues: tuple[str, ...] = ()
    payloads: bool = True
    redact: tuple[str, ...] = ()
    reveal: tuple[str, ...] = ()


class CallRefused(Exception):
    """The API refused a call. The text is its sentence."""


class Calls:
    """The API of one app. The app must be open."""

    def __init__(self, app: App, rights: Rights) -> None:
        self._rights, self._by = rights, whoami()
        settings = Settings(auth=self._token_of, redact=rights.redact, reveal=rights.reveal, timeout=ANSWER)
        self._site = make_site(app, settings)

    async def _token_of(self, request: Request) -> Token:
        scope: str = request.scope["treadle.needs"]
        rights = self._rights
        scopes = ("read", scope) if scope != "read" else ("read",)
        return Token(
            name=self._by, digest="", scopes=scopes, queues=rights.queues, payloads=rights.payloads, groups=("*",)
        )

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        parts: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        scope: str = "read",
        read: Callable[[bytes], Any] = read_json,
    ) -> Any:
        """The answer, decoded by `read`. Raises CallRefused with the sentence of the API."""
        where = path.format(**{name: quote(text, safe="") for name, text in (parts or {}).items()})
        plain = path.format(**(parts or {}))
        sent = b"" if body is None else msgspec.json.encode(body)
        status, answer = await self._send(
            {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": method,
                "scheme": "http",
                "path": plain,
                "raw_path": where.encode(),
                "root_path": "",
                "query_string": urlencode({name: _text(value) for name, value in (query or {}).items()}).encode(),
                "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
                "client": ("127.0.0.1", 0),
                "server": ("localhost", 80),
                "treadle.needs": scope,
                "treadle.source": "mcp",
            },
            sent,
        )
        if status >= 400:
            refused = read_json(answer) if answer else {}
            raise CallRefused(refused.get("message", f"the call failed with status {status}"))
        return read(answer) if answer else {}

    async def _send(self, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        status, parts, is_read = 500, list[bytes](), False

        async def receive() -> dict[str, Any]:
            nonlocal is_read
            if is_read:
                return {"type": "http.disconnect"}
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._site(scope, receive, send)
        return status, b"".join(parts)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
