"""`Life`, what is open for an app on one event loop: its lifespan.

The generator runs in a task of its own, with the context variables of the code that started the first worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from treadle.concurrency.spawn import started
from treadle.core import ids
from treadle.errors import LifespanFailed
from treadle.resources.hosted import Hosted
from treadle.resources.lifespan import Lifespan
from treadle.resources.state import NONE

log = logging.getLogger("treadle")

SLOW = 10.0  # s between two lines that say that a lifespan has not yielded yet
LEAVING = 10.0  # s that leaving may take

Broke = Callable[[LifespanFailed], None]


class Life:
    """One for each time that the resources of an app are opened on an event loop.

    state        what the lifespan has yielded
    users        how many workers and tests use it
    broken       why the lifespan ended while it was in use
    when_broken  called if the lifespan ends while it is in use
    """

    def __init__(self, lifespan: Lifespan[Any] | None) -> None:
        self.lifespan = lifespan
        self.loop = asyncio.get_running_loop()
        self.state: Any = NONE
        self.users = 0
        self.when_broken: list[Broke] = []
        self.beginning: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[BaseException | None] | None = None
        self.broken: LifespanFailed | None = None
        self._hosted: Hosted | None = None
        self._context = contextvars.copy_context()
        self._context.run(ids.running.set, None)  # a job that starts a worker is not the job of its resources

    @property
    def has_resources(self) -> bool:
        """Whether there is anything to close."""
        return self.lifespan is not None

    async def begin(self) -> None:
        """Enter the lifespan. Raises LifespanFailed."""
        lifespan = self.lifespan
        if lifespan is None:
            return
        hosted = Hosted(repr(lifespan), lifespan.begin(), lifespan.problem, self._context.copy())
        telling = started(_tell_slow(lifespan))
        try:
            self.state = await hosted.enter()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise lifespan.failed(error, "before its yield") from error
        finally:
            telling.cancel()
        self._hosted = hosted
        assert hosted.task is not None
        hosted.task.add_done_callback(lambda task: self._ended(lifespan, hosted, task))

    def _ended(self, lifespan: Lifespan[Any], hosted: Hosted, task: asyncio.Task[None]) -> None:
        """The task of the lifespan has ended. If no `leave` was called and the event loop does not end, that is an
        error."""
        if hosted.is_leaving or task.cancelled():
            return
        error = task.exception()
        self.broken = broken = lifespan.failed(error or RuntimeError("it ended"), "while it was in use")
        for tell in list(self.when_broken):
            tell(broken)

    async def end(self, hurry: asyncio.Event | None) -> BaseException | None:
        """Leave the lifespan, in `LEAVING` seconds, or at once when `hurry` is set. Returns its error."""
        leaving = started(self._leave())
        hurried = None if hurry is None else asyncio.ensure_future(hurry.wait())
        waits = [each for each in (leaving, hurried) if each is not None]
        try:
            await asyncio.wait(waits, timeout=LEAVING, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                leaving.cancel()
                await asyncio.wait([leaving])
                return TimeoutError(f"it was cancelled, because it did not end in {LEAVING:g} s, or a signal came")
        finally:
            if hurried is not None:
                hurried.cancel()
        return leaving.result()

    async def _leave(self) -> BaseException | None:
        hosted, lifespan = self._hosted, self.lifespan
        if hosted is None or lifespan is None:
            return None
        try:
            await hosted.leave()
        except Exception as error:
            return lifespan.failed(error, "behind its yield")
        return None


async def _tell_slow(lifespan: Lifespan[Any]) -> None:
    """Log every `SLOW` seconds that the lifespan has not yielded."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(SLOW)
            log.warning(
                "the lifespan %s has not yielded after %.0f s; the worker claims no job before it does",
                lifespan.name,
                loop.time() - since,
            )
