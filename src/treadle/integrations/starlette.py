"""Treadle in a Starlette or FastAPI application: `lifespan` opens apps and runs workers, `mount` adds the job pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from treadle.app import App
from treadle.core.errors import BadOption
from treadle.core.extras import needing
from treadle.integrations.web_lifespan import apps_of, running, workers_of

with needing(__name__, "starlette", "starlette>=0.45", "server"):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from treadle.server import Auth, Token, asgi

State = Mapping[str, Any] | None
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""As Starlette and FastAPI take it: a function from the application to a context manager, which may yield a state."""


def lifespan(*apps: App, own: Lifespan | None = None, worker: Mapping[str, Any] | None = None) -> Lifespan:
    """The argument `lifespan=` of FastAPI and Starlette: the apps are open from start-up to shutdown.

    own     your own lifespan, a function with `@asynccontextmanager`. It is entered when the apps are open, and left
            before they are closed; the state that it yields is that of the application
    worker  options of `treadle.Worker`, such as `{"concurrency": 5}`: run a worker for each app in this process. It
            starts after your own lifespan, and stops before it, within its `grace` seconds. Not inside `app.testing()`
    Raises BadOption. Start-up fails with the error of an app that cannot be opened, or of a worker.
    """
    opened, workers = apps_of(apps, "lifespan"), workers_of(apps, worker)
    if own is not None and not callable(own):
        raise BadOption("own", f"expected a function with @asynccontextmanager, found {own!r}")

    def around(host: Any) -> AbstractAsyncContextManager[Any]:
        return running(opened, workers, _entered(own, host))

    return around


def mount(
    host: Starlette,
    path: str,
    app: App,
    *,
    tokens: Sequence[Token] | Path | str = (),
    auth: Auth | None = None,
    alone: bool = False,
    login: str | None = None,
    worker: Mapping[str, Any] | None = None,
) -> None:
    """Serve the HTTP API and the dashboard of an app below a path of this application, and open the app with it.

    tokens  the tokens that programs send and that people sign in with, or the file of `treadle token`
    auth    instead of tokens: from a request to a `treadle.server.dashboard.Who`, or None to refuse it
    alone   instead of both: every program of this machine may do everything; as in `treadle.server.dashboard.asgi`
    login   with auth: the URL of your login page, to which a browser without a user is redirected
    worker  as in `lifespan`
    The lifespan that the application has so far is kept inside that of the app. Raises BadOption.
    """
    if not isinstance(host, Starlette):
        raise BadOption("mount", f"expected mount(web, path, app): web is a FastAPI or Starlette, found {host!r}")
    if not path.startswith("/") or path == "/":
        raise BadOption("path", f"expected a path such as '/jobs', found {path!r}")
    opened = apps_of((app,), "mount")
    if any(isinstance(route, Mount) and route.path == path.rstrip("/") for route in host.routes):
        raise BadOption("path", f"this application has something mounted at {path!r} already: choose another path")
    workers = workers_of(opened, worker)
    site = asgi(app, auth=auth, tokens=tokens, alone=alone, login=login)
    before = host.router.lifespan_context

    def around(web: Any) -> AbstractAsyncContextManager[Any]:
        return running(opened, workers, _entered(before, web))

    host.mount(path.rstrip("/"), site)
    host.router.lifespan_context = around


@asynccontextmanager
async def _entered(own: Lifespan | None, host: Any) -> AsyncIterator[State]:
    if own is None:
        yield None
        return
    context = own(host)
    if not hasattr(context, "__aenter__"):
        raise BadOption("own", f"expected a function with @asynccontextmanager; it returned {type(context).__name__}")
    async with context as state:
        yield state
