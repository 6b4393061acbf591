"""A server put together: the rooms of the API behind one guard, as an ASGI application.

Without it each way to start a server would wire its own. It can be mounted into another application as it is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from treadle.errors import StorageError
from treadle.server.errors import Refused, refusal
from treadle.server.longpoll import LongPoll
from treadle.server.middleware import RequestGuard
from treadle.server.openapi import description
from treadle.server.operation import Operation
from treadle.server.operation import routes as made_of
from treadle.server.routes.jobs import JobRoutes
from treadle.server.routes.operations import OperatorRoutes
from treadle.server.routes.schedules import ScheduleRoutes
from treadle.server.routes.worker_protocol import WorkerProtocol
from treadle.server.settings import Settings
from treadle.storage.transfer import NOT_HERE, mark_of
from treadle.storage.transfer import words as words_of

if TYPE_CHECKING:
    from treadle.app import App

log = logging.getLogger("treadle.server")

Face = Callable[["App", Settings, LongPoll], Sequence[BaseRoute]]


def operations_of(app: App, settings: Settings, waiting: LongPoll) -> list[Operation]:
    """All that the native API and the worker protocol can be asked."""
    return [
        *JobRoutes(app, settings, waiting).operations(),
        *ScheduleRoutes(app).operations(),
        *OperatorRoutes(app).operations(),
        *WorkerProtocol(app, waiting, settings).operations(),
    ]


def make_site(app: App, settings: Settings, faces: Sequence[Face] = (), api: bool = True) -> Starlette:
    """The ASGI application of a server over an app's storage.

    faces  protocols of other systems to speak as well
    api    whether the native API and the worker protocol are served
    """
    waiting = LongPoll(lambda: app.storage)

    @asynccontextmanager
    async def life(site: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    async def healthz(request: Request) -> Response:
        """The process answers."""
        return PlainTextResponse("ok")

    async def readyz(request: Request) -> Response:
        """The storage answers, and its jobs are here."""
        try:
            await app.storage.get(["treadle:ready"])
            mark = await mark_of(app.storage)
        except StorageError as error:
            log.warning("the storage does not answer: %s", error)
            # This path takes no token: where there are tokens, names of hosts are for the log.
            words = "the storage does not answer; the server's log says why" if settings.tokens else str(error)
            raise Refused(503, "storage_unavailable", words, {"Retry-After": "1"}) from error
        if mark is not None and mark.role in NOT_HERE:
            words = words_of(mark, "the storage") or ""
            log.warning("%s", words)
            if settings.tokens:
                words = "the jobs are not here; the server's log says where"
            raise Refused(503, "storage_moved" if mark.role == "gone" else "storage_unavailable", words)
        return PlainTextResponse("ok")

    routes: list[BaseRoute] = [Route("/healthz", healthz), Route("/readyz", readyz)]
    if api:
        operations = operations_of(app, settings, waiting)
        routes += made_of(operations, settings.max_body, app._moved.words)
        if settings.docs:
            routes += description(operations, bool(settings.tokens))
    for face in faces:  # last: one of them answers every other path in words of its own
        routes += face(app, settings, waiting)
    layers = [Middleware(RequestGuard, settings=settings)]
    if settings.origins:
        headers = ["Authorization", "Content-Type", "Idempotency-Key"]
        layers.insert(
            0, Middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=headers)
        )
    site = Starlette(routes=routes, middleware=layers, lifespan=life, exception_handlers={HTTPException: _http})
    site.router.redirect_slashes = False  # it would send clients to whatever host a Host header names
    site.state.waiting = waiting
    return site


async def _http(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    word = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
    headers = dict(error.headers) if error.headers else None
    here = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    where = "; jobs are under /v1/jobs, and /docs describes all calls" if here in ("", "/") else ""
    words = {404: f"there is no {request.url.path}{where}", 405: f"{request.method} is not for {request.url.path}"}
    message = words.get(error.status_code, error.detail)
    return refusal(Refused(error.status_code, word, message, headers))
