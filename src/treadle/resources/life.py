"""`Life`, what is open for an app on one event loop: its lifespan, and the dependencies with one value for the process.

Generators run in tasks of their own, with the context variables of the code that started the first worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any

from treadle.concurrency.spawn import mark_retrieved, started
from treadle.concurrency.threads import Threads
from treadle.core import ids
from treadle.core.errors import BadDependency, DependencyFailed, ResourceFailed
from treadle.resources.dependency import Dependency
from treadle.resources.generators import begin_here, end_here
from treadle.resources.hosted import CANCELLED, RAISED, Exit, Hosted, contained, result_of
from treadle.resources.lifespan import NONE, Lifespan, described
from treadle.resources.plan import Overrides, Planner, Provided
from treadle.resources.threads import NewThreads, in_thread

log = logging.getLogger("treadle")

SLOW = 10.0  # s between two lines that say that a resource is not ready yet
LEAVING = 10.0  # s that closing all of them may take

Broke = Callable[[ResourceFailed], None]
Failed = Callable[[BaseException, str], ResourceFailed]
"""The error to raise for an exception of a provider; the text says when it came."""


class Life:
    """One for each time that the resources of an app are opened on an event loop.

    overrides    providers, and the functions that replace them in a test
    threads      where plain providers of the process run
    state        what the lifespan has yielded
    users        how many workers and tests use it
    broken       why a generator ended while it was in use
    when_broken  called then
    plans        how to make the values of each task with the overrides
    by_task      all values of each task whose dependencies are of the process
    """

    def __init__(
        self, lifespan: Lifespan[Any] | None, overrides: Overrides | None = None, threads: Threads | None = None
    ) -> None:
        self.lifespan, self.overrides = lifespan, dict(overrides or {})
        self.threads = threads or NewThreads()
        self.loop = asyncio.get_running_loop()
        self.state: Any = NONE
        self.users = 0
        self.broken: ResourceFailed | None = None
        self.when_broken: list[Broke] = []
        self.plans: dict[Any, Any] = {}
        self.beginning: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[BaseException | None] | None = None
        self._values: dict[Any, tuple[Any]] = {}
        self._making: dict[Any, asyncio.Task[Any]] = {}
        self.by_task: dict[Any, dict[str, Any]] = {}
        self._open: list[tuple[Provided, Failed, Callable[[], Coroutine[Any, Any, None]]]] = []  # in order
        self._context = contextvars.copy_context()
        self._context.run(ids.running.set, None)  # a job that starts a worker is not the job of its resources

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._open or self._making)

    # --- opening

    async def begin(self) -> None:
        """Enter the lifespan. Raises LifespanFailed."""
        lifespan = self.lifespan
        if lifespan is None:
            return
        provided = Planner(self.overrides).one(Dependency(lifespan, "process"))
        try:
            self.state = await self._telling(lifespan.name, self._make(provided, lifespan.failed))
        except RAISED as error:
            raise lifespan.failed(error, "before its yield") from error

    async def prepare(self, needs: Iterable[Provided]) -> None:
        """Make these values of the process, in order, unless they are made. Raises DependencyFailed."""
        for provided in needs:
            try:
                await self._telling(provided.name, self.value(provided))
            except RAISED as error:
                raise _failed(provided, error, "before the first claim") from error

    async def _telling(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        telling = started(_tell_slow(name))
        try:
            return await work
        finally:
            telling.cancel()

    def known(self, provided: Provided) -> tuple[Any] | None:
        """The value in a tuple, if it is made. From any thread."""
        if not isinstance(provided.provider, Lifespan):
            return self._values.get(provided.key)
        if provided.provider is not self.lifespan or self.state is NONE:
            raise BadDependency(provided.name, "is the lifespan of another app")
        return (self.state,)

    async def value(self, provided: Provided) -> Any:
        """A value of the process; the first call makes it, and other calls wait for that. Raises what the provider
        raises; then the next call tries again."""
        known, key = self.known(provided), provided.key
        if known is not None:
            return known[0]
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = started(contained(self._keep(provided)), context=self._context.copy())
            making.add_done_callback(mark_retrieved)
        await asyncio.wait([making])
        if making.cancelled():
            raise provided.problem("was cancelled, because the worker stops")
        return result_of(making)

    async def _keep(self, provided: Provided) -> Any:
        try:
            value = await self._make(provided, lambda error, when: _failed(provided, error, when))
            self._values[provided.key] = (value,)
            return value
        finally:
            self._making.pop(provided.key, None)

    async def _make(self, provided: Provided, failed: Failed) -> Any:
        arguments = {name: await self.value(need) for name, need in provided.needs.items()}
        call, kind, problem = provided.call, provided.kind, provided.problem
        if kind == "async":
            return await call(**arguments)
        if kind in ("async generator", "lifespan"):
            generator = call.begin() if isinstance(call, Lifespan) else call(**arguments)
            hosted = Hosted(provided.name, generator, problem, self._context.copy())
            value = await hosted.enter()
            self._open.append((provided, failed, hosted.leave))
            assert hosted.task is not None
            hosted.task.add_done_callback(lambda task: self._ended(hosted, task, failed))
            return value
        if kind == "generator":
            plain: Generator[Any, None, Any] = call(**arguments)
            value = await in_thread(self.threads, begin_here, plain, problem)
            self._open.append((provided, failed, lambda: in_thread(self.threads, end_here, plain, None, problem)))
            return value
        if kind == "class":
            return call(**arguments)
        return provided.checked(await in_thread(self.threads, call, **arguments))

    def _ended(self, hosted: Hosted, task: asyncio.Task[None], failed: Failed) -> None:
        """A generator has ended. If no `leave` was called and the event loop does not end, that is an error."""
        if hosted.is_leaving or task.cancelled():
            return
        error = task.exception() or RuntimeError("it ended")
        self.broken = broken = failed(error.error if isinstance(error, Exit) else error, "while it was in use")
        for tell in list(self.when_broken):
            tell(broken)

    # --- closing

    async def end(self, hurry: asyncio.Event | None) -> BaseException | None:
        """Close everything in reverse order, in `LEAVING` seconds, or at once when `hurry` is set. Logs all errors and
        returns the first."""
        leaving = started(self._leave())
        hurried = None if hurry is None else asyncio.ensure_future(hurry.wait())
        waits = [wait for wait in (leaving, hurried) if wait is not None]
        try:
            await asyncio.wait(waits, timeout=LEAVING, return_when=asyncio.FIRST_COMPLETED)
            tries = len(self._open) + 2  # each cancellation ends one of them
            while not leaving.done() and tries:
                leaving.cancel()
                await asyncio.wait([leaving], timeout=CANCELLED)
                tries -= 1
        finally:
            if hurried is not None:
                hurried.cancel()
        if leaving.done():
            return leaving.result()
        log.error("a thread that closes a resource does not end; it is left running")
        return TimeoutError("a thread that closes a resource does not end")

    async def _leave(self) -> BaseException | None:
        for making in list(self._making.values()):
            making.cancel()
        if self._making:
            await asyncio.wait(list(self._making.values()))
        first: BaseException | None = None
        while self._open:
            provided, failed, close = self._open.pop()
            try:
                await close()
            except asyncio.CancelledError:
                late = f"{provided.name} was cancelled: it did not end in {LEAVING:g} s, or a signal came"
                error = failed(TimeoutError(late), "behind its yield")
            except RAISED as raised:
                error = failed(raised, "behind its yield")
            else:
                continue
            log.error("%s", error, exc_info=error)
            first = first or error
        return first


def _failed(provided: Provided, error: BaseException, when: str) -> ResourceFailed:
    if isinstance(error, ResourceFailed):
        return error
    failure = DependencyFailed(provided.name, f"failed {when}: {described(error, provided.call)}")
    failure.__cause__ = error
    return failure


async def _tell_slow(name: str) -> None:
    """Log every `SLOW` seconds that a resource is not ready."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(SLOW)
            log.warning(
                "%s is not ready after %.0f s; the worker claims no job before it is", name, loop.time() - since
            )
