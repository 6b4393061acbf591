"""What a running function may ask about its own job: `current()`.

Without it a task would not know its id, its fencing token, or that it should stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final, ParamSpec, TypeVar, overload

import msgspec

from treadle.concurrency import forks
from treadle.core import defaults, ids
from treadle.core.clock import moment
from treadle.core.model import Outcome, Record
from treadle.durable.once import Once
from treadle.durable.steps import Durable, DurableBackend
from treadle.errors import BadOption, NestedTransaction, TreadleError
from treadle.execution.transaction import Open, Scope
from treadle.policy import judge
from treadle.policy.retry import seconds
from treadle.storage.contract import Storage

P = ParamSpec("P")
T = TypeVar("T")


class NotRunning(TreadleError, RuntimeError):
    """`current()` was called outside a job."""


Results = Callable[[Sequence[str]], Awaitable[list[Any]]]
"""Ids to what became of them: a result, or the exception that says why there is none."""


ENDED: Final = object()
"""Where a function runs that has ended. A task holds its context variables, so one kept here would be a cycle, and each
job something for the garbage collector: it took 4 us a job, and held the loop for 20-40 ms now and then."""


_counting = threading.Lock()


def _forked() -> None:
    global _counting  # noqa: PLW0603 - a fork changes it
    _counting = threading.Lock()  # a thread that the fork did not copy may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Context(msgspec.Struct, eq=False, weakref=True):  # a Struct: 0.1 us to make, a class of this width 0.35
    """The job that runs here. Reading it costs nothing; `progress` reaches the storage with the next heartbeat."""

    record: Record
    worker: str
    _noted: Callable[[], None]
    _results: Results | None = None
    _home: DurableBackend | None = None
    durable: Durable | None = None  # made when it is first asked for
    leaving: Outcome | None = None  # what becomes of it, once its function was left to sleep or wait
    began: float = 0.0  # set when it runs, by our clock
    place: object = None  # where the function runs, if it is async: the asyncio task; then ENDED
    note: str | None = None
    why: str | None = None  # why it is to stop: timeout, deadline, lost, stop
    site: tuple[Storage, asyncio.AbstractEventLoop] | None = None  # where the job lives, and its worker's loop
    open: Open | None = None  # its transaction
    _cancelled: threading.Event | None = None
    _stem: str = ""
    _numbers: count[int] | None = None  # made with the first job made here: 0.1 us for each that makes none
    _process: str = ""  # the tag of the process that `_numbers` belongs to

    def __repr__(self) -> str:
        return f"<{self.task} {self.id}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """Stable across attempts: the idempotency key for effects outside."""
        return self.record.job.id

    @property
    def task(self) -> str:
        return self.record.job.task

    @property
    def attempt(self) -> int:
        """1 for the first try; tries that were deferred or lost do not count."""
        return self.record.attempt + 1

    @property
    def lost(self) -> int:
        """How many leases ran out on this job before."""
        return self.record.lost

    @property
    def version(self) -> int:
        """Rises with every claim: a fencing token for your own writes ("only if the stored token is lower")."""
        return self.record.version

    @property
    def workflow(self) -> str:
        """The id of the first job of this workflow; its own if it is that."""
        return self.record.job.root or self.record.job.id

    @property
    def parent(self) -> str | None:
        return self.record.job.parent

    @property
    def after(self) -> tuple[str, ...]:
        """The ids of the jobs it waited for. Where an id was known or a key was held: of the job that answered."""
        return judge.upstreams(self.record)

    @property
    def deadline(self) -> datetime | None:
        at = self.record.deadline_at
        return None if at is None else moment(at)

    @property
    def error(self) -> str | None:
        """Why the last attempt failed, as stored; None on the first."""
        return self.record.error

    @property
    def headers(self) -> Mapping[str, str]:
        return dict(self.record.job.headers)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.record.job.labels

    @property
    def cancelled(self) -> bool:
        """Whether the function should stop: time is up, the job was cancelled or lost, or the worker stops.
        Async functions are cancelled; those in threads look here now and then, or `wait`."""
        return self.why is not None

    def wait(self, timeout: float) -> bool:
        """In a thread: sleep up to `timeout` seconds; True as soon as the function should stop."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self.why is not None:
                self._cancelled.set()
        return self._cancelled.wait(timeout)

    def stop(self, why: str) -> None:
        """Tell the function to stop. The first reason stays; but that the worker stops gives way to any other."""
        if self.why in (None, "stop"):
            self.why = why
            if self._cancelled is not None:
                self._cancelled.set()

    def transaction(self, timeout: float | timedelta = defaults.TRANSACTION) -> Scope:
        """A block whose writes are committed with the job's ending, its children and all, or rolled back.

        `async with current().transaction() as tx:`, in a thread `with`. `tx` is a connection to the database the jobs
        live in: sqlite3.Connection; psycopg.AsyncConnection, or psycopg.Connection in a thread. Never commit it: that
        is done when the function has returned. If it raises, if the lease was lost, or `timeout` seconds after the
        block began, all is rolled back.

        Raises Unsupported on storages without transactions, Stale if the lease was lost, NestedTransaction for a
        second block in one run, TimeoutError at the end of a block that took too long, StorageUnavailable.
        """
        if self.site is None:
            raise NotRunning("transaction() cannot be used in a process of its own; use a thread or a coroutine")
        storage, loop = self.site
        return Scope(storage, self.record, seconds(timeout, "timeout"), loop, self)

    # --- durable code

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a function once in the life of this job: `await current().step("charge", charge, order)`. Later runs are
        answered what it returned. When this returns, that is stored; who dies before runs the function again.

        An async function is awaited, a plain one runs in a thread. The answer is what its codec gives back, by the
        function's return annotation. A function that raises is not remembered. The second step of a name is "name#2".
        Raises BadStep, StepMismatch, TooLarge, BadResult.
        """
        return self._durably(name).step(name, function, args, kwargs)

    async def sleep(
        self, length: float | timedelta | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> None:
        """Sleep for so many seconds, or until a moment, without a slot: the function is left here by an exception that
        `except Exception` does not catch, and runs again from its top when it is time. Raises BadStep, StepMismatch."""
        durable = self._durably(name)
        durable.alone(name)
        await durable.sleep(durable.memo.ask(f"sleep:{name}"), length, until)

    @overload
    async def wait_for(self, name: str, timeout: float | timedelta | None = None) -> Any: ...
    @overload
    async def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> T: ...
    async def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Any:
        """The value of `app.jobs.signal(id, name, value)`, waited for without a slot, as `sleep` does; it may have come
        before. `returns` is the type to read it as.

        Raises TimeoutError after `timeout` seconds (the name may be waited for again), BadStep, StepMismatch.
        """
        durable = self._durably(name)
        durable.alone(name)
        return await durable.wait_for(name, durable.memo.ask(f"wait:{name}"), timeout, returns)

    def once(self, key: str, keep: float | timedelta = defaults.ONCE) -> Once:
        """`async with current().once("report:monday") as first:`, in threads `with`. True for one job of all that ask
        for this key within `keep` seconds; in later runs of that job too. Given back if the block raises or the attempt
        fails."""
        return Once(self._durably("once"), key, keep)

    def step_key(self, name: str | None = None) -> str:
        """An idempotency key for a step's effects outside: the same in every run, and when a dead job is retried.
        Without a name, that of the step whose function runs here."""
        return self._durably().key(name)

    @property
    def sync(self) -> Synchronous:
        """`step`, `sleep` and `wait_for` for functions in threads."""
        return Synchronous(self._durably("sync"))

    def _durably(self, step: str | None = None) -> Durable:
        if step is not None and self.open is not None:
            # On storages with one writer it would wait for itself; on all, a sleep would undo what the block wrote.
            raise NestedTransaction(
                f"{step!r}: take steps, and sleep, before current().transaction(); what follows is the end of the job"
            )
        if self.durable is None:
            if self._home is None:
                raise NotRunning(
                    "steps, sleeps and waits cannot be used in a process of its own: have an async task, or one in a "
                    "thread, take the steps, and wait for jobs of this one"
                )
            self.durable = Durable(self, self._home, self._home.codec(self.task))
        return self.durable

    def new_id(self) -> str:
        """The id of the next job made here: the same for the same run, another one for the next, and rising, so that
        jobs of one moment stand in line, and are folded, in the order they were made."""
        numbers = self._numbers
        if numbers is None or self._process is not forks.tag:
            with _counting:  # a function may have threads of its own
                if self._numbers is None or self._process is not forks.tag:
                    # Two processes of one run, as after a fork, count for themselves: their ids must differ.
                    stem, tag = ids.derived(self.id, self.version), forks.tag
                    self._stem = f"{stem}-{tag}" if tag else stem
                    self._numbers, self._process = count(1), tag
                numbers = self._numbers
        return f"{self._stem}-{next(numbers):06d}"

    async def upstream(self) -> list[Any]:
        """The results of the jobs it waited for, in the order of `after`. In the place of one that did not succeed
        stands the exception its `result()` would raise. Raises StorageError."""
        if not self.after:
            return []
        if self._results is None:
            raise NotRunning("upstream() cannot be asked in a process of its own; use pass_result=True")
        return await self._results(self.after)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Note how far it is, 0 to 1, and a word about it; others see it in the row's `note` after a moment."""
        self.report(fraction, text)

    def report(self, fraction: float, text: str = "") -> None:
        """`progress` for functions in threads and processes."""
        found: object = fraction
        if not isinstance(found, int | float) or not 0 <= fraction <= 1:
            raise BadOption("progress", f"expected 0 to 1, found {fraction!r}")
        shown = text.encode(errors="backslashreplace").decode()  # names of files may hold halves of characters
        self.keep_note(msgspec.json.encode({"progress": float(fraction), "text": shown}).decode())

    def keep_note(self, note: str) -> None:
        """Have a note saved by the next heartbeat."""
        self.note = note
        self._noted()


class Synchronous:
    """The durable code of a function in a thread: `current().sync`."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable

    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `current().step`; the function runs in this thread."""
        found: T = self._durable.step_here(name, function, args, kwargs)
        return found

    def sleep(
        self, length: float | timedelta | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> None:
        """As `current().sleep`."""
        durable = self._durable
        durable.alone(name, here=True)
        durable.wait_here(durable.sleep(durable.memo.ask(f"sleep:{name}"), length, until))

    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None) -> Any: ...
    @overload
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: type[T]) -> T: ...
    def wait_for(self, name: str, timeout: float | timedelta | None = None, *, returns: Any = Any) -> Any:
        """As `current().wait_for`."""
        durable = self._durable
        durable.alone(name, here=True)
        return durable.wait_here(durable.wait_for(name, durable.memo.ask(f"wait:{name}"), timeout, returns))


enter: Callable[[Context], object] = ids.running.set


_batch: ContextVar[tuple[Context, ...]] = ContextVar("treadle_batch", default=())
enter_batch = _batch.set


def current() -> Context:
    """The job this code runs in. Raises NotRunning outside of one."""
    found: Context | None = ids.running.get(None)
    if found is None:
        if many := _batch.get():
            raise NotRunning(f"current() was called in a batch of {len(many)} jobs: use current_batch()")
        raise NotRunning("current() was called outside a job: there is none running here")
    return found


def refuse_to_wait(what: str) -> None:
    """Raise NestedTransaction where the job that runs here holds a transaction that what is asked would wait for."""
    here: Context | None = ids.running.get(None)
    if here is not None and here.open is not None and here.open.alone:
        raise NestedTransaction(
            f"{what} inside current().transaction() would wait for that transaction, as its storage knows one writer "
            "at a time: give it within=tx, or do it in a job of its own"
        )


def current_batch() -> tuple[Context, ...]:
    """The jobs of the batch this code runs in, in the order of its items. Raises NotRunning outside of one."""
    found = _batch.get()
    if not found:
        raise NotRunning("current_batch() was called outside a batch")
    return found


class JobFilter(logging.Filter):
    """Adds job, task, attempt and worker to log records; "-" outside a job. Values that a record brings
    itself stay. `handler.addFilter(JobFilter())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        here: Context | None = ids.running.get(None)
        values: dict[str, Any] = {"job": "-", "task": "-", "attempt": "-", "worker": "-"}
        if here is not None:
            values = {"job": here.id, "task": here.task, "attempt": here.attempt, "worker": here.worker}
        for name, value in values.items():
            record.__dict__.setdefault(name, value)
        return True
