"""The resources that an app declares, and their lives: one for each event loop of this process that has workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from treadle.concurrency.spawn import started
from treadle.concurrency.threads import Threads
from treadle.core.errors import BadOption
from treadle.resources.dependency import name_of
from treadle.resources.injector import Injector
from treadle.resources.life import Life
from treadle.resources.lifespan import Lifespan
from treadle.resources.plan import Overrides


class AppResources:
    """One for each app. Workers of one event loop share a life: the first enters it, the last leaves it."""

    def __init__(self) -> None:
        self.lifespan: Lifespan[Any] | None = None
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}  # a test sets them, by what they replace
        self._lives: dict[asyncio.AbstractEventLoop, Life] = {}

    def declare(self, function: Callable[..., Any], app: object) -> Lifespan[Any]:
        """Make a function the lifespan of this app. A function of the same name in the same module replaces it, as in a
        notebook. Raises BadOption for any other second one."""
        if callable(getattr(function, "add_route", None)):  # `FastAPI(lifespan=app.lifespan)` calls it with the host
            raise BadOption(
                "lifespan",
                f"app.lifespan declares what workers open, and was called with a {type(function).__name__}; for the "
                "lifespan of a web application: from treadle.integrations.starlette import lifespan, and "
                "FastAPI(lifespan=lifespan(app))",
            )
        new: Lifespan[Any] = Lifespan(function, app)
        old = self.lifespan
        if old is not None and (old.name != new.name or "<" in new.name):
            raise BadOption(
                "lifespan", f"this app has the lifespan {old.name} already, found {new.name}; combine the two in one"
            )
        self.lifespan = new
        return new

    def for_test(self, overrides: Overrides) -> AppResources:
        """The same declarations with these overrides; nothing is open yet."""
        other = AppResources()
        other.lifespan, other.overrides = self.lifespan, {**self.overrides, **overrides}
        return other

    def check(self, overrides: Overrides, injectors: Iterable[Injector]) -> None:
        """Raise BadOption for an override of what no task and no lifespan uses, BadDependency for one that cannot
        work."""
        tasks = list(injectors)
        known = {self.lifespan}.union(*(injector.providers for injector in tasks))
        for provider, by in overrides.items():
            if provider not in known:
                names = ", ".join(sorted(name_of(used) for used in known if used is not None)) or "none"
                raise BadOption(
                    "overrides", f"no task of this app depends on {name_of(provider)}; its dependencies: {names}"
                )
            if not callable(by):
                raise BadOption("overrides", f"{name_of(provider)}: expected a function, found {by!r}")
        for injector in tasks:
            injector.plan(overrides)

    @contextmanager
    def overridden(self, overrides: Overrides) -> Iterator[None]:
        """Replace providers for the workers that start in this block. Raises BadOption while a worker runs."""
        if self._lives:
            raise BadOption("override", "a worker of this app runs already; start it inside the `with`")
        before, self.overrides = self.overrides, {**self.overrides, **overrides}
        try:
            yield
        finally:
            self.overrides = before

    def forget(self) -> None:
        """In a forked child: what is open belongs to the parent."""
        self._lives = {}

    async def enter(self, injectors: Iterable[Injector] = (), threads: Threads | None = None) -> Life:
        """Open the resources on the running loop, unless they are open. Each call needs its own `leave`. Raises
        LifespanFailed to all callers that wait for the same opening, DependencyFailed and BadDependency.

        injectors  those of the tasks whose process-wide values are made now; others are made when a run needs them
        threads    where plain providers of the process run; None: in new ones
        """
        loop = asyncio.get_running_loop()
        for closed in [other for other in list(self._lives) if other.is_closed()]:
            self._lives.pop(closed, None)
        while (life := self._lives.get(loop)) is not None and life.ending is not None:
            await asyncio.wait([life.ending])
        if life is None:
            life = self._lives[loop] = Life(self.lifespan, self.overrides, threads)
            life.beginning = None if self.lifespan is None else started(life.begin())
        if life.broken is not None:  # the workers that use it stop
            raise life.broken
        life.users += 1
        if life.beginning is not None:
            await self._begun(life, life.beginning)
        try:
            for injector in injectors:
                await life.prepare(injector.plan_in(life).of_process)
        except BaseException:
            await self.leave(life)
            raise
        return life

    def none(self) -> Life:
        """No open resources, for a worker that runs no tasks; `leave` accepts it too."""
        life = Life(None)
        life.users = 1
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
        """Undo one `enter`; the last one closes the resources. Returns the first error, which is logged. If
        this call is cancelled, the closing continues."""
        life.users -= 1
        if life.users:
            return None
        if not life.is_open:
            self._drop(life)
            return None
        life.ending = started(self._end(life, hurry))
        return await asyncio.shield(life.ending)

    async def _end(self, life: Life, hurry: asyncio.Event | None) -> BaseException | None:
        try:
            return await life.end(hurry)
        finally:
            self._drop(life)

    def _drop(self, life: Life) -> None:
        if self._lives.get(life.loop) is life:
            del self._lives[life.loop]
