"""Web applications of others, with the dashboard mounted at /ops/jobs: FastAPI, Django and Flask on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.requests import Request

from tests.waiting import until
from treadle import App
from treadle.server.dashboard import Who, asgi

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
def flask_host(app: App, **options: Any) -> Iterator[str]:
    """Flask with a2wsgi, on Werkzeug's server in threads -> the URL of the mount."""
    from a2wsgi import ASGIMiddleware
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware
    from werkzeug.serving import make_server

    host = Flask("shop")

    @host.get("/")
    def home() -> str:
        return "the shop"

    site = asgi(app, **options)
    with loop_in_a_thread() as loop:
        wrapped = ASGIMiddleware(site, loop=loop)
        host.wsgi_app = DispatcherMiddleware(host.wsgi_app, {PREFIX: wrapped})  # type: ignore[method-assign]
        server = make_server("127.0.0.1", 0, host, threaded=True)
        server.daemon_threads = False  # type: ignore[attr-defined]  # so that `server_close` waits for the requests
        thread = threading.Thread(target=server.serve_forever, name="flask")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.port}{PREFIX}"
        finally:
            server.shutdown()
            thread.join()
            loop.call_soon_threadsafe(site._on_stop)  # type: ignore[attr-defined]  # ends open streams
            server.server_close()


@contextlib.contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in its own thread, and ends as that of `asyncio.run` does: an app that was opened there
    closes. The loop that a2wsgi makes never ends."""
    runner = asyncio.Runner()
    loop = runner.get_loop()

    def run() -> None:
        with runner:
            loop.run_forever()

    thread = threading.Thread(target=run, name="loop")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
