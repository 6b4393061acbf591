"""`app.sync.jobs` and the other groups of calls, such as `.dead`, `.queues` and `.limits`, without await.

Arguments, results, errors and docstrings are those of the async method that each line names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from treadle.admin import Audit, Dead, Filter, Jobs, Limits, MetricsReader, Queues, Workflows, entry_of
from treadle.core.model import Record
from treadle.core.stream_model import Chunk, Reset
from treadle.scheduling import Schedules
from treadle.tasks.when import HasId
from treadle.workflow.streams import Entry

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Calls(Protocol):
    """Runs coroutines of the app for a thread without an event loop."""

    def call(self, work: Coroutine[Any, Any, T]) -> T: ...
    def _again(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class View(Generic[S_co]):
    """One group of calls, such as `app.jobs`."""

    def __init__(self, portal: Calls, calls: S_co) -> None:
        self._portal, self._calls = portal, calls


class Waits(Generic[S, P, T]):
    """A method that runs a coroutine method and returns its result.

    reads  it only reads, so it is repeated if the event loop of the app ends during the call
    """

    def __init__(self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]], reads: bool = False) -> None:
        self._method, self._reads = method, reads

    @overload
    def __get__(self, view: None, owner: type[View[S]]) -> Self: ...
    @overload
    def __get__(self, view: View[S], owner: type[View[S]]) -> Callable[P, T]: ...
    def __get__(self, view: View[S] | None, owner: type[View[S]]) -> Self | Callable[P, T]:
        if view is None:
            return self
        portal, make = view._portal, functools.partial(self._method, view._calls)

        def wait(*args: P.args, **kwargs: P.kwargs) -> T:
            if self._reads:
                return portal._again(lambda: make(*args, **kwargs))
            return portal.call(make(*args, **kwargs))

        wait.__doc__, wait.__name__ = self._method.__doc__, getattr(self._method, "__name__", "wait")
        return wait


def _reads(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Waits[S, P, T]:
    return Waits(method, reads=True)


class SyncJobs(View[Jobs]):
    """`app.jobs`."""

    get = _reads(Jobs.get)
    handle = _reads(Jobs.handle)
    list = _reads(Jobs.list)
    history = _reads(Jobs.history)
    position = _reads(Jobs.position)
    explain = _reads(Jobs.explain)
    whole = _reads(Jobs.whole)
    eta = _reads(Jobs.eta)
    signals_of = _reads(Jobs.signals_of)
    signal = Waits(Jobs.signal)
    send = Waits(Jobs.send)
    ask = Waits(Jobs.ask)
    value = _reads(Jobs.value)
    streams = _reads(Jobs.streams)
    stream = _reads(Jobs.stream)
    approvals = _reads(Jobs.approvals)
    approval = _reads(Jobs.approval)
    decide = Waits(Jobs.decide)
    cancel = Waits(Jobs.cancel)
    retry = Waits(Jobs.retry)
    run_now = Waits(Jobs.run_now)
    pause = Waits(Jobs.pause)
    resume = Waits(Jobs.resume)
    rerun = Waits(Jobs.rerun)
    fork = Waits(Jobs.fork)
    delete = Waits(Jobs.delete)

    @property
    def approval_link(self) -> Callable[..., str]:
        """As `Jobs.approval_link`, which waits for nothing."""
        return self._calls.approval_link

    def iterate(self, **filters: Filter) -> Iterator[Record]:
        """Every matching row, page by page, oldest first."""
        cursor: str | None = None
        while True:
            page = self.list(cursor=cursor, limit=500, order="oldest", **filters)
            yield from page.records
            cursor = page.cursor
            if cursor is None:
                return

    def follow(self, job: HasId | str, name: str, start: int = 0, *, returns: Any = Any) -> Iterator[Chunk | Reset]:
        """As `app.jobs.follow`, for threads: `for entry in app.sync.jobs.follow(job, "tokens"):`."""
        pages = self._calls.follow_pages(job, name, start)

        async def next_page() -> list[Entry] | None:
            return await anext(pages, None)

        async def close() -> None:
            await pages.aclose()

        try:
            while (entries := self._portal.call(next_page())) is not None:
                for entry in entries:
                    yield entry_of(entry, returns)
        finally:
            self._portal.call(close())


class SyncDead(View[Dead]):
    """`app.dead`."""

    list = _reads(Dead.list)
    groups = _reads(Dead.groups)
    retry = Waits(Dead.retry)
    purge = Waits(Dead.purge)


class SyncQueues(View[Queues]):
    """`app.queues`."""

    stats = _reads(Queues.stats)
    glance = _reads(Queues.glance)
    plan = _reads(Queues.plan)
    pause = Waits(Queues.pause)
    resume = Waits(Queues.resume)


class SyncWorkflows(View[Workflows]):
    """`app.workflows`."""

    list = _reads(Workflows.list)
    graph = _reads(Workflows.graph)


class SyncAudit(View[Audit]):
    """`app.audit`."""

    list = _reads(Audit.list)


class SyncLimits(View[Limits]):
    """`app.limits`."""

    list = _reads(Limits.list)
    set = Waits(Limits.set)
    pause = Waits(Limits.pause)
    resume = Waits(Limits.resume)


class SyncMetrics(View[MetricsReader]):
    """`app.metrics`."""

    read = _reads(MetricsReader.read)
    each = _reads(MetricsReader.each)
    totals = _reads(MetricsReader.totals)


class SyncSchedules(View[Schedules]):
    """`app.schedules`."""

    list = _reads(Schedules.list)
    get = _reads(Schedules.get)
    upsert = Waits(Schedules.upsert)
    trigger = Waits(Schedules.trigger)
    pause = Waits(Schedules.pause)
    resume = Waits(Schedules.resume)
    delete = Waits(Schedules.delete)
