"""`App`, what users see of an app. Its state is in an `AppCore`.

Each app has a task registry of its own; there is no global one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from treadle.admin import Audit, Dead, EventFeed, Jobs, Limits, MetricsReader, Queues, Workflows
from treadle.app.core import AppCore, injectors
from treadle.app.declare import Declarations
from treadle.app.decorators import EnqueueOptions
from treadle.app.storage_choice import StorageChoice
from treadle.app.sync import Portal
from treadle.concurrency.spawn import answers_coroutine
from treadle.core import clock as clocks
from treadle.core import config
from treadle.core.awaiting import async_block, report_dropped
from treadle.core.errors import BadOption
from treadle.core.events import Event, Listener
from treadle.core.ids import IdFactory
from treadle.core.job import Continuation, Job
from treadle.execution import every_app, middleware
from treadle.policy import judge
from treadle.policy.misfits import Misfits
from treadle.policy.retry import Retry
from treadle.ports import name_of_space, three
from treadle.resources import Overrides
from treadle.scheduling import Schedules
from treadle.serialization import call_codec as codecs
from treadle.storage.contract import Storage
from treadle.tasks.declaration import names_to_hide
from treadle.tasks.options import Seconds, Sizes
from treadle.tasks.task import Task
from treadle.tasks.when import HasId, When

if TYPE_CHECKING:
    from pathlib import Path

    from treadle.blobs import Objects
    from treadle.outbox import Outbox
    from treadle.serialization import Keys
    from treadle.storage import Wrapping
    from treadle.testing.app import Testing
    from treadle.testing.clock import HandClock
    from treadle.testing.given_storage import Given

T = TypeVar("T")
W = TypeVar("W")


@async_block("write `async with app:`; synchronous code needs no block, only `app.sync.enqueue(...)` and the like")
class App(Declarations):
    """A set of tasks, and the storage of their jobs.

    url       sqlite:///file.db, redis://, http:// ..., memory://, see `treadle.storage.connect`; None: TREADLE_URL,
              otherwise `treadle.db` in the folder of the file that creates the app
    storage   a storage object, instead of a url
    ports     (queue, pubsub, store) of `treadle.ports`, instead of a url: jobs in your own systems
    namespace with ports: prefix of all their keys and channels; default "treadle"
    retry     default retry policy; a task's own policy overrides the fields that it sets
    on_error  (exception, Failure) -> Retry.now() | Retry.after(...) | Defer(...) | Abort(...) | None, for tasks without
              their own; or Retry.only(...)
    codec     converts arguments and results to text and back; None: by their annotations
    sizes     the largest payload, result and headers, in bytes
    token     the access token for an http:// url; None: TREADLE_TOKEN
    blobs     where large arguments, results and steps are stored, apart from their rows: a folder that all programs
              share, or s3://bucket/prefix; None: in the rows
    offload   bytes from which on a text is large [default: 65,536]
    keys      Keys(...) that encrypt arguments, results, steps and errors; None: they are stored as they are
    redact    names of more values that people must not see, see docs/guides/payloads.md
    outbox    Outbox(...) in the database with your data: `within=session` writes the jobs there, and they are delivered
              over to the storage after the commit. For jobs that are not in the same database
    misfits   what becomes of a job whose arguments this code cannot read, while another live worker of its queue has
              another version of its task, as in a rolling deployment. "wait": the worker releases it, uncounted, for 10
              minutes at most [default]; or the seconds. "fail": it fails at once, as it always does if there is no such
              worker
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
        outbox: Outbox | None = None,
        misfits: Misfits = "wait",
        blobs: str | Path | Objects | None = None,
        offload: int | None = None,
        keys: Keys | None = None,
        redact: Sequence[str] = (),
    ) -> None:
        if sum(source is not None for source in (url, storage, ports)) > 1:
            raise BadOption("storage", "give only one of url=, storage= and ports=")
        three_ports, space = (None if ports is None else three(ports)), name_of_space(namespace, ports)
        by_url = storage is None and ports is None
        choice = StorageChoice(
            url=config.storage_url(url, config.caller_file()) if by_url else None,
            storage=storage,
            ports=three_ports,
            namespace=space,
            clock=clock,
            token=token or config.token(),
            by_default=by_url and url is None,
            outbox=None if outbox is None else _checked_outbox(outbox),
            wrap=_wrap(blobs, offload, keys),
        )
        if codec is not None:
            codecs.CallCodec("a task without annotations", lambda value: value, codec)  # raises BadCodec
        self._core = AppCore(
            choice,
            retry=retry,
            on_error=on_error,
            codec=codec,
            sizes=sizes,
            ids=ids,
            random=random,
            misfits=misfits,
            redact=names_to_hide(redact),
        )
        self._sync = Portal(self._core)
        every_app.joined(self)

    # --- its parts

    @property
    def jobs(self) -> Jobs:
        """Reads, cancels, retries and signals stored jobs."""
        return self._core.jobs

    @property
    def dead(self) -> Dead:
        """The failed jobs: lists, retries and deletes them."""
        return self._core.dead

    @property
    def limits(self) -> Limits:
        """Declares, changes and lists limits."""
        return self._core.limits

    @property
    def queues(self) -> Queues:
        """Pauses and resumes queues, and counts their jobs."""
        return self._core.queues

    @property
    def workflows(self) -> Workflows:
        """Lists workflows, and draws one as a graph."""
        return self._core.workflows

    @property
    def metrics(self) -> MetricsReader:
        """Reads how many jobs ended, and how long they ran and were queued, over time."""
        return self._core.metrics

    @property
    def audit(self) -> Audit:
        """Records and lists which operator did what."""
        return self._core.audit

    @property
    def schedules(self) -> Schedules:
        """Lists, pauses and triggers schedules."""
        return self._core.schedules

    @property
    def outbox(self) -> Outbox | None:
        """The outbox, to count, list, retry and delete the jobs that wait for their delivery; None: there is none."""
        return self._core.choice.outbox

    @property
    def sync(self) -> Portal:
        """The same calls for code without an event loop: `app.sync.enqueue(...)`."""
        return self._sync

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """The registered tasks by name, read-only."""
        return MappingProxyType(self._core.declared)

    @property
    def url(self) -> str | None:
        """The storage URL; None for a storage object and for ports."""
        return self._core.url

    @property
    def storage(self) -> Storage:
        """The storage, as the code that runs here may use it: on another event loop, a proxy."""
        return self._core.storage

    def on(self, *names: str) -> Callable[[Listener], Listener]:
        """Register a function (async or not) as a listener of these events of this process; "*" is all events. Raises
        BadOption for an unknown event."""

        def decorate(listener: Listener) -> Listener:
            for name in names:
                self._core.emitter.on(name, listener)
                if name == "workflow.orphaned":
                    self._core.orphans.listen()
            return listener

        return decorate

    def events(self, *, everywhere: bool = False) -> AsyncIterator[Event]:
        """The events of this process, from this call on.

        everywhere  the job events of all processes on this storage instead, read from the rows at least once a second:
                    of two changes between two reads only the later one is returned
        """
        core = self._core
        return EventFeed(core.opened, core.now).stream() if everywhere else core.emitter.stream()

    def middleware(self, layer: Any) -> Any:
        """Add a Middleware (class or instance) inside those added before. Returns its argument."""
        checked = middleware.check(layer)
        checked.added(self)
        self._core.layers.append(checked)
        return layer

    # --- sending

    @overload
    def enqueue(  # type: ignore[overload-overlap]  # one spec is the special case of many
        self, spec: Continuation[T, W], /, **options: Unpack[EnqueueOptions]
    ) -> Coroutine[Any, Any, Job[T, W]]: ...
    @overload
    def enqueue(
        self, specs: Iterable[Continuation[T, W]], /, **options: Unpack[EnqueueOptions]
    ) -> Coroutine[Any, Any, list[Job[T, W]]]: ...
    @overload
    def enqueue(
        self,
        *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
        **options: Unpack[EnqueueOptions],
    ) -> Coroutine[Any, Any, list[Job[Any, Any]]]: ...
    @answers_coroutine
    def enqueue(
        self,
        *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
        after: HasId | str | Iterable[HasId | str] | None = None,
        when: When | None = None,
        wait_timeout: Seconds | None = None,
        within: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """Store specs and flows in one round trip, all or none; the jobs are durable when it returns.

        Returns one Job for one spec or flow, otherwise a list. The Job of a flow ends when the whole flow has ended.

        after, when, wait_timeout  make all of them wait, like the options of these names
        within                     your own open transaction on the storage's database: a connection or a session. The
                                   jobs are committed or rolled back with it (SQLite, PostgreSQL, or any storage with
                                   an outbox)
        Raises UnknownUpstream, KeyHeld, IdTaken, QueueFull, BadOption, BadSession, Unsupported and StorageError, and
        then stores nothing. After StorageUnavailable it is unknown whether the jobs are stored; repeating the call with
        the same specs is safe.
        """
        unbegun: list[Any] = []
        work = self._core.enqueue(specs, unbegun, within, after=after, when=when, wait_timeout=wait_timeout)
        return report_dropped("jobs", work, unbegun)

    # --- life

    async def open(self) -> Storage:
        """Open the storage unless it is open. Each `open` needs its own `release`.

        The storage belongs to the event loop that opens it first. Calls on other loops are carried out on that loop, so
        code on it must not block. Raises StorageUnavailable, and EventLoopError if that loop does not run.
        """
        return await self._core.open()

    async def release(self) -> None:
        """Undo one `open`. The last one closes the storage, unless a call without `open` has opened it."""
        await self._core.release()

    async def close(self) -> None:
        """Stop the inline worker and close the storage, on whatever loop it is open. A second call does nothing. If the
        caller is cancelled, closing continues."""
        await self._core.close()

    def testing(
        self,
        clock: HandClock | None = None,
        *,
        storage: Given = "memory://",
        within: Literal["commit", "at_once"] = "commit",
        overrides: Overrides | None = None,
    ) -> Testing:
        """`async with app.testing() as t:` uses a new storage in memory, and a clock that the test moves.

        Tasks, middleware and listeners stay; afterwards the app uses its own storage and clock again. Jobs of
        `within=session` are stored when the session commits ("at_once": immediately). Raises BadOption. See
        `treadle.testing`.

        storage    another storage: a URL (not http://), or a function from a clock to a storage that reads it. It must
                   be empty (NotEmpty), and is emptied at the end
        overrides  functions that provide values in place of others: {get_session: fake_session, lifespan: fake_state}
        """
        from treadle.testing.app import Testing

        return Testing(self._core, clock, storage=storage, within=within, overrides=overrides)

    @contextmanager
    def override(self, overrides: Overrides) -> Iterator[None]:
        """Replace providers of `depends(...)`, or the lifespan, for the workers that start in this block: `with
        app.override({get_session: fake_session}):`, for a test with a real worker. Raises BadOption for a provider that
        no task uses, and while a worker of this app runs."""
        resources = self._core.resources
        resources.check(overrides, injectors(self._core))
        with resources.overridden(overrides):
            yield

    async def __aenter__(self) -> Self:
        await self._core.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._core.leave(even_if_lazily=True)  # a worker that still runs continues, and closes it


def _wrap(blobs: object, offload: object, keys: object) -> Wrapping | None:
    if blobs is None and offload is None and keys is None:
        return None
    from treadle.storage import Wrapping  # most apps have neither

    return Wrapping.of(blobs, offload, keys)


def _checked_outbox(outbox: object) -> Outbox:
    from treadle.outbox import check_outbox  # most apps have no outbox

    return check_outbox(outbox)
