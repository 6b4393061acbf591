"""`AppCore`, the engine's side of an app: its storage, its registry of tasks, and the objects that work on them.

`App` holds one and shows users a part of it. Everything below `App` takes the core.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import random as _random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from treadle.admin import (
    Audit,
    Dead,
    EmptiedWatch,
    Jobs,
    LimitHolds,
    Limits,
    MetricsReader,
    Moved,
    Operations,
    OrphanedWorkflows,
    Queues,
    Workflows,
)
from treadle.admin.known_names import Names, without_rule
from treadle.app.decorators import WaitOptions
from treadle.app.storage_choice import StorageChoice
from treadle.core import clock as clocks
from treadle.core.errors import BadOption, StorageUnavailable, UnknownTask
from treadle.core.events import Emitter, Event
from treadle.core.ids import IdFactory, UuidV7
from treadle.core.job import Continuation, JobSpec
from treadle.core.limit_model import Limit
from treadle.execution import middleware
from treadle.execution.job_run import is_of_run
from treadle.execution.open_transaction import guarded
from treadle.metrics import ProcessCounts
from treadle.policy import judge
from treadle.policy.judge import HOLD
from treadle.policy.misfits import Misfits, longest_wait
from treadle.policy.retry import Retry
from treadle.producer import Client, ClientParts, Joined
from treadle.resources import AppResources, Injector
from treadle.scheduling import Schedules
from treadle.serialization import call_codec as codecs
from treadle.storage import Bound, Lifecycle, bound_to
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore
from treadle.tasks.job_factory import JobFactory, own_limit
from treadle.tasks.modules import TaskModules
from treadle.tasks.options import Options, Seconds, Sizes
from treadle.tasks.redactor import Redactor
from treadle.tasks.reducers import Reducer
from treadle.tasks.stub import Stub
from treadle.tasks.task import AnyTask, refuse_covered
from treadle.tasks.when import HasId, When
from treadle.worker import Census, InlineWorker
from treadle.workflow import flatten, waiting

if TYPE_CHECKING:
    from treadle.outbox import OutboxTasks, Relay

log = logging.getLogger("treadle")


class AppCore:
    """The objects of one app. Their names without an underscore are for the engine."""

    def __init__(
        self,
        choice: StorageChoice,
        *,
        retry: Retry | None = None,
        on_error: judge.OnError | None = None,
        codec: codecs.Codec | None = None,
        sizes: Sizes | None = None,
        ids: IdFactory | None = None,
        random: Callable[[], float] | None = None,
        misfits: Misfits = "wait",
        redact: Sequence[str] = (),
    ) -> None:
        self.misfit_wait = longest_wait(misfits)
        self.choice, self.now = choice, choice.clock or clocks.wall
        self.random: Callable[[], float] = random or _random.random
        self.tasks: dict[str, TaskCore] = {}
        self.redactor = Redactor(self.tasks, redact)
        self.declared: dict[str, AnyTask] = {}  # the same tasks, as users see them
        self.modules = TaskModules()
        self.emitter = Emitter()
        self.layers: list[middleware.Middleware] = []
        self.retry, self.on_error, self.codec, self.sizes = retry or Retry(), on_error, codec, sizes or Sizes()
        self.when_forked: list[Callable[[], None]] = []  # called in a forked child
        self.when_closing: list[Callable[[], Awaitable[None]]] = []  # called before the storage is closed
        self.resources = AppResources()
        self.counts: ProcessCounts | None = None  # counts of its workers and calls, for scrapers; see `count`
        self.joined: Callable[[], Joined | None] = lambda: (
            None
        )  # the transaction of the thread, if a framework knows it
        self.in_test = False  # `app.testing()` runs the jobs: no worker may run them besides
        self.inline, self.census = InlineWorker(self), Census()
        self.life = self.new_life(choice)
        self.emptied = EmptiedWatch(self.opened, self.now)
        names, self.moved = Names(self.opened, self.tasks), Moved(self.opened)
        self.orphans = OrphanedWorkflows(self.opened, self.emitter)
        self.outbox_tasks: OutboxTasks | None = None if choice.outbox is None else self._open_outbox()
        self.client = self._make_client()
        self.new_id: IdFactory = ids or UuidV7()
        self.maker = JobFactory(self.client, self.new_id, self.now, self.retry, self.sizes, self.resources)
        self.reducers: dict[str, Reducer] = self.maker.reducers
        self._make_groups(names)

    def _make_client(self) -> Client:
        parts = ClientParts(
            layers=self.layers,
            run_now=self._run_inline,
            moved=self.moved,
            orphans=self.orphans,
            outbox=self.outbox_tasks,
        )
        return Client(self.opened, self.life.at_hand, self.bound, self.emitter, self.tasks, parts)

    def _make_groups(self, names: Names) -> None:
        """Make the groups of calls, such as `app.jobs`. They share one record of the names that calls have used."""
        self.jobs = Jobs(self.client, self.opened, self.tasks, self.now, names, self.moved, self.sizes.step)
        self.dead = Dead(self.jobs)
        self.limits = Limits(self.opened, names, self.moved)
        self.queues = Queues(self.opened, self.limits, self.moved)
        self.workflows = Workflows(self.opened, self.moved)
        self.audit = Audit(self.opened, self.moved)
        self.operations = Operations(self.client, self.opened, self.audit, self.now)
        self.metrics = MetricsReader(self.opened, self.now, self.moved, names)
        self.schedules = Schedules(
            self.opened,
            self.client.send,
            self._next_id,
            self.jobs.job_of,
            self._tell_error,
            self.client.prepared,
            self.moved,
        )
        self.system_tasks = self.schedules.tasks
        self.system_tasks[HOLD] = LimitHolds(self.limits).task

    @property
    def url(self) -> str | None:
        """The storage URL; None for a storage object and for ports."""
        return self.choice.url

    # --- tasks

    def register(self, name: str, task: AnyTask, concurrency: int | None = None) -> None:
        """Register the task under this name, in place of an earlier task of the name; at most `concurrency` of its jobs
        run at once. Raises BadOption for an invalid `concurrency`, and then changes nothing; BadTask."""
        if concurrency is not None:
            self.limits.declare(Limit(own_limit(name), slots=concurrency))
            self.maker.limited.add(name)
        elif name in self.declared:
            self.limits.forget(own_limit(name))
            self.maker.limited.discard(name)
        if task._core.join(self.tasks.get(name)):
            self.tasks[name], self.declared[name] = task._core, task

    def find_task(self, name: str) -> AnyTask:
        """The task of that name. Raises UnknownTask, which suggests a similar name."""
        if name not in self.tasks:
            like = difflib.get_close_matches(name, self.tasks, 1)
            raise UnknownTask(name, tuple(self.tasks), like[0] if like else None)
        return self.declared[name]

    def stub(self, name: str, **options: Unpack[Options]) -> Stub:
        """A task by name; its arguments are not checked."""
        return Stub(self.maker, name).options(**options)

    # --- sending

    async def enqueue(
        self,
        specs: Sequence[Any],
        unbegun: list[Any],
        within: Any = None,
        **waits: Unpack[WaitOptions],
    ) -> Any:
        """See `App.enqueue`. `unbegun`: see `report_dropped`."""
        unbegun.clear()
        flat, single = self.flatten(specs, **waits)
        jobs = await self.client.send(flat, within) if flat else []
        return jobs[0] if single else jobs

    def flatten(
        self,
        specs: Sequence[Continuation[Any, Any] | Iterable[Continuation[Any, Any]]],
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
    ) -> tuple[list[JobSpec[Any, Any]], bool]:
        """The arguments of `enqueue` as one list of specs, and whether they are a single spec or flow."""
        flat = flatten(specs, self.maker)
        if after is not None or when is not None or wait_timeout is not None:
            flat = waiting(flat, after, when, wait_timeout, self.now(), self.sizes)
        return flat, len(specs) == 1 and isinstance(specs[0], Continuation)

    def bound(self, within: Any) -> Bound:
        """The verbs of the storage, or of the outbox, inside a transaction of the user. It does not open the app,
        because opening could wait for that very transaction."""
        if self.choice.outbox is not None and self.outbox_tasks is not None and not is_of_run(within):
            outbox: Bound = self.outbox_tasks.within(self.choice.outbox, within)
            return outbox if self.choice.wrap is None else self.choice.wrap.bound(outbox)
        return bound_to(self.storage, within)

    @property
    def relay(self) -> Relay | None:
        """A new relay of the outbox, to this app's storage; None: the app has no outbox."""
        return None if self.outbox_tasks is None else self.outbox_tasks.relay()

    def _open_outbox(self) -> OutboxTasks:
        from treadle.outbox import OutboxTasks  # most apps have no outbox

        tasks = OutboxTasks(lambda: self.choice.outbox, self.opened, lambda: self.loop, lambda: self.url)
        self.when_forked.append(tasks.forget)
        self.when_closing.append(tasks.close)
        return tasks

    async def results(self, ids: Sequence[str]) -> list[Any]:
        """For each of these jobs, in order, its result, or the exception that says why it has none."""
        return await self.client.results(ids)

    # --- the storage

    async def open(self) -> Storage:
        """See `App.open`."""
        return await self.life.open()

    async def release(self) -> None:
        """Undo one `open`. The last one closes the storage, unless a call without `open` has opened it."""
        await self.leave(even_if_lazily=False)

    async def close(self) -> None:
        """See `App.close`."""
        await self.life.close()

    async def leave(self, *, even_if_lazily: bool) -> None:
        """Undo one `open`. The last one closes the storage; if a call without `open` has opened it, only with
        `even_if_lazily`."""
        # The inline worker keeps the app open only for itself, and releases it while the app is closed.
        others = -1 if self.inline.stopping else self.inline.users
        await self.life.leave(others, even_if_lazily=even_if_lazily)

    async def opened(self) -> Storage:
        """The storage, opened at its first use. The app then stays open until `close`, or until its event loop ends."""
        return guarded(self.life.at_hand() or await self.life.opened())

    @property
    def storage(self) -> Storage:
        """The storage, as the code that runs here may use it: on another event loop, a proxy."""
        return self.life.seen_from_here()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the app is open; None while it is closed."""
        return self.life.loop

    def new_life(self, choice: StorageChoice) -> Lifecycle:
        """The lifecycle of this storage, not yet open."""
        return Lifecycle(
            choice.make(),
            None if choice.is_only_one else choice.make,
            choice.url is not None,
            self._stop_inline,
            self._when_open,
            self._when_forked,
            not choice.look,
        )

    def use(self, choice: StorageChoice) -> None:
        """Use this storage from now on. The app must be closed, and no worker of it may run."""
        self.choice, self.life = choice, self.new_life(choice)
        self.emptied.forget()
        self.client.at_hand = self.life.at_hand

    def count(self) -> ProcessCounts:
        """Count runs, enqueues and calls of the storage from now on, for scrapers. Call it before the app is opened.
        Raises BadOption if it is open."""
        if self.counts is None:
            if self.life.ownership is not None:
                raise BadOption("metrics", "the app is open already: count from the start, before it is opened")
            self.counts = ProcessCounts()
            self.client.counted = self.counts.enqueued
            self.use(replace(self.choice, counts=self.counts))
        return self.counts

    @contextmanager
    def looking(self) -> Iterator[None]:
        """In this block the storage is opened only to be read. The app must be closed before it and at its end. Opening
        raises SchemaTooOld for a storage that does not exist yet or must be migrated first."""
        before = self.choice
        self.use(replace(before, look=True))
        try:
            yield
        finally:
            self.use(before)

    def _when_open(self) -> None:
        self.moved.forget()
        if self.choice.by_default:
            log.info("jobs live in %s", self.url)

    def _when_forked(self) -> None:
        """In a forked child: drop everything that runs on event loops of the parent."""
        self.inline.forget()
        self.census = Census()
        self.resources.forget()
        for forget in self.when_forked:
            forget()

    async def _run_inline(self, ids: Sequence[str]) -> None:
        await self.inline.run(ids)

    async def _stop_inline(self) -> None:
        await self.inline.stop()
        for close in self.when_closing:
            await close()

    # --- declarations

    async def prepare(self) -> None:
        """Store the declared schedules and limits; every worker does this when it starts. The limits are stored last,
        with the mark that `prepare_again` looks for. Raises BadTask for a task that another decorator hides."""
        refuse_covered(self.declared.values())
        only = self.storage.capabilities.queues
        if only and self._declares():
            log.warning(
                "the token is bound to %s, so the declared schedules and limits are not stored; a worker with a token "
                "for every queue, or one on the storage itself, stores them",
                ", ".join(only),
            )
        if only:
            return
        with suppress(StorageUnavailable):  # the worker starts anyway, and tries again later
            await self._keep_identity()
        if self._declares():
            await self.schedules.store()
            await self.limits.store()
        if any(task.declared.constants.get("limits") for task in self.tasks.values()):
            rules = frozenset(use.key for use in await self.limits.list(use=False))
            for name, limit, guess in without_rule(self.tasks, rules):
                warning = "task %s: its limit %r has no rule, so it holds jobs back only while it is paused or rests%s"
                log.warning(warning, name, limit, guess)

    async def prepare_again(self) -> bool:
        """Store them again if the storage has lost them, for example a server that was restarted empty. Returns whether
        it had."""
        await self._keep_identity()
        if not self._declares() or await self.limits.is_stored():
            return False
        await self.prepare()
        return True

    async def _keep_identity(self) -> None:
        """Log if the storage was emptied since the last check, even if nothing is declared."""
        try:
            emptied = await self.emptied.keep()
        except StorageUnavailable:
            raise
        except Exception as error:  # the worker works without it
            log.debug("could not look for the mark of the storage: %s", error)
            return
        if emptied:
            log.error(
                "the storage was emptied: every job that it had before is gone. A flush, an eviction, a fail-over to a "
                "server without the data or a dropped schema does that; `treadle doctor` checks its settings"
            )

    def _declares(self) -> bool:
        return bool(self.limits.declarations or self.schedules.declarations)

    def _next_id(self) -> str:
        return self.maker.new_id()  # not bound once: a test replaces `new_id`

    def _tell_error(self, error: BaseException) -> None:
        if self.emitter.wants("worker.error"):
            self.emitter.emit(Event(name="worker.error", error=error))


def injectors(core: AppCore) -> list[Injector]:
    """The dependencies of all tasks that have some."""
    every = [version for task in core.tasks.values() for version in task.versions.values()]
    return [task.injector for task in every if task.injector is not None]


class AnyApp(Protocol):
    """An `App`, for modules that `App` itself imports."""

    @property
    def _core(self) -> AppCore: ...
