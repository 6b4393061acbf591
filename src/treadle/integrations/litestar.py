"""Treadle in a Litestar application: a plugin that opens an app with it and injects the app into its handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from treadle.app import App
from treadle.core.errors import BadOption
from treadle.core.extras import needing
from treadle.integrations.web_lifespan import apps_of, running, workers_of

with needing(__name__, "litestar", "litestar"):
    from litestar import Litestar, asgi
    from litestar.config.app import AppConfig
    from litestar.di import Provide
    from litestar.handlers import ASGIRouteHandler
    from litestar.plugins import InitPlugin
    from litestar.types import Receive, Scope, Send

with needing(__name__, "starlette", "starlette>=0.45", "server"):
    from treadle.server import Auth, Token
    from treadle.server import asgi as site_of


class TreadlePlugin(InitPlugin):
    """`Litestar(plugins=[TreadlePlugin(jobs)])`: the app is open while the application runs.

    name    of the dependency: a handler with the parameter `jobs: NamedDependency[App]` receives the app
    worker  options of `treadle.Worker`: run a worker in this process. It starts after the application's own lifespans,
            and stops before they end. Not inside `app.testing()`
    path    where to serve the HTTP API and the dashboard, such as "/ops/jobs"; None: nowhere
    tokens  with `path`: the tokens that programs send and that people sign in with, or the file of `treadle token`
    auth    with `path`, instead of tokens: from a request to a `treadle.server.dashboard.Who`, or None to refuse it
    alone   with `path`, instead of both: every program of this machine may do everything
    login   with `auth`: the URL of your login page, to which a browser without a user is redirected
    Raises BadOption.
    """

    def __init__(
        self,
        app: App,
        *,
        name: str = "jobs",
        worker: Mapping[str, Any] | None = None,
        path: str | None = None,
        tokens: Sequence[Token] | Path | str = (),
        auth: Auth | None = None,
        alone: bool = False,
        login: str | None = None,
    ) -> None:
        self._apps = apps_of((app,), "TreadlePlugin")
        self._workers = workers_of(self._apps, worker)
        if not name.isidentifier():
            raise BadOption("name", f"expected the name of a parameter, found {name!r}")
        if path is None and (tokens or auth or alone or login):
            raise BadOption("path", "tokens=, auth=, alone= and login= need it: nothing is served without path=")
        self._app, self._name = app, name
        known: dict[str, Any] = {"tokens": tokens, "auth": auth, "alone": alone, "login": login}
        self._pages = None if path is None else mounted(path, site_of(app, **known))

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan, the dependency and the job pages. Litestar calls it."""
        app_config.dependencies.setdefault(self._name, Provide(lambda: self._app, sync_to_thread=False))
        app_config.signature_namespace.setdefault("App", App)
        own = list(app_config.lifespan)
        app_config.lifespan[:] = [lambda host: running(self._apps, self._workers, _all(own, host))]
        if self._pages is not None:
            app_config.route_handlers.append(self._pages)
        return app_config


def mounted(path: str, site: Callable[..., Awaitable[None]]) -> ASGIRouteHandler:
    """A route handler that serves an ASGI application of Treadle below a path, such as `treadle.server.make_site`."""
    prefix = path.rstrip("/")

    @asgi(path, is_mount=True, copy_scope=True)
    async def treadle_site(scope: Scope, receive: Receive, send: Send) -> None:
        # Litestar takes the prefix away from the path, and ends the path with a slash. ASGI has the prefix in the path
        # and in `root_path`, and the path as it was sent.
        root, below, raw = scope.get("root_path", "") + prefix, scope["path"], scope.get("raw_path", b"")
        asgi_scope: Any = {**scope, "root_path": root, "path": root + (below if raw.endswith(b"/") else below[:-1])}
        await site(asgi_scope, receive, send)

    return treadle_site


@asynccontextmanager
async def _all(own: Sequence[Any], host: Litestar) -> AsyncIterator[None]:
    """The application's own lifespans, each a context manager or a function from the application to one."""
    async with AsyncExitStack() as stack:
        for lifespan in own:
            context: AbstractAsyncContextManager[Any] = lifespan(host) if callable(lifespan) else lifespan
            await stack.enter_async_context(context)
        yield
