"""Finds the rights of a request: by the host application, by its token, or by its session's cookie."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace
from starlette.requests import Request
from starlette.types import Scope

from treadle.core.clock import moment, wall
from treadle.server.auth import session
from treadle.server.auth.tokens import ANYBODY, Token, holder
from treadle.server.errors import Refused
from treadle.server.origins import Heads, OriginCheck

Tokens = Callable[[], Sequence[Token]]
Auth = Callable[[Request], Awaitable[Token | None]]
"""Returns the rights of a request as a Token, whose digest is ignored; None: the request has none."""

How = Literal["none", "token", "session", "host"]
SAFE: Final = ("GET", "HEAD", "OPTIONS")


class Caller(NamedTuple):
    """The rights of a request, and how the caller proved them; "none": the server has no tokens."""

    token: Token
    how: How


class Callers:
    """The callers of one server: those of the host application if there is `auth`, otherwise the holders of tokens.

    tokens  returns the tokens that are valid now; None: the server has none, and everybody may do everything
    secret  signs the sessions
    """

    def __init__(self, tokens: Tokens | None, auth: Auth | None, origins: OriginCheck, secret: bytes) -> None:
        self._tokens, self._auth, self._origins, self._secret = tokens, auth, origins, secret

    async def of(self, scope: Scope, heads: Heads) -> Caller:
        """The caller of a request. Raises Refused (401) for one without rights, with a wrong or with an expired
        token."""
        if self._auth is not None:
            token = await self._auth(Request(scope))
            if token is None:
                raise _unauthorized("sign in to the application that this dashboard is part of")
            by_cookie = b"cookie" in heads and b"authorization" not in heads
            if by_cookie and not self._sent_by_own_page(scope, heads):
                message = "a cookie is valid for pages of this site only: send Origin, or Authorization"
                raise Refused(403, "cross_site", message)
            return Caller(token, "host")
        if self._tokens is None:
            return Caller(ANYBODY, "none")
        if b"authorization" in heads:
            return Caller(self._by_token(heads[b"authorization"], self._tokens()), "token")
        token = session.holder_of(heads.get(b"cookie", ""), self._tokens(), wall(), self._secret)
        if token is None:
            raise _unauthorized("send a token: Authorization: Bearer ...")
        if token.ended(wall()):
            raise _unauthorized("the session has ended: sign in again", "expired")
        if not self._sent_by_own_page(scope, heads):
            raise Refused(403, "cross_site", "a session is valid for pages of this server only: send a token")
        return Caller(token, "session")

    def still(self, caller: Caller) -> bool:
        """Whether a request would be admitted again. Answers that last check it, because the token may have expired,
        been removed or got other rights meanwhile."""
        token = caller.token
        if caller.how in ("none", "host") or self._tokens is None:
            return not token.ended(wall())
        same = (replace(one, expires=token.expires) == token for one in self._tokens() if not one.ended(wall()))
        return any(same) and not token.ended(wall())

    def _by_token(self, header: str, tokens: Sequence[Token]) -> Token:
        kind, _, secret = header.partition(" ")
        token = holder(secret.strip(), tokens) if kind.lower() == "bearer" else None
        if token is None:
            raise _unauthorized("unknown token")
        if token.ended(wall()):
            ended = f"{moment(token.expires or 0.0):%Y-%m-%d %H:%M} UTC"
            message = f"the token {token.name!r} expired on {ended}: request a new one"
            raise Refused(401, "expired", message, {"WWW-Authenticate": 'Bearer error="invalid_token"'})
        return token

    def _sent_by_own_page(self, scope: Scope, heads: Heads) -> bool:
        """Whether a cookie may authorise the request. Browsers send cookies by themselves, also for pages of --origin;
        for an unsafe method they name the page, so a request that names none is refused."""
        if b"origin" not in heads and b"sec-fetch-site" not in heads:
            return scope["method"] in SAFE
        return self._origins.is_own(scope, heads)


def _unauthorized(words: str, error: str = "unauthorized") -> Refused:
    return Refused(401, error, words, {"WWW-Authenticate": "Bearer"})
