"""The operations on the caller itself: what it may do, and a browser's session in place of a token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, cast

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from treadle.core.clock import wall
from treadle.core.command_lines import program
from treadle.core.redaction import shown
from treadle.server.auth import session
from treadle.server.auth.callers import How
from treadle.server.auth.tokens import ScopeName, Token, holder
from treadle.server.errors import Refused
from treadle.server.middleware import Rate
from treadle.server.openapi import version
from treadle.server.operation import Call, Operation
from treadle.server.settings import Settings
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore

LONGEST: Final = 1_000  # characters of a token
WRONG_RATE: Final = 0.5  # wrong tokens a second of one address, after WRONG_BURST of them
WRONG_BURST: Final = 10


class Features(Struct, frozen=True):
    """Features of this server. logs: lines of jobs may be stored; metrics: rates and times of the past are stored."""

    logs: bool
    metrics: bool


class Me(Struct, frozen=True, kw_only=True):
    """The caller and the server.

    queues    the queues of its token; empty: all
    payloads  false: answers have only the shapes of arguments, results, errors and logs
    auth      none: the server has no tokens; token; session: a cookie; host: the application around the server
    storage   the URL of the storage without secrets; its kind only for a caller that may not read all queues
    app       the name of the app whose tasks the server has; null: none
    program   the command line of Treadle, as the server's user types it: in a Django project that of manage.py
    now       the server's time
    """

    name: str
    scopes: tuple[ScopeName, ...]
    queues: tuple[str, ...]
    payloads: bool
    auth: How
    version: str
    storage: str
    app: str | None
    program: str
    now: float
    features: Features


class SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The token to exchange for a session."""

    token: Annotated[str, Meta(max_length=LONGEST)]


class SessionRoutes:
    """The operations on the caller of one server."""

    def __init__(self, core: AppCore, settings: Settings) -> None:
        self._core, self._settings, self._secret = core, settings, settings.session_secret()
        self._wrong: Rate | None = None

    @Operation("GET /v1/me", tag="session")
    async def me(self, call: Call[None, messages.Nothing]) -> Me:
        """Show the caller's rights."""
        token = call.token
        return Me(
            name=token.name,
            scopes=cast("tuple[ScopeName, ...]", token.scopes),
            queues=token.queues,
            payloads=token.payloads,
            auth=call.request.scope["treadle.auth"],
            version=version(),
            storage=self.storage_for(token),
            app=self._settings.app,
            program=program(),
            now=wall(),
            features=Features(logs=True, metrics=True),
        )

    def storage_for(self, token: Token) -> str:
        """Where the jobs live, as far as this token may know."""
        url = self._core.url
        if url is None:
            return "a storage of the app"
        return shown(url) if token.may("read", "operate") and not token.queues else shown(url).partition(":")[0]

    @Operation("POST /v1/session", tag="session", most=2 * LONGEST, status=204)
    async def sign_in(self, call: Call[SignIn, messages.Nothing]) -> Response:
        """Exchange a token for a cookie that is valid for 12 hours. Needs no other token.

        Without tokens there is nothing to sign in to, so it sets no cookie.
        """
        if not self._settings.has_tokens:
            return Response(status_code=204)
        if self._wrong is None:
            self._wrong = Rate(WRONG_RATE, asyncio.get_running_loop().time, WRONG_BURST)
        address = call.request.scope["treadle.caller"]
        secret, link = call.body.token.strip(), self._settings.link
        token = holder(secret, self._settings.current()) or (link.take(secret) if link is not None else None)
        if token is None or token.ended(wall()):  # a right token is not delayed: behind a proxy all share an address
            if wait := self._wrong.delay(address):
                message = f"{WRONG_BURST} wrong tokens came from this address: wait before the next try"
                raise Refused(429, "too_many", message, {"Retry-After": str(int(wait) + 1)})
            message = "unknown token" if token is None else f"the token {token.name!r} has expired: request a new one"
            raise Refused(401, "unauthorized" if token is None else "expired", message, {"WWW-Authenticate": "Bearer"})
        call.request.scope["treadle.token"] = token  # the access log names it
        value, seconds = session.issue(token, wall(), self._secret)
        return _answer(call.request, value, seconds)

    @Operation("DELETE /v1/session", tag="session", status=204)
    async def sign_out(self, call: Call[None, messages.Nothing]) -> Response:
        """Remove the cookie. Needs no token."""
        return _answer(call.request, "", 0)


def _answer(request: Request, value: str, seconds: int) -> Response:
    """An empty answer that sets or removes the cookie. Behind a proxy that ends TLS only the page's origin says so."""
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    mount = session.mount_of(request.scope.get("root_path", ""), secure)
    headers = {"Set-Cookie": session.set_cookie(mount, value, seconds), "Cache-Control": "no-store"}
    return Response(status_code=204, headers=headers)
