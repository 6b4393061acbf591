"""`JobRun`, the engine's own record of one run of a job.

The worker, the runner and durable code read and change it. Users see the parts of it that `context.Context` shows.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.concurrency import forks
from treadle.concurrency.threads import Threads
from treadle.core import defaults, ids
from treadle.core.errors import NestedTransaction
from treadle.core.model import Outcome, Pairs, Record
from treadle.core.own_checkpoints import own_checkpoints
from treadle.durable import Durable, DurableBackend
from treadle.execution.transaction import Open
from treadle.policy import attempts
from treadle.policy.run_log import RunLog
from treadle.resources import Life
from treadle.storage.contract import Storage

Results = Callable[[Sequence[str]], Awaitable[list[Any]]]
"""From ids of jobs to, for each, its result or the exception that says why it has none."""


MEMO: Final = "treadle:memo:"  # prefix of the checkpoints that hold what middleware keeps for later runs

ENDED: Final = object()
"""The place of a function that has ended. Keeping its asyncio task would be a reference cycle, because a task holds its
context variables. Collecting these cycles took 4 us a job, and sometimes blocked the loop for 20-40 ms."""


_counting = threading.Lock()


def _forked() -> None:
    global _counting  # noqa: PLW0603 - a fork changes it
    _counting = threading.Lock()  # a thread that the fork did not copy may hold the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Site(NamedTuple):
    """Where jobs run; one for all runs of a worker.

    storage  None in a separate process
    loop     the worker's event loop; in a separate process, the one that runs its async resources
    life     the resources that are open there
    threads  where plain dependencies of async functions are made
    """

    storage: Storage | None
    loop: asyncio.AbstractEventLoop
    life: Life
    threads: Callable[[], Threads]


class JobRun(msgspec.Struct, eq=False):  # a Struct: 0.1 us to build; a class of this width: 0.35
    """One run of a job, from its claim until its outcome is stored.

    noted  called after each change of `note`, in any thread
    came   when the answer of the claim arrived, by this process's clock; 0: unknown
    sent   when the claim was sent, by the same clock
    """

    record: Record
    worker: str
    noted: Callable[[], None]
    results: Results | None = None
    durable_backend: DurableBackend | None = None
    site: Site | None = None
    carried: Pairs = ()  # checkpoints of the engine that go with the outcome, whatever that is
    durable: Durable | None = None  # made at its first use
    subject: Record | None = None  # the job that has ended, while its function runs to clean up
    limits: tuple[tuple[str, int], ...] = ()  # of a part of a job, whose `record` has those of the job; (): as there
    version: tuple[str, str] | None = None  # the checkpoint with the version of its task, if that has several
    suspended_as: Outcome | None = None  # the outcome of a run whose function slept or waits
    came: float = 0.0
    sent: float = 0.0
    began: float = 0.0  # when the run began, by this process's clock; a suspect waits for that until it runs alone
    place: object = None  # for an async function, the asyncio task that runs it; then ENDED
    note: str | None = None
    why: str | None = None  # why it must stop: timeout, deadline, lost or stop
    transaction: Open | None = None
    waits_for: futures.Future[Any] | None = None  # in a thread: an async dependency that is being made
    log: RunLog | None = None  # its captured log lines; None: not captured
    child_headers: dict[str, str] | None = None  # made at the first use of `Context.child_headers`
    kind: Literal["async", "thread", "process", "batch"] = "async"
    memo: dict[str, str] | None = None  # what middleware keeps for later runs; made at its first use
    on_wait: Callable[[], None] | None = None  # called before the function waits for another job
    spent: dict[str, int] | None = None  # limit -> real cost; replaced as a whole, as several threads may add to it
    on_spent: Callable[[dict[str, int]], None] | None = None  # called with `spent` after each change
    _stopped: threading.Event | None = None  # made at the first `wait`
    _stem: str = ""
    _numbers: count[int] | None = None  # made with the first job made here, as it takes 0.1 us
    _process: str = ""  # the tag of the process that `_numbers` belongs to

    def storage_time(self, now: float) -> float:
        """`now` of this process's clock, by the storage's clock: the time of the claim, and the time since its answer
        came. The answer's way is not counted, so this is never later than the storage's clock."""
        claimed = self.record.started_at
        if claimed is None:
            return now
        return claimed + max(0.0, now - self.came) if self.came else claimed

    def stop(self, why: str) -> None:
        """Ask the function to stop. The first reason is kept, except that any other reason replaces "stop"."""
        if self.why in (None, "stop"):
            self.why = why
            if self._stopped is not None:
                self._stopped.set()

    def wait(self, timeout: float) -> bool:
        """Sleep up to `timeout` seconds. Returns True as soon as the function should stop."""
        if self._stopped is None:
            self._stopped = threading.Event()
            if self.why is not None:
                self._stopped.set()
        return self._stopped.wait(timeout)

    def with_attempt(self, outcome: Outcome, ended_at: float, reason: str | None = None) -> Outcome:
        """The outcome of this run, which did not succeed, with its attempt for the history of the job."""
        return attempts.noted(self.record, outcome, self.worker, ended_at, (*self.carried, *self._memo_pairs()), reason)

    def with_carried(self, outcome: Outcome) -> Outcome:
        """The outcome with `carried`, for a run that does not count as an attempt."""
        carried = (*self.carried, *self._memo_pairs())
        return replace(outcome, checkpoints=(*outcome.checkpoints, *carried)) if carried else outcome

    def spend(self, costs: Mapping[str, int]) -> None:
        """Add to what this run has spent of its limits."""
        with _counting:
            before = self.spent or {}
            sums = {key: min(before.get(key, 0) + cost, defaults.MAX_COUNT) for key, cost in costs.items()}
            self.spent = spent = {**before, **sums}
            if self.on_spent is not None:
                self.on_spent(spent)  # in the lock: the sums must arrive in order

    def with_spent(self, outcome: Outcome) -> Outcome:
        """The outcome with what this run has spent, whatever the outcome is."""
        return replace(outcome, spent=tuple(self.spent.items())) if self.spent else outcome

    def read_memo(self) -> dict[str, str]:
        """The texts that middleware stored in earlier runs and in this one, by name."""
        if self.memo is None:
            own = own_checkpoints(self.record.checkpoints)
            self.memo = {name[len(MEMO) :]: text for name, text in own.items() if name.startswith(MEMO)}
        return self.memo

    def _memo_pairs(self) -> Pairs:
        """The checkpoints of the memo. A job that has succeeded does not run again, so no memo is stored for it."""
        return tuple([(MEMO + name, text) for name, text in self.memo.items()]) if self.memo else ()

    def keep_note(self, note: str) -> None:
        """Store a note with the next heartbeat."""
        self.note = note
        self.noted()

    def new_id(self) -> str:
        """The id of the next job made here: derived from the run, and rising, so that jobs are queued, and their
        results reduced, in the order in which they were made."""
        numbers = self._numbers
        if numbers is None or self._process is not forks.tag:
            with _counting:  # the function may use several threads
                if self._numbers is None or self._process is not forks.tag:
                    # After a fork, two processes of one run count separately: their ids must differ.
                    stem, tag = ids.derived(self.record.job.id, self.record.version), forks.tag
                    self._stem = f"{stem}-{tag}" if tag else stem
                    self._numbers, self._process = count(1), tag
                numbers = self._numbers
        return f"{self._stem}-{next(numbers):06d}"


enter: Callable[[JobRun], object] = ids.running.set
batch_here: ContextVar[tuple[JobRun, ...]] = ContextVar("treadle_batch", default=())  # the runs of a batch call


def running_here() -> JobRun | None:
    """The run that called this code; None outside a job."""
    run: JobRun | None = ids.running.get(None)
    return run


def waits_here() -> None:
    """Note that the code which runs here is about to wait for another job, which may need this process."""
    here = running_here()
    for run in batch_here.get() if here is None else (here,):
        if run.on_wait is not None:
            run.on_wait()


def is_of_run(within: Any) -> bool:
    """Whether this is the transaction that the running job opened with `current().transaction()`."""
    run = ids.running.get(None)
    opened = None if run is None else run.transaction
    return opened is not None and opened.raw is within


def in_sole_transaction() -> bool:
    """Whether the job that runs here has a transaction open for which every other write to the storage waits."""
    here: JobRun | None = ids.running.get(None)
    return here is not None and here.transaction is not None and here.transaction.alone


def refuse_to_wait(what: str) -> None:
    """Raise NestedTransaction if the job that runs here has a transaction open for which the operation would wait."""
    if in_sole_transaction():
        raise NestedTransaction(
            f"{what} inside current().transaction() would wait for that transaction, because its storage has one "
            "writer at a time: give it within=tx, or do it in another job"
        )
