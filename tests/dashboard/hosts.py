"""Web applications of others, with the dashboard mounted at /ops/jobs: FastAPI, Django and Flask on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from starlette.requests import Request

from tests.waiting import until
from treadle import App
from treadle.dashboard import Who, asgi

PREFIX = "/ops/jobs"


def by_header(request: Request) -> Who | None:
    """The user whom a proxy in front names; `staff` may operate, others read."""
    user = request.headers.get("x-user")
    if user is None:
        return None
    return Who(name=user, scopes=("read", "operate", "enqueue") if user == "staff" else ("read",))


@contextlib.asynccontextmanager
async def uvicorn_of(site: Any) -> AsyncIterator[str]:
    """Serve an application with uvicorn as its users start it -> the URL of the mount."""
    server = uvicorn.Server(uvicorn.Config(site, port=0, log_config=None, lifespan="auto"))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or serving.done(), "uvicorn listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}{PREFIX}"
    finally:
        server.should_exit = True
        await serving


def fastapi_host(app: App, **options: Any) -> Any:
    from fastapi import FastAPI

    host = FastAPI()

    @host.get("/")
    async def home() -> str:
        return "the shop"

    host.mount(PREFIX, asgi(app, **options))
    return host


def django_host(app: App, **options: Any) -> Any:
    """Django's own ASGI application, with the dashboard next to it. Django is configured once in a process."""
    import django
    from django.conf import settings
    from starlette.applications import Starlette
    from starlette.routing import Mount

    if not settings.configured:
        urls = types.ModuleType("dashboard_urls")
        sys.modules["dashboard_urls"] = urls
        settings.configure(ROOT_URLCONF="dashboard_urls", SECRET_KEY="x", ALLOWED_HOSTS=["*"], USE_TZ=True)
        django.setup()
        urls.urlpatterns = []  # type: ignore[attr-defined]
    from django.core.asgi import get_asgi_application

    return Starlette(routes=[Mount(PREFIX, asgi(app, **options)), Mount("/", get_asgi_application())])


@contextlib.contextmanager
def flask_host(app: App, **options: Any) -> Any:
    """Flask with a2wsgi, on Werkzeug's server in threads -> the URL of the mount."""
    from a2wsgi import ASGIMiddleware
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware
    from werkzeug.serving import make_server

    host = Flask("shop")

    @host.get("/")
    def home() -> str:
        return "the shop"

    wrapped = ASGIMiddleware(asgi(app, **options))
    host.wsgi_app = DispatcherMiddleware(host.wsgi_app, {PREFIX: wrapped})  # type: ignore[method-assign]
    server = make_server("127.0.0.1", 0, host, threaded=True)
    thread = threading.Thread(target=server.serve_forever, name="flask")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}{PREFIX}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        _end(wrapped)


def _end(wrapped: Any) -> None:
    """Close the app on the loop of a2wsgi, which is never ended by itself."""
    loop: asyncio.AbstractEventLoop = wrapped.loop

    async def close() -> None:
        here = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not here]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(close(), loop).result(10)


Host = Callable[..., Any]
