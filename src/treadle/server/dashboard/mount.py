"""The dashboard as one ASGI application, to mount into another web application.

The lifespan of a host does not reach mounted applications: the app is opened at the first request, on its loop, and a
watch ends open streams when the server of the host stops.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec.structs import force_setattr, replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.app import App
from treadle.core.argument_names import Spelled
from treadle.core.clock import wall
from treadle.core.command_lines import command
from treadle.core.errors import BadOption
from treadle.core.host_names import is_loopback
from treadle.server.app import make_site
from treadle.server.auth import token_file
from treadle.server.auth.live_tokens import LiveTokens
from treadle.server.auth.tokens import SCOPES, Token
from treadle.server.dashboard.routes import OPEN_PATHS, dashboard_routes, to_page
from treadle.server.errors import Refused, refusal
from treadle.server.middleware import path_of
from treadle.server.origins import ANY
from treadle.server.settings import Settings
from treadle.tasks.options import name_of

log = logging.getLogger("treadle.dashboard")


# --- the caller
#
# The caller of a dashboard that is part of another web application: a user of that application, and their rights.


GIVEN: Final = tuple(scope for scope in SCOPES if scope != "work")  # people do not work as workers
LONGEST: Final = 64  # characters of a name


class Who(Spelled, frozen=True, kw_only=True):
    """A user of the host application.

    name      of the user, for the log and the list of acts: 1-64 printable characters
    scopes    of read (see everything), operate (retry, cancel, pause, change), enqueue (send jobs). Default: read
    queues    the queues whose jobs they may see; none: all queues
    payloads  whether they may see arguments, results and errors; False: only the kinds and sizes of values
    groups    of the user: `by="group:finance"` of a request for approval names "finance"; "*": they decide all
    """

    name: str
    scopes: tuple[str, ...] = ("read",)
    queues: tuple[str, ...] = ()
    payloads: bool = True
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name: Any = self.name  # the host may pass values of any type
        scopes: Any = self.scopes
        queues: Any = self.queues
        groups: Any = self.groups
        payloads: Any = self.payloads
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST or not name.isprintable():
            raise BadOption("name", f"expected 1-{LONGEST} printable characters, found {name!r}")
        for field, value in (("scopes", scopes), ("queues", queues), ("groups", groups)):
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise BadOption(field, f"expected a tuple of names, found {value!r}")
            # An iterator ends at its first reading, and no queues would mean all of them.
            force_setattr(self, field, tuple(value))
        for scope in self.scopes:
            if scope not in GIVEN:
                raise BadOption("scopes", f"expected {', '.join(GIVEN)}, found {scope!r}")
        for queue in self.queues:
            name_of(queue, "queues")
        if not isinstance(payloads, bool):
            raise BadOption("payloads", f"expected True or False, found {payloads!r}")

    def token(self) -> Token:
        """The same as a token of the server. It has no secret, so no request can send it."""
        return Token(
            name=self.name,
            digest="",
            scopes=self.scopes,
            queues=self.queues,
            payloads=self.payloads,
            groups=self.groups,
        )


# --- the mounted site


Auth = Callable[[Request], Who | Awaitable[Who | None] | None]
"""Returns the user who sent a request, or None if the request is refused. Async or not."""

Caller = Callable[[Request], Awaitable[Token | None]]

LOOK: Final = 0.5  # s between two checks whether the host's server is stopping, during a request
STREAM: Final = 600.0  # s of a stream, after which its page opens another one and the server calls `auth=` again
# Prefixes of headers that only proxies add.
FORWARDED: Final = (
    b"forwarded",
    b"x-forwarded",
    b"via",
    b"x-real-ip",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"x-original-",
    b"x-envoy-",
    b"x-amzn-",
    b"x-amz-cf-",
    b"x-azure-",
    b"true-client-ip",
    b"fastly-",
    b"fly-",
    b"cf-",
    b"cdn-loop",
)
ALONE: Final = "with alone=True, only programs of this machine may use this site, and not through a proxy"
RULE: Final = (
    "expected a rule for who may use this site: auth=, a function from a request to treadle.server.dashboard.Who; "
    "tokens=, the file of `treadle token`; or alone=True for a machine of one person without a proxy, where every "
    "local program may do everything"
)


def asgi(
    app: App,
    *,
    auth: Auth | None = None,
    tokens: Sequence[Token] | LiveTokens | Path | str = (),
    alone: bool = False,
    login: str | None = None,
    frame_ancestors: Sequence[str] = (),
) -> ASGIApp:
    """The dashboard and its API as an ASGI application, to mount under any path:
    `host.mount("/ops/jobs", asgi(app, auth=who))`.

    auth             the user of a request, from the host's session or header; None refuses the request
    tokens           instead of `auth`: the tokens that programs send and that people sign in with, as on a server, or
                     the file of `treadle token`
    alone            instead of both: requests of this machine are answered, and may do everything. A proxy on the same
                     machine that adds no header makes each request one of this machine
    login            with `auth`: the URL of the host's login page, such as "/login". A browser that opens a page
                     without a user is redirected there, with the path of the page as `next`. [default: status 401]
    frame_ancestors  origins whose pages may show the dashboard in a frame; "'self'": the host's own pages

    It opens the app at the first request, unless the app is open, and the app closes when its event loop ends. Raises
    BadOption.
    """
    if auth is not None and not callable(auth):
        raise BadOption(
            "auth", f"expected a function from a request to treadle.server.dashboard.Who or None, found {auth!r}"
        )
    if auth is not None and tokens:
        raise BadOption("tokens", "give only one of auth= and tokens=")
    if not alone and auth is None and not tokens:
        raise BadOption("auth", RULE)
    if alone and (auth is not None or tokens):
        raise BadOption("alone", "give only one of auth=, tokens= and alone=")
    page: object = login
    if page is not None and (auth is None or not isinstance(page, str) or not page):
        raise BadOption("login", f"expected the URL of the login page, together with auth=; found {login!r}")
    if isinstance(tokens, str | Path):
        tokens = _of_file(tokens)
    caller = None if auth is None else _caller(auth)
    settings = Settings() if alone else Settings(auth=caller, hosts=(ANY,), **_given(tokens))
    site = make_site(app, settings, [dashboard_routes(frame_ancestors)], open_paths=OPEN_PATHS)
    return Mounted(site, caller, site.state.waiting.stop, alone=alone, login=login)


def _of_file(file: str | Path) -> LiveTokens:
    """The tokens of a file. Raises BadOption, also for a file without any."""
    try:
        tokens = LiveTokens(Path(file))
    except (OSError, ValueError, token_file.BadTokens) as error:
        raise BadOption("tokens", f"{file}: {error}") from None
    if not tokens():
        raise BadOption(
            "tokens", f"{file} contains no tokens; make one: {command('token', 'NAME', options=['--file', str(file)])}"
        )
    return tokens


def _given(tokens: Sequence[Token] | LiveTokens) -> dict[str, Any]:
    return {"token_file": tokens} if isinstance(tokens, LiveTokens) else {"tokens": tuple(tokens)}


def _caller(auth: Auth) -> Callable[[Request], Awaitable[Token | None]]:
    """The user of a request as a token of the server."""

    async def caller(request: Request) -> Token | None:
        try:
            answer = auth(request)
            who = await answer if inspect.isawaitable(answer) else answer
            if who is not None and not isinstance(who, Who):
                raise TypeError(f"auth= must return treadle.server.dashboard.Who or None, found {type(who).__name__}")
        except Exception:
            log.exception("auth= failed for %s %s", request.method, path_of(request.scope))
            message = "auth= raised an error; the log of the server has its traceback"
            raise Refused(500, "fault", message) from None
        return None if who is None else replace(who.token(), expires=wall() + STREAM)

    return caller


class Mounted:
    """The ASGI application that `asgi` returns.

    site     the server's application, which asks `caller` about each request of the API
    on_stop  called when the host's server stops, to end open streams
    alone    only requests of this machine are answered
    login    the host's login page; None: it is not known
    """

    def __init__(
        self, site: ASGIApp, caller: Caller | None, on_stop: Callable[[], None], *, alone: bool, login: str | None
    ) -> None:
        self._site, self._caller, self._on_stop = site, caller, on_stop
        self._alone, self._login = alone, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._site(scope, receive, send)
            return
        try:
            await self._check(scope)
        except Refused as error:
            if error.status == 401 and self._login is not None and _is_navigation(scope):
                await _to_login(self._login, scope)(scope, receive, send)
            else:
                await _readable(error, scope)(scope, receive, send)
            return
        if scope["path"] == scope.get("root_path"):  # Flask's dispatcher sends an empty path, which no route matches
            await (await to_page(Request(scope)))(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def watch() -> None:
            """Servers wait for open responses before they ask the application to stop, and a stream never ends."""
            nonlocal timer
            if _stops():
                self._on_stop()
            else:
                timer = loop.call_later(LOOK, watch)

        timer = loop.call_later(LOOK, watch)
        try:
            await self._site(scope, receive, send)
        finally:
            timer.cancel()

    async def _check(self, scope: Scope) -> None:
        """Raise Refused for a request of another machine with alone=True, and for a page without a user."""
        if self._alone:
            client = scope.get("client")
            forwarded = any(name.lower().startswith(FORWARDED) for name, _ in scope["headers"])
            if client is None or not is_loopback(client[0]) or forwarded:
                log.error("refused a request from %s: %s", client[0] if client else "a socket", ALONE)
                raise Refused(403, "no_auth", f"{ALONE}; pass auth= or tokens= where the site is mounted")
        elif self._caller is not None and not _is_api(scope) and await self._caller(Request(scope)) is None:
            raise Refused(401, "unauthorized", "sign in to the application that this dashboard is part of")


def _stops() -> bool:
    """Whether the server that handles this process's SIGTERM is stopping. uvicorn is; others end streams themselves."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


def _is_navigation(scope: Scope) -> bool:
    """Whether a browser opens a page, as opposed to a request of a script or of another program."""
    heads = dict(scope["headers"])
    mode = heads.get(b"sec-fetch-mode")
    is_page = b"text/html" in heads.get(b"accept", b"") if mode is None else mode == b"navigate"
    return is_page and scope["method"] in ("GET", "HEAD")


def _to_login(login: str, scope: Scope) -> RedirectResponse:
    query = scope["query_string"].decode("latin-1")
    page = quote(path_of(scope) + (f"?{query}" if query else ""), safe="/")
    return RedirectResponse(f"{login}{'&' if '?' in login else '?'}next={page}", 303)


def _is_api(scope: Scope) -> bool:
    return bool(scope["path"].removeprefix(scope.get("root_path", "")).startswith("/v1/"))


def _readable(error: Refused, scope: Scope) -> Response:
    """A refusal as JSON for the API, and as text for a page, which a person reads."""
    return refusal(error) if _is_api(scope) else PlainTextResponse(f"{error}\n", error.status)
