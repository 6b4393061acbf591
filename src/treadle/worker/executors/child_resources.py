"""The resources of an app in a process that runs functions of `kind="process"`.

The functions run in the main thread. The lifespan, and whatever else is asynchronous, runs on an event loop in another
thread, which runs until the process ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from treadle.execution.job_run import Site
from treadle.resources import AppResources, NewThreads
from treadle.tasks.core import TaskCore

T = TypeVar("T")


class ChildResources:
    """Opened for the first job that needs them, and kept for the next ones."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sites: dict[AppResources, Site] = {}

    def site(self, task: TaskCore | None) -> Site | None:
        """Where the jobs of this app run; None if it has no lifespan and the task no dependencies. Raises
        LifespanFailed; then the next call tries again."""
        if task is None:
            return None
        resources = task.factory.resources
        if resources.lifespan is None and task.injector is None:
            return None
        site = self._sites.get(resources)
        if site is None:
            loop = self._loop or self._start()
            site = self._sites[resources] = Site(None, loop, self._call(loop, resources.enter()), NewThreads)
        return site

    def close(self) -> None:
        """Close what is open, in reverse order. Errors are logged."""
        if self._loop is None:
            return
        for resources, site in reversed(self._sites.items()):
            self._call(self._loop, resources.leave(site.life))
        self._sites.clear()

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="treadle-resources", daemon=True).start()
        return loop

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()
