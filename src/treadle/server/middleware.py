"""What every request passes before and after its call: its origin, its caller, the bounds of the caller, one log line.

A request that is refused here has cost no more than its head: its body is not read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.server.auth.tokens import ANYBODY, Token, holder
from treadle.server.errors import Refused, refusal, response_of
from treadle.server.origins import Heads, OriginCheck, heads_of, network_of
from treadle.server.request_body import Bodies
from treadle.server.settings import Settings

log = logging.getLogger("treadle.server")
access = logging.getLogger("treadle.access")

OPEN: Final = ("/healthz", "/readyz", "/ping", "/docs")  # for load balancers and readers, who hold no token
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_CALLERS: Final = 10_000  # whose rate is remembered at once; bounds the memory a flood of addresses can take
ODD: Final = re.compile(r"[^!-~]")  # of a path in the log: what could forge a line or drive a terminal
# No browser guesses at the type of an answer, shows it inside the page of another site, or lends it to that page.
ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
POLICY: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


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


class RequestGuard:
    """The outermost layer of a server, as ASGI."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._limit = settings.timeout + settings.max_wait
        self._border = OriginCheck(settings.hosts, settings.origins)
        self._bodies = Bodies(settings.max_body)
        self._under_way: dict[str, int] = {}  # requests of each caller
        self._rate: Rate | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the start and the end; no path takes a websocket
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        began, status = loop.time(), 0
        id = secrets.token_hex(8)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", id.encode()), *ALWAYS]
                if not any(name == POLICY[0] for name, _ in headers):
                    headers.append(POLICY)
                message["headers"] = headers
            await send(message)

        try:
            try:
                heads = heads_of(scope)
                given = heads.get(b"x-request-id")
                if given and REQUEST_ID.fullmatch(given):
                    id = given
                scope["treadle.request_id"], scope["treadle.bodies"] = id, self._bodies
                counted = self._admit(scope, heads, loop)
            except Refused as error:
                await refusal(error)(scope, receive, answer)
                return
            try:
                await self._call(scope, receive, answer, lambda: status != 0)
            finally:
                self._bodies.leave(scope)
                self._let_go(counted)
        finally:
            if access.isEnabledFor(logging.INFO):
                token: Token | None = scope.get("treadle.token")
                access.info(
                    "%s %s %d %.1f ms %s %s",
                    scope["method"],
                    path_of(scope),
                    status,
                    (loop.time() - began) * 1000,
                    token.name if token is not None else "-",
                    id,
                )

    async def _call(self, scope: Scope, receive: Receive, send: Send, begun: Callable[[], bool]) -> None:
        """The call itself. Whatever it raises becomes an answer, if none has begun."""
        response: Response
        try:
            async with asyncio.timeout(self._limit) as limit:

                async def begin(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        limit.reschedule(None)  # a stream and a file last as long as their reader reads
                    await send(message)

                await self._app(scope, receive, begin)
            return
        except Refused as error:
            response = refusal(error)
        except TimeoutError:
            response = refusal(Refused(503, "timeout", "no answer in time; it is not known whether it was done"))
        except TreadleError as error:
            response = response_of(error)
            if response.status_code >= 500:
                log.warning("%s %s: %s", scope["method"], path_of(scope), error)
        except Exception:
            log.exception("%s %s failed", scope["method"], path_of(scope))
            words = f"a fault of the server; its log has it under request {scope['treadle.request_id']}"
            response = refusal(Refused(500, "fault", words))
        if not begun():
            await response(scope, receive, send)

    def _admit(self, scope: Scope, heads: Heads, loop: asyncio.AbstractEventLoop) -> str | None:
        """By what name the caller is counted; None: not at all. Raises Refused."""
        self._border.check(scope, heads)
        if scope["path"].removeprefix(scope.get("root_path", "")) in OPEN or scope["method"] == "OPTIONS":
            return None
        token = self._holder(heads)
        if token is None:
            words = "a token is needed: Authorization: Bearer ..."
            if b"authorization" in heads:
                words = "this token is not known"
            raise Refused(401, "unauthorized", words, {"WWW-Authenticate": "Bearer"})
        scope["treadle.token"] = token
        client = scope.get("client")
        caller = token.name if token is not ANYBODY else network_of(client[0]) if client else ""
        scope["treadle.caller"] = caller
        if self._settings.rate is not None:
            if self._rate is None:
                self._rate = Rate(self._settings.rate, loop.time)
            wait = self._rate.delay(caller)
            if wait:
                words = f"more than {self._settings.rate:g} requests a second"
                raise Refused(429, "too_many", words, {"Retry-After": str(int(wait) + 1)})
        count, most = self._under_way.get(caller, 0), self._settings.requests
        if count >= most:
            words = f"{count:,} requests of this caller are under way, the limit is {most:,} (--requests)"
            raise Refused(429, "too_many", words, {"Retry-After": "1"}, limit=most)
        self._under_way[caller] = count + 1
        return caller

    def _let_go(self, caller: str | None) -> None:
        if caller is not None:
            left = self._under_way[caller] - 1
            if left:
                self._under_way[caller] = left
            else:
                del self._under_way[caller]

    def _holder(self, heads: Heads) -> Token | None:
        if not self._settings.tokens:
            return ANYBODY
        kind, _, secret = heads.get(b"authorization", "").partition(" ")
        return holder(secret.strip(), self._settings.tokens) if kind.lower() == "bearer" else None


def path_of(scope: Scope) -> str:
    """The path as it was sent, on one line whatever it holds."""
    raw: bytes | None = scope.get("raw_path")
    text = raw.decode("latin-1") if raw else scope["path"]
    return ODD.sub(lambda found: ascii(found[0])[1:-1] if found[0] != " " else "%20", text)


def caller(request: Request, scope: str = "") -> Token:
    """Who sent this request. Raises Refused (403) without the right to `scope`; "a|b" means one of the two."""
    token: Token = request.scope.get("treadle.token", ANYBODY)
    if scope and not token.may(*scope.split("|")):
        words = f"the token {token.name!r} has no scope {' or '.join(map(repr, scope.split('|')))}"
        raise Refused(403, "forbidden", words, scope=scope)
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
