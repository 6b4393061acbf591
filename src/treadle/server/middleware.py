"""The guard around every request: checks its origin, its token and the caller's limits, and writes the access log.

It refuses a request before its body is read, and opens the app before a request reaches a route.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.admin.approval_links import PATH as LINKS  # of requests for approval, which are signed
from treadle.core.errors import QueueFull, StorageError, TreadleError
from treadle.core.limit_model import LimitUse
from treadle.core.queue_rules import QueueRules
from treadle.server.auth.callers import Callers
from treadle.server.auth.tokens import ANYBODY, Token
from treadle.server.errors import Refused, refusal, response_of
from treadle.server.kept_answer import KeptAnswers
from treadle.server.origins import Heads, OriginCheck, heads_of, network_of
from treadle.server.probes import PROBES
from treadle.server.request_body import Bodies
from treadle.server.settings import Settings
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore


# --- full queues
#
# Answers a call that a full queue refused: 429, with Retry-After if it is known when the queue can have room.
#
# A queue gets room when its jobs start. The earliest moment with room is known in two cases only: a job has paused
# the queue until a certain time, or the rate of the queue is used up. In all others the response names no time.


LOOK: Final = 1.0  # s for which one look at the limits serves all refused calls


class FullQueues:
    """The refusals of one server."""

    def __init__(self, core: AppCore) -> None:
        self._core = core
        self._limits = KeptAnswers[Sequence[LimitUse]](LOOK)

    async def refused(self, error: QueueFull) -> Refused:
        """The response to this error."""
        try:
            limits = await self._limits.get("", self._core.storage.limits)
        except StorageError:
            limits = ()
        error.retry_after = wait_for_room(error, limits, self._core.now())
        status, problem = messages.problem_of(error)
        headers = None if error.retry_after is None else {"Retry-After": str(math.ceil(error.retry_after))}
        return Refused(status, problem.error, problem.message, headers, **problem.details)


def wait_for_room(error: QueueFull, limits: Sequence[LimitUse], now: float) -> float | None:
    """Seconds until the queue can have room, if no job is cancelled; None: unknown, or the call exceeds the bound."""
    if error.asked > error.max_waiting:
        return None
    use = QueueRules(limits).of(error.queue)
    if use is None:
        return None
    moments = []
    if use.pauses:
        ends = [pause.until for pause in use.pauses]
        if None in ends:
            return None
        moments = [end for end in ends if end is not None]
    elif use.next_start is not None and use.rule.rate:
        leave = error.waiting + error.asked - error.max_waiting
        rounds = (leave - 1) // use.rule.rate if use.rule.how == "window" else (leave - 1) / use.rule.rate
        moments = [use.next_start + rounds * use.rule.per]
    wait = max(moments, default=now) - now
    return wait if wait > 0 else None


# --- the guard


log = logging.getLogger("treadle.server")
access = logging.getLogger("treadle.access")

OPEN: Final = (*PROBES, "/ping", "/docs")  # paths that need no token, for load balancers and readers
SESSION: Final = "/v1/session"  # where a browser exchanges a token for a cookie, so it cannot need one
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_CALLERS: Final = 10_000  # callers whose rate is kept; bounds the memory that many addresses can take
ODD: Final = re.compile(r"[^!-~]")  # characters of a path that could forge a log line or control a terminal
# Browsers must not guess the type of a response, or embed it in pages of other sites.
ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
POLICY: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class Rate:
    """A token bucket per caller: `rate` requests a second, and a burst of `burst`, by default of as many."""

    def __init__(self, rate: float, now: Callable[[], float], burst: float | None = None) -> None:
        self._rate, self._now = rate, now
        self._most = max(1.0, rate if burst is None else burst)
        self._left: dict[str, tuple[float, float]] = {}

    def delay(self, who: str) -> float:
        """Count this request and return 0 if it may proceed; otherwise return the seconds until the next one may."""
        now = self._now()
        tokens, since = self._left.get(who, (self._most, now))
        tokens = min(self._most, tokens + (now - since) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._left.pop(who, None)
        self._left[who] = (tokens if wait else tokens - 1, now)
        if len(self._left) > MOST_CALLERS:
            del self._left[next(iter(self._left))]  # the caller whose last request is oldest
        return wait


class RequestGuard:
    """The ASGI layer around all routes of a server."""

    def __init__(self, app: ASGIApp, core: AppCore, settings: Settings, open_paths: Sequence[str] = ()) -> None:
        self._app, self._core, self._settings = app, core, settings
        self._full = FullQueues(core)
        self._open_paths = frozenset(open_paths)
        self._open_folders = tuple(path for path in open_paths if path.endswith("/"))
        self._limit = settings.timeout + settings.max_wait
        self._border = OriginCheck(settings.hosts, settings.origins)
        is_open = not settings.has_tokens and settings.link is None
        self._callers = Callers(
            None if is_open else settings.accepted, settings.auth, self._border, settings.session_secret()
        )
        self._bodies = Bodies(settings.max_body)
        self._under_way: dict[str, int] = {}  # requests in progress by caller
        self._rate: Rate | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # lifespan events; no path accepts a websocket
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
                if POLICY[0] not in dict(headers):
                    headers.append(POLICY)
                message["headers"] = headers
            await send(message)

        try:
            try:
                heads = heads_of(scope)
                sent_id = heads.get(b"x-request-id")
                if sent_id and REQUEST_ID.fullmatch(sent_id):
                    id = sent_id
                scope["treadle.request_id"], scope["treadle.bodies"] = id, self._bodies
                path = scope["path"].removeprefix(scope.get("root_path", ""))  # within the server, which may be mounted
                counted = await self._admit(scope, heads, path, loop)
            except Refused as error:
                await refusal(error)(scope, receive, answer)
                return
            try:
                await self._call(scope, receive, answer, path, lambda: status != 0)
            finally:
                if "treadle.held" in scope:
                    self._bodies.leave(scope)
                if counted is not None:
                    self._under_way[counted] -= 1
                    if not self._under_way[counted]:
                        del self._under_way[counted]
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

    async def _call(self, scope: Scope, receive: Receive, send: Send, path: str, begun: Callable[[], bool]) -> None:
        """Run the call. An exception becomes a response, unless one has begun."""
        response: Response
        try:
            async with asyncio.timeout(self._limit) as limit:

                async def begin(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        limit.reschedule(None)  # streams and files take as long as the client reads
                    await send(message)

                try:
                    if path not in PROBES:  # a process is alive without its storage
                        await self._core.opened()
                    await self._app(scope, receive, begin)
                except QueueFull as error:
                    raise await self._full.refused(error) from None
            return
        except Refused as error:
            response = refusal(error)
        except TimeoutError:
            response = refusal(
                Refused(503, "timeout", "no response in time; it is unknown whether the call was carried out")
            )
        except TreadleError as error:
            response = response_of(error)
            if response.status_code >= 500:
                log.warning("%s %s: %s", scope["method"], path_of(scope), error)
        except Exception:
            log.exception("%s %s failed", scope["method"], path_of(scope))
            message = f"an error of the server; its log has the traceback of request {scope['treadle.request_id']}"
            response = refusal(Refused(500, "fault", message))
        if not begun():
            await response(scope, receive, send)

    async def _admit(self, scope: Scope, heads: Heads, path: str, loop: asyncio.AbstractEventLoop) -> str | None:
        """Check the request -> the name under which its caller is counted, or None. Raises Refused."""
        self._border.check(scope, heads)
        if path in OPEN or scope["method"] == "OPTIONS":
            return None
        if scope["method"] in ("GET", "HEAD") and (path in self._open_paths or path.startswith(self._open_folders)):
            return None
        client = scope.get("client")
        caller = network_of(client[0]) if client else ""
        if path != SESSION and not path.startswith(LINKS):
            scope["treadle.token"], scope["treadle.auth"] = token, how = known = await self._callers.of(scope, heads)
            scope["treadle.still"] = lambda: self._callers.still(known)
            scope["treadle.again"] = lambda: self._callers.of(scope, heads)
            caller = caller if how == "none" else token.name
        scope["treadle.caller"] = caller
        if self._settings.rate is not None:
            if self._rate is None:
                self._rate = Rate(self._settings.rate, loop.time)
            wait = self._rate.delay(caller)
            if wait:
                message = f"expected at most {self._settings.rate:g} requests per second"
                raise Refused(429, "too_many", message, {"Retry-After": str(int(wait) + 1)})
        count, most = self._under_way.get(caller, 0), self._settings.requests
        if count >= most:
            message = f"this caller has {count:,} requests in progress, the limit is {most:,} (--requests)"
            raise Refused(429, "too_many", message, {"Retry-After": "1"}, limit=most)
        self._under_way[caller] = count + 1
        return caller


def path_of(scope: Scope) -> str:
    """The path as it was sent, with all characters escaped that could break a log line."""
    raw: bytes | None = scope.get("raw_path")
    text = raw.decode("latin-1") if raw else scope["path"]
    return ODD.sub(lambda sign: ascii(sign[0])[1:-1] if sign[0] != " " else "%20", text)


def caller(request: Request, scope: str = "", bare: bool = True) -> Token:
    """The token of a request. Raises Refused (403) if it lacks the scope; "a|b" means one of the two.

    bare  whether the answer has payloads as they are stored: then also for a token without a right to payloads
    """
    token: Token = request.scope.get("treadle.token", ANYBODY)
    if bare and not token.payloads:
        message = f"the token {token.name!r} may not read payloads, and the answers of this call may have some"
        raise Refused(403, "forbidden", message)
    if scope and not token.may(*scope.split("|")):
        message = f"the token {token.name!r} has no scope {' or '.join(map(repr, scope.split('|')))}"
        raise Refused(403, "forbidden", message, scope=scope)
    return token


async def unchanged(request: Request) -> None:
    """Check before a late answer that the caller still has the rights with which the request was admitted.

    Raises Refused: 401 if its token was removed or has ended, 503 if its rights are others now.
    """
    again = request.scope.get("treadle.again")
    if again is not None and (await again()).token != request.scope["treadle.token"]:
        message = "the rights of the token have changed during this call: repeat it"
        raise Refused(503, "rights_changed", message, {"Retry-After": "0"})


def allowed(token: Token, queues: Any) -> None:
    """Raise Refused (403) if the token has no right to one of the queues."""
    wrong = token.serves(queues)
    if wrong is not None:
        raise Refused(403, "forbidden", f"the token {token.name!r} has no right to queue {wrong!r}", queue=wrong)


def for_everybody(token: Token, what: str) -> None:
    """Raise Refused (403) for a token that is bound to queues: limits and schedules belong to no queue."""
    if token.queues:
        raise Refused(403, "forbidden", f"the token {token.name!r} is bound to queues, and {what} belong to no queue")
