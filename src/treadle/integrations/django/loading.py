"""Prepares the App of a backend for a worker: imports the tasks, declares the schedules, and looks for strangers.

A stranger is a task that stored jobs name and this process has not imported. Once a minute the worker tries to import
it; if the project has no such task, its jobs stay queued.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from treadle.app import App
from treadle.core.errors import StorageError
from treadle.core.events import Event
from treadle.integrations.django import known_tasks, schedules
from treadle.integrations.django.database_app import DatabaseApp, store_of
from treadle.integrations.django.known_tasks import constants_of

log = logging.getLogger("treadle")

EVERY: Final = 60.0  # s between two checks for strangers

_prepared: set[int] = set()


def prepare(alias: str) -> App:
    """The App of that alias, with all tasks and schedules of the project. Raises ImproperlyConfigured, InvalidTask, and
    what the modules with tasks raise."""
    store = store_of(alias)
    if id(store) not in _prepared:
        known_tasks.load(store.modules)
        for task in known_tasks.tasks_of_project(store.modules):
            store.register(task, constants_of(task))
        schedules.declare(store, list(store.backends))
        Strangers(store).watch()
        _prepared.add(id(store))
    return store.app


class Strangers:
    """Looks for tasks that stored jobs name and this process has not imported, while a worker runs."""

    def __init__(self, store: DatabaseApp) -> None:
        self._store = store
        self._unknown: set[str] = set()  # logged already

    def watch(self) -> None:
        app = self._store.app
        stop = asyncio.Event()

        async def started(event: Event) -> None:
            stop.clear()
            while not stop.is_set():
                try:
                    await self.look()
                except StorageError as error:
                    log.debug("could not look for tasks that are not imported: %s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY):
                        await stop.wait()

        def stopping(event: Event) -> None:
            stop.set()

        app.on("worker.started")(started)
        app.on("worker.stopping")(stopping)

    async def look(self) -> None:
        """Look once, and import what can be imported. Raises StorageError."""
        app = self._store.app
        stats = await app.queues.stats()
        names = {count.task for count in stats.counts if count.task and not count.state.final}
        own = {name for name in names if name.startswith("treadle.")}  # Treadle's own tasks, of schedules and limits
        for name in sorted(names - own - set(app.tasks) - self._unknown):
            if await asyncio.to_thread(self._store.learn, name) is None:
                self._unknown.add(name)
                log.warning(
                    "jobs of %s are stored, and this project has no such task: they stay queued until it is back, or "
                    "until they are cancelled (manage.py treadle jobs cancel --task %s)",
                    name,
                    name,
                )
