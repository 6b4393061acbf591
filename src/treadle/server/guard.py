"""What every request passes before and after its call: an id, who sent it, how often, how long, and one log line.

Without it each call would have to remember to check its caller, and a fault of ours would show its stack to the world.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.model import Stats
from treadle.server.faults import Refused, refusal, response_of
from treadle.server.settings import Settings
from treadle.server.tokens import ANYBODY, Token, holder

log = logging.getLogger("treadle.server")
access = logging.getLogger("treadle.access")

OPEN: Final = ("/healthz", "/readyz", "/ping", "/docs")  # for load balancers and readers, who hold no token
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_CALLERS: Final = 10_000  # whose rate is remembered at once; bounds the memory a flood of addresses can take


class Rate:
    """At most `rate` requests a second for each caller, and as many at once. A token bucket: an estimate is enough."""

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._rate, self._now = rate, now
        self._most = max(1.0, rate)
        self._left: dict[str, tuple[float, float]] = {}

    def delay(self, who: str) -> float:
        """0 if this request may go on, else the seconds after which the next one may."""
        now = self._now()
        left, at = self._left.pop(who, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._left[who] = (left if wait else left - 1, now)
        if len(self._left) > MOST_CALLERS:
            del self._left[next(iter(self._left))]  # the one not heard of for longest
        return wait


class Guard:
    """The outermost layer of a server, as ASGI."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._limit = settings.timeout + settings.max_wait
        self._rate: Rate | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        began, status = loop.time(), 0
        given = _header(scope, b"x-request-id")
        id = given if given and REQUEST_ID.fullmatch(given) else secrets.token_hex(8)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        scope["treadle.request_id"] = id
        try:
            early = self._check(scope, loop)
            if early is not None:
                await early(scope, receive, answer)
            else:
                await self._call(scope, receive, answer, lambda: status != 0)
        finally:
            if access.isEnabledFor(logging.INFO):
                token: Token | None = scope.get("treadle.token")
                access.info(
                    "%s %s %d %.1f ms %s %s", scope["method"], scope["path"], status, (loop.time() - began) * 1000,
                    token.name if token is not None else "-", id,
                )  # fmt: skip

    async def _call(self, scope: Scope, receive: Receive, send: Send, begun: Callable[[], bool]) -> None:
        """The call itself. Whatever it raises becomes an answer, if none has begun."""
        response: Response
        try:
            if scope["path"].endswith("/events"):
                await self._app(scope, receive, send)  # a stream lasts as long as its reader
            else:
                async with asyncio.timeout(self._limit):
                    await self._app(scope, receive, send)
            return
        except Refused as error:
            response = refusal(error)
        except TimeoutError:
            response = refusal(Refused(503, "timeout", "no answer in time; it is not known whether it was done"))
        except TreadleError as error:
            response = response_of(error)
            if response.status_code >= 500:
                log.warning("%s %s: %s", scope["method"], scope["path"], error)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            words = f"a fault of the server; its log has it under request {scope['treadle.request_id']}"
            response = refusal(Refused(500, "fault", words))
        if not begun():
            await response(scope, receive, send)

    def _check(self, scope: Scope, loop: asyncio.AbstractEventLoop) -> Response | None:
        """Who it is, and whether there is room. Answers the refusal, if it is one."""
        if scope["path"].removeprefix(scope.get("root_path", "")) in OPEN or scope["method"] == "OPTIONS":
            return None
        token = self._holder(scope)
        if token is None:
            named = _header(scope, b"authorization") is not None
            words = "this token is not known" if named else "a token is needed: Authorization: Bearer ..."
            return refusal(Refused(401, "unauthorized", words, {"WWW-Authenticate": "Bearer"}))
        scope["treadle.token"] = token
        if self._settings.rate is not None:
            if self._rate is None:
                self._rate = Rate(self._settings.rate, loop.time)
            client = scope.get("client")
            wait = self._rate.delay(token.name if token is not ANYBODY else str(client[0] if client else ""))
            if wait:
                words = f"more than {self._settings.rate:g} requests a second"
                return refusal(Refused(429, "too_many", words, {"Retry-After": str(int(wait) + 1)}))
        return None

    def _holder(self, scope: Scope) -> Token | None:
        if not self._settings.tokens:
            return ANYBODY
        kind, _, secret = (_header(scope, b"authorization") or "").partition(" ")
        return holder(secret.strip(), self._settings.tokens) if kind.lower() == "bearer" else None


def _header(scope: Scope, name: bytes) -> str | None:
    for found, value in scope["headers"]:
        if found == name:
            return bytes(value).decode("latin-1")
    return None


def caller(request: Request, scope: str = "") -> Token:
    """Who sent this request. Raises Refused (403) without the right to `scope`."""
    token: Token = request.scope.get("treadle.token", ANYBODY)
    if scope and not token.may(scope):
        raise Refused(403, "forbidden", f"the token {token.name!r} has no scope {scope!r}", scope=scope)
    return token


def allowed(token: Token, queues: Any) -> None:
    """Raises Refused (403) if one of the queues is not the token's."""
    wrong = token.serves(queues)
    if wrong is not None:
        raise Refused(403, "forbidden", f"the token {token.name!r} has no right to queue {wrong!r}", queue=wrong)


def for_everybody(token: Token, what: str) -> None:
    """Raises Refused (403) for a token that is bound to queues: limits and schedules are not of one queue."""
    if token.queues:
        raise Refused(403, "forbidden", f"the token {token.name!r} is bound to queues; {what} are everybody's")


def seen(token: Token, stats: Stats) -> Stats:
    """The counts of the token's own queues."""
    if not token.queues:
        return stats
    return replace(stats, counts=tuple(each for each in stats.counts if token.serves([each.queue]) is None))
