"""Treadle servers for tests: one port and one event loop in a thread of its own, with any number of sites."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from treadle import App
from treadle.server import Serving, Settings, make_site
from treadle.server.app import ProtocolRoutes
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock


class Host:
    """The port and the thread behind it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._site = Starlette()
        self._thread = threading.Thread(target=self._loop.run_forever, name="served", daemon=True)
        self._thread.start()
        self._serving: Serving = self.run(self._start())
        atexit.register(self.stop)

    async def _start(self) -> Serving:
        return await Serving(self._site, grace=1).__aenter__()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the served apps are open."""
        return self._loop

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def add(self, app: App, settings: Settings, protocols: Sequence[ProtocolRoutes] = ()) -> str:
        """Serve an app under a path of its own. Return the URL."""
        place = f"/site{next(self._numbers)}"
        self.run(app.open())
        self._site.router.routes.insert(0, Mount(place, make_site(app, settings, protocols)))
        return self._serving.url + place

    def stop(self) -> None:
        self.run(self._serving.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)


host = functools.cache(Host)


def memory_url(
    clock: HandClock | None,
    settings: Settings | None = None,
    protocols: Sequence[ProtocolRoutes] = (),
    elsewhere: bool = False,
) -> str:
    """Start a server on an empty storage in memory. Return its URL. `elsewhere`: entries of its audit log are stored in
    another storage, so that this one has the rows of its callers only."""
    app = App(storage=MemoryStorage(clock) if clock is not None else MemoryStorage(), clock=clock)
    if elsewhere:
        app._core.audit = App("memory://", clock=clock)._core.audit
    return host().add(app, settings or Settings(max_wait=5), protocols)
