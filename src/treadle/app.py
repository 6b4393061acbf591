"""The app: its storage, its tasks, and the objects that work on them.

Each app has a task registry of its own; there is no global one.
"""

from __future__ import annotations

import asyncio
import logging
import random as _random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from treadle import config
from treadle.admin.dead import Dead
from treadle.admin.event_feed import EventFeed
from treadle.admin.jobs import Jobs
from treadle.admin.known_names import Names, without_rule
from treadle.admin.limit_holds import LimitHolds
from treadle.admin.limits import Limits
from treadle.admin.moved_looks import Moved
from treadle.admin.orphaned_workflows import OrphanedWorkflows
from treadle.admin.queues import Queues
from treadle.concurrency.spawn import answers_coroutine
from treadle.core import clock as clocks
from treadle.core.argument_names import refuse_unknown, spelled, spelled_call
from treadle.core.events import Emitter, Event, Listener
from treadle.core.ids import IdFactory, UuidV7
from treadle.core.job import Continuation, Job, JobSpec, Value
from treadle.core.must_await import Awaited, check_awaited
from treadle.declare import Declarations
from treadle.errors import BadOption
from treadle.execution import middleware
from treadle.execution.open_transaction import guarded
from treadle.policy import judge
from treadle.policy.judge import HOLD
from treadle.policy.retry import Retry
from treadle.ports import name_of_space, three
from treadle.producer.client import Client
from treadle.scheduling.schedules import Schedules
from treadle.serialization import call_codec as codecs
from treadle.storage import compose, connect
from treadle.storage.contract import Bound, Storage
from treadle.storage.loop_owner import Lifecycle
from treadle.storage.user_session import bound_to
from treadle.sync import Portal
from treadle.tasks.job_factory import JobFactory
from treadle.tasks.options import Seconds, Sizes
from treadle.tasks.reducers import Reducer
from treadle.tasks.task import Task
from treadle.tasks.when import HasId, When
from treadle.worker.inline import InlineWorker
from treadle.workflow.enqueue_args import SENDING, flatten, waiting

if TYPE_CHECKING:
    from treadle.testing.app import Testing
    from treadle.testing.clock import HandClock
    from treadle.testing.given_storage import Given

log = logging.getLogger("treadle")

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")
W = TypeVar("W")
V = TypeVar("V", bound=Value)
Rf = TypeVar("Rf", bound=Callable[[list[Any]], Any])


@spelled
class App(Declarations, Awaited, call="app", more={"close": "app.sync.close()"}):
    """A set of tasks, and the storage of their jobs.

    url       sqlite:///file.db, redis://, http:// ..., memory://, see `treadle.storage.connect`; None: TREADLE_URL,
              otherwise `treadle.db` in the folder of the file that creates the app
    storage   a storage object, instead of a url
    ports     (queue, pubsub, store) of `treadle.ports`, instead of a url: jobs in your own systems
    namespace with ports: prefix of all their keys and channels; default "treadle"
    retry     default retry policy; a task's own policy overrides the fields that it sets
    on_error  (exception, Failure) -> Retry.now() | Defer(...) | Abort(...) | None, for tasks without their own
    codec     converts arguments and results to text and back; None: by their annotations
    sizes     the largest payload, result and headers, in bytes
    token     the access token for an http:// url; None: TREADLE_TOKEN
    clock     returns seconds since 1970. For tests, like ids (returns job ids) and random (returns 0 to 1).

    At most one of url, storage and ports can be given. Raises BadOption, BadUrl and BadCodec.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        storage: Storage | None = None,
        retry: Retry | None = None,
        on_error: judge.OnError | None = None,
        codec: codecs.Codec | None = None,
        sizes: Sizes | None = None,
        clock: clocks.Clock | None = None,
        ids: IdFactory | None = None,
        random: Callable[[], float] | None = None,
        token: str | None = None,
        ports: Any = None,
        namespace: str | None = None,
    ) -> None:
        if sum(given is not None for given in (url, storage, ports)) > 1:
            raise BadOption("storage", "give only one of url=, storage= and ports=")
        self._ports, self._namespace = (None if ports is None else three(ports)), name_of_space(namespace, ports)
        by_url = storage is None and ports is None
        self.url = config.storage_url(url, config.caller_file()) if by_url else None
        self._by_default = by_url and url is None
        self.now: clocks.Clock = clock or clocks.wall
        self._clock, self._token = clock, token or config.token()
        self.chance: Callable[[], float] = random or _random.random
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.emitter = Emitter()
        self.layers: list[middleware.Middleware] = []
        self.on_error, self.sizes = on_error, sizes or Sizes()
        self._codec = codec
        if codec is not None:
            codecs.probe(codec)
        self._inline = InlineWorker(self)
        self._life = self._new_life(storage)
        self.client: Client = Client(self._opened, self._life.at_hand, self.bound, self.emitter, self.tasks)
        self.client.layers = self.layers
        self.client.run_now = self._run_inline
        self.retry = retry or Retry()
        self.new_id: IdFactory = ids or UuidV7()
        self._maker = JobFactory(self.client, self.new_id, self.now, self.retry, self.sizes)
        self.reducers: dict[str, Reducer] = self._maker.reducers
        self.sync = Portal(self)
        names = Names(self._opened, self.tasks)
        self.client.names, self._maker.given = names, names.given
        self._moved = self.client.moved = Moved(self._opened)
        self.jobs = Jobs(self.client, self._opened, self.tasks, self.now, names, self._moved, self.sizes.step)
        self.dead = Dead(self.jobs)
        self.limits = Limits(self._opened, names, self._moved)
        self.queues = Queues(self._opened, self.limits, self._moved)
        self.schedules = Schedules(
            self._opened,
            self.client.send,
            self._new_id,
            self.jobs.job_of,
            self._tell_error,
            self.client.prepared,
            self._moved,
        )
        self.system_tasks = self.schedules.tasks
        self.system_tasks[HOLD] = LimitHolds(self.limits).task
        self._orphans = OrphanedWorkflows(self._opened, self.emitter)
        self.client.orphans = self._orphans

    def on(self, *names: str) -> Callable[[Listener], Listener]:
        """Register a function (async or not) as a listener of these events of this process; "*" is all events. Raises
        BadOption for an unknown event."""

        def decorate(listener: Listener) -> Listener:
            for name in names:
                self.emitter.on(name, listener)
                if name == "workflow.orphaned":
                    self._orphans.listen()
            return listener

        return decorate

    @spelled_call
    def events(self, *, everywhere: bool = False) -> AsyncIterator[Event]:
        """The events of this process, from this call on.

        everywhere  the job events of all processes on this storage instead, read from the rows at least once a second:
                    of two changes between two reads only the later one is returned
        """
        return EventFeed(self._opened, self.now).stream() if everywhere else self.emitter.stream()

    def middleware(self, layer: Any) -> Any:
        """Add a Middleware (class or instance) inside those added before. Returns its argument."""
        self.layers.append(middleware.check(layer))
        return layer

    # --- sending

    @overload
    def enqueue(  # type: ignore[overload-overlap]  # one spec is the special case of many
        self,
        spec: Continuation[T, W],
        /,
        *,
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
        within: Any = None,
    ) -> Coroutine[Any, Any, Job[T, W]]: ...
    @overload
    def enqueue(
        self,
        specs: Iterable[Continuation[T, W]],
        /,
        *,
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
        within: Any = None,
    ) -> Coroutine[Any, Any, list[Job[T, W]]]: ...
    @overload
    def enqueue(
        self,
        *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
        within: Any = None,
    ) -> Coroutine[Any, Any, list[Job[Any, Any]]]: ...
    @answers_coroutine
    def enqueue(
        self,
        *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
        within: Any = None,
        **unknown: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Store specs and flows in one round trip, all or none; the jobs are durable when it returns.

        Returns one Job for one spec or flow, otherwise a list. The Job of a flow ends when the whole flow has ended.

        after, when, wait_timeout  make all of them wait, like the options of these names
        within                     your own open transaction on the storage's database: a connection or a session. The
                                   jobs are committed or rolled back with it (SQLite, PostgreSQL)
        Raises UnknownUpstream, KeyHeld, IdTaken, BadOption, BadSession, Unsupported and StorageError, and then stores
        nothing. After StorageUnavailable it is unknown whether the jobs are stored; repeating the call with the same
        specs is safe.
        """
        check_awaited("app.enqueue()", "app.sync.enqueue(...)")
        if unknown:
            refuse_unknown("enqueue", unknown, SENDING)
        return self._enqueue(specs, after, when, wait_timeout, within)

    async def _enqueue(
        self,
        specs: Sequence[Any],
        after: HasId | str | Iterable[HasId | str] | None,
        when: When | None,
        wait_timeout: Seconds | None,
        within: Any,
    ) -> Any:
        flat, single = self.flatten(specs, after, when, wait_timeout)
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
        flat = flatten(specs, self._maker)
        if after is not None or when is not None or wait_timeout is not None:
            flat = waiting(flat, after, when, wait_timeout, self.now(), self.sizes)
        return flat, len(specs) == 1 and isinstance(specs[0], Continuation)

    # --- life

    async def open(self) -> Storage:
        """Open the storage unless it is open. Each `open` needs its own `release`.

        The storage belongs to the event loop that opens it first. Calls on other loops are carried out on that loop, so
        code on it must not block. Raises StorageUnavailable, and EventLoopError if that loop does not run.
        """
        return await self._life.open()

    async def release(self) -> None:
        """Undo one `open`. The last one closes the storage, unless a call without `open` has opened it."""
        await self._leave(even_if_lazily=False)

    async def close(self) -> None:
        """Stop the inline worker and close the storage, on whatever loop it is open. A second call does nothing. If the
        caller is cancelled, closing continues."""
        await self._life.close()

    async def _leave(self, *, even_if_lazily: bool) -> None:
        # The inline worker keeps the app open only for itself, and releases it while the app is closed.
        others = -1 if self._inline.stopping else self._inline.users
        await self._life.leave(others, even_if_lazily=even_if_lazily)

    @spelled_call
    def testing(
        self,
        clock: HandClock | None = None,
        *,
        storage: Given = "memory://",
        within: Literal["commit", "at_once"] = "commit",
    ) -> Testing:
        """`async with app.testing() as t:` uses a new storage in memory, and a clock that the test moves.

        Tasks, middleware and listeners stay; afterwards the app uses its own storage and clock again. Jobs of
        `within=session` are stored when the session commits ("at_once": immediately). Raises BadOption. See
        `treadle.testing`.

        storage  another storage: a URL (not http://), or a function from a clock to a storage that reads it. It must be
                 empty (NotEmpty), and is emptied at the end
        """
        from treadle.testing.app import Testing

        return Testing(self, clock, storage=storage, within=within)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._leave(even_if_lazily=True)  # a worker that still runs continues, and closes it

    async def prepare(self) -> None:
        """Store the declared schedules and limits; every worker does this when it starts. The limits are stored last,
        with the mark that `prepare_again` looks for."""
        only = self.storage.capabilities.queues
        if only and self._declares():
            log.warning(
                "the token is bound to %s, so the declared schedules and limits are not stored; a worker with a token "
                "for every queue, or one on the storage itself, stores them",
                ", ".join(only),
            )
        if only:
            return
        if self._declares():
            await self.schedules.store()
            await self.limits.store()
        if any(task.constants.get("limits") for task in self.tasks.values()):
            rules = frozenset(use.key for use in await self.limits.list(use=False))
            for name, limit, guess in without_rule(self.tasks, rules):
                log.warning("task %s: its limit %r has no rule, so it limits nothing%s", name, limit, guess)

    async def prepare_again(self) -> bool:
        """Store them again if the storage has lost them, for example a server that was restarted empty. Returns whether
        it had."""
        if not self._declares() or await self.limits.is_stored():
            return False
        await self.prepare()
        return True

    def _declares(self) -> bool:
        return self.limits.declares or self.schedules.declares

    def _new_id(self) -> str:
        return self._maker.new_id()

    def _tell_error(self, error: BaseException) -> None:
        if self.emitter.wants("worker.error"):
            self.emitter.emit(Event(name="worker.error", error=error))

    async def _opened(self) -> Storage:
        """The storage, opened at its first use. The app then stays open until `close`, or until its event loop ends."""
        return guarded(await self._life.opened())

    @property
    def storage(self) -> Storage:
        """The storage, as the code that runs here may use it: on another event loop, a proxy."""
        return self._life.seen_from_here()

    def bound(self, within: Any) -> Bound:
        """The storage's verbs inside a transaction of the user. It does not open the app, because opening could wait
        for that very transaction."""
        return bound_to(self.storage, within)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the app is open; None while it is closed."""
        return self._life.loop

    def _new_life(self, storage: Storage | None) -> Lifecycle:
        alone = storage is not None or (self.url or "").startswith("memory:")  # no other storage object has its jobs
        return Lifecycle(
            storage or self._connect(),
            None if alone else self._connect,
            self.url is not None,
            self._stop_inline,
            self._say_where,
            self._forget,
        )

    def _say_where(self) -> None:
        self._moved.forget()
        if self._by_default:
            log.info("jobs live in %s", self.url)

    def _forget(self) -> None:
        """In a forked child: drop everything that runs on event loops of the parent."""
        self._inline.forget()
        self.sync.forget()

    async def _run_inline(self, ids: Sequence[str]) -> None:
        await self._inline.run(ids)

    async def _stop_inline(self) -> None:
        await self._inline.stop()

    def _connect(self) -> Storage:
        if self._ports is not None:
            return compose(self._ports, now=self._clock, namespace=self._namespace)
        return connect(self.url or "", now=self._clock, token=self._token)

    async def results(self, ids: Sequence[str]) -> list[Any]:
        """For each of these jobs, in order, its result, or the exception that says why it has none."""
        return await self.client.results(ids)
