"""Assembles the server as an ASGI application: all routes behind one guard.

The application can be mounted into another one. It then opens the app at the first request, because the lifespan of a
host does not reach the applications that are mounted into it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treadle.core.errors import PASSING, Locked, StorageFull, StorageUnavailable
from treadle.server.approval_pages import ApprovalPages
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused, refusal
from treadle.server.longpoll import LongPoll
from treadle.server.middleware import RequestGuard
from treadle.server.openapi import description
from treadle.server.operation import Operation, operations_in
from treadle.server.operation import routes as routes_of
from treadle.server.overview import Looks
from treadle.server.probes import ProbeRoutes
from treadle.server.proxies import Proxied
from treadle.server.routes.approvals import ApprovalRoutes
from treadle.server.routes.bulk import BulkRoutes
from treadle.server.routes.estimates import EstimateRoutes
from treadle.server.routes.jobs import JobRoutes
from treadle.server.routes.mailboxes import MailboxRoutes
from treadle.server.routes.metrics import MetricsRoutes
from treadle.server.routes.operations import OperatorRoutes
from treadle.server.routes.overview import OverviewRoutes
from treadle.server.routes.prometheus import PrometheusRoutes
from treadle.server.routes.schedules import ScheduleRoutes
from treadle.server.routes.session import SessionRoutes
from treadle.server.routes.streams import StreamRoutes
from treadle.server.routes.worker_protocol import WorkerProtocol
from treadle.server.routes.workflows import WorkflowRoutes
from treadle.server.settings import Settings

if TYPE_CHECKING:
    from treadle.app import App
from treadle.app.core import AppCore

Away = StorageUnavailable | StorageFull | Locked
ProtocolRoutes = Callable[["AppCore", Settings, LongPoll], Sequence[BaseRoute]]


def operations_of(core: AppCore, settings: Settings, waiting: LongPoll) -> list[Operation]:
    """The operations of the native API and the worker protocol."""
    looks = Looks(core, waiting)
    core.operations.listen(
        lambda progress, queues: looks.publish("operation", progress.id, progress, _operator(queues))
    )
    return operations_in(
        SessionRoutes(core, settings),
        OverviewRoutes(core, waiting, looks),
        MetricsRoutes(core),
        PrometheusRoutes(core),
        JobRoutes(core, settings, waiting),
        MailboxRoutes(core, settings, waiting),
        StreamRoutes(core, settings, waiting),
        ApprovalRoutes(core, settings),
        BulkRoutes(core),
        WorkflowRoutes(core),
        ScheduleRoutes(core),
        OperatorRoutes(core),
        EstimateRoutes(core),
        WorkerProtocol(core, waiting, settings),
    )


def _operator(queues: tuple[str, ...]) -> Callable[[Token], bool]:
    """Whether a token sees an operation that is restricted to these queues."""
    return lambda token: (
        token.may("operate") and (not token.queues or (bool(queues) and set(queues) <= set(token.queues)))
    )


@asynccontextmanager
async def open_if_there(app: App, waits: bool = True) -> AsyncIterator[Away | None]:
    """Open the app for the block. Yields None, or the error while the storage is unavailable. Errors that waiting
    cannot cure, such as a wrong password, are raised; without `waits`, all errors are.

    A server does not end because its storage is unavailable: its probes report the outage, requests that need the
    storage get 503, and the first request after the outage opens the app.
    """
    away: Away | None = None
    try:
        await app._core.open()
    except PASSING as error:
        if not waits:
            raise
        away = error
    try:
        yield away
    finally:
        if away is None:
            await app._core.leave(even_if_lazily=True)
        else:
            await app._core.close()  # a request may have opened it


def make_site(
    app: App,
    settings: Settings,
    protocols: Sequence[ProtocolRoutes] = (),
    api: bool = True,
    open_paths: Sequence[str] = (),
) -> Starlette:
    """The ASGI application of a server over an app's storage.

    protocols   protocols of other systems to serve, too
    api         whether to serve the native API and the worker protocol
    open_paths  paths that anyone may read without a token; one that ends with "/" includes all paths below it
    """
    core = app._core
    waiting = LongPoll(lambda: core.storage)

    @asynccontextmanager
    async def life(site: Starlette) -> AsyncIterator[None]:
        async with open_if_there(app):
            try:
                yield
            finally:
                await core.operations.close()

    probes = ProbeRoutes(core, settings)
    routes: list[BaseRoute] = [*probes.routes()]
    if api:
        operations = operations_of(core, settings, waiting)
        routes += routes_of(operations, core, settings)
        routes += ApprovalPages(core, settings).routes()
        if settings.docs:
            routes += description(operations, settings.has_tokens)
    for protocol in protocols:  # last, because one of them answers every other path
        routes += protocol(core, settings, waiting)
    layers = [Middleware(RequestGuard, core=core, settings=settings, open_paths=open_paths)]
    if settings.origins:
        headers = ["Authorization", "Content-Type", "Idempotency-Key"]
        layers.insert(
            0, Middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=headers)
        )
    if settings.proxies:
        layers.insert(0, Middleware(Proxied, proxies=settings.proxies))
    site = Starlette(routes=routes, middleware=layers, lifespan=life, exception_handlers={HTTPException: _http})
    site.router.redirect_slashes = False  # a redirect would go to the host that the Host header names
    site.state.waiting = waiting
    site.state.probes = probes
    return site


async def _http(request: Request, error: Exception) -> Response:
    """The response to Starlette's own errors: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    word = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
    headers = dict(error.headers) if error.headers else None
    here = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    where = "; jobs are under /v1/jobs, and /docs describes all calls" if here in ("", "/") else ""
    messages = {
        404: f"unknown path {request.url.path}{where}",
        405: f"{request.url.path} does not support {request.method}",
    }
    message = messages.get(error.status_code, error.detail)
    return refusal(Refused(error.status_code, word, message, headers))
