"""The resources that an app declares, and their lives: one for each event loop of this process that has workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from treadle.concurrency.spawn import started
from treadle.errors import BadOption
from treadle.resources.life import Life
from treadle.resources.lifespan import Lifespan

log = logging.getLogger("treadle")

S = TypeVar("S")


class AppResources:
    """One for each app. Workers of one event loop share a life: the first enters it, the last leaves it."""

    def __init__(self) -> None:
        self.lifespan: Lifespan[Any] | None = None
        self._lives: dict[asyncio.AbstractEventLoop, Life] = {}

    @property
    def declared(self) -> bool:
        """Whether there is anything to open."""
        return self.lifespan is not None

    def declare(self, function: Callable[..., Any], app: object) -> Lifespan[Any]:
        """Make a function the lifespan of this app. A function of the same name in the same module replaces it, as in a
        notebook. Raises BadOption for any other second one."""
        new: Lifespan[Any] = Lifespan(function, app)
        old = self.lifespan
        if old is not None and (old.name != new.name or "<" in new.name):
            raise BadOption(
                "lifespan", f"this app has the lifespan {old.name} already, found {new.name}; combine the two in one"
            )
        self.lifespan = new
        return new

    def for_test(self) -> AppResources:
        """The same declarations, without what is open."""
        other = AppResources()
        other.lifespan = self.lifespan
        return other

    def forget(self) -> None:
        """In a forked child: what is open belongs to the parent."""
        self._lives = {}

    async def enter(self) -> Life:
        """Open the resources on the running loop, unless they are open. Each call needs its own `leave`. Raises
        LifespanFailed, to all callers that wait for the same opening."""
        loop = asyncio.get_running_loop()
        for ended in [each for each in list(self._lives) if each.is_closed()]:
            self._lives.pop(ended, None)
        while (life := self._lives.get(loop)) is not None and life.ending is not None:
            await asyncio.wait([life.ending])
        if life is None:
            life = self._lives[loop] = Life(self.lifespan)
            life.beginning = None if self.lifespan is None else started(life.begin())
        if life.broken is not None:  # the workers that use it stop
            raise life.broken
        life.users += 1
        if life.beginning is not None:
            await self._begun(life, life.beginning)
        return life

    async def _begun(self, life: Life, beginning: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([beginning])
            beginning.result()
        except BaseException:
            life.users -= 1
            if not life.users:
                self._drop(life)
                if not beginning.done():  # the last caller was cancelled
                    beginning.cancel()
                    await asyncio.wait([beginning])
                    if not beginning.cancelled() and beginning.exception() is None:
                        await life.end(None)
            raise

    async def leave(self, life: Life, hurry: asyncio.Event | None = None) -> BaseException | None:
        """Undo one `enter`; the last one closes the resources. Returns the error of the lifespan, which is logged. If
        this call is cancelled, the closing continues."""
        life.users -= 1
        if life.users:
            return None
        if life.beginning is None:
            self._drop(life)
            return None
        life.ending = started(self._end(life, hurry))
        return await asyncio.shield(life.ending)

    async def _end(self, life: Life, hurry: asyncio.Event | None) -> BaseException | None:
        try:
            error = await life.end(hurry)
        finally:
            self._drop(life)
        if error is not None:
            log.error("%s", error, exc_info=error)
        return error

    def _drop(self, life: Life) -> None:
        if self._lives.get(life.loop) is life:
            del self._lives[life.loop]
