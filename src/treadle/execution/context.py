"""`current()`, through which a running function reads its own job, and takes steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, ParamSpec, TypeVar

import msgspec

from treadle.core import defaults, ids, trace_ids
from treadle.core.clock import moment
from treadle.core.errors import BadOption, NotRunning
from treadle.core.model import Record
from treadle.core.ranges import MOST_TEXT, a_text
from treadle.durable import Part, left_of_try
from treadle.execution.durable_context import DurableContext
from treadle.execution.job_run import JobRun, batch_here, running_here
from treadle.execution.transaction import Scope
from treadle.policy import judge
from treadle.policy.costs import costs_of
from treadle.policy.retry import seconds
from treadle.resources import state_of

P = ParamSpec("P")
T = TypeVar("T")


class Context(DurableContext, frozen=True):
    """The job that runs here: the result of `current()`. Reading it costs nothing; `progress` is stored with the next
    heartbeat. Two of them are equal if they show the same run."""

    def __repr__(self) -> str:
        return f"<{self.task} {self.id}, attempt {self.attempt}>"

    @property
    def record(self) -> Record:
        """The row of the job as this run claimed it."""
        return self._run.record

    @property
    def worker(self) -> str:
        """The name of the worker that runs it."""
        return self._run.worker

    @property
    def id(self) -> str:
        """The same in every attempt, and in the cleanup of the job: an idempotency key for external effects."""
        subject = self._run.subject
        return self.record.job.id if subject is None else subject.job.id

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.record.job.task

    @property
    def attempt(self) -> int:
        """1 for the first attempt; runs that were deferred or lost do not count."""
        return self.record.attempt + (not self.record.function_done)

    @property
    def lost(self) -> int:
        """How many leases of this job have expired."""
        return self.record.lost

    @property
    def version(self) -> int:
        """Rises with every claim: a fencing token for your own writes ("only if the stored token is lower")."""
        subject = self._run.subject
        return self.record.version if subject is None else subject.version + self.record.version

    @property
    def workflow(self) -> str:
        """The id of the first job of this workflow, which may be this job."""
        return self.record.job.root or self.record.job.id

    @property
    def parent(self) -> str | None:
        """The id of the job that made this one; None for a job made outside a task."""
        return self.record.job.parent

    @property
    def after(self) -> tuple[str, ...]:
        """The ids of the jobs it waited for. If another row was returned for one (known id, held key), that row's
        id."""
        return judge.upstreams(self.record)

    @property
    def deadline(self) -> datetime | None:
        """When it must have ended; None without a deadline."""
        deadline_at = self.record.deadline_at
        return None if deadline_at is None else moment(deadline_at)

    @property
    def error(self) -> str | None:
        """The stored error of the last attempt; None in the first one."""
        return self.record.error

    @property
    def headers(self) -> Mapping[str, str]:
        """A copy of its headers."""
        return dict(self.record.job.headers)

    @property
    def child_headers(self) -> dict[str, str]:
        """Headers for the jobs that this run makes: those it returns, and those it enqueues. Middleware may add some in
        `run` or `call`. They replace headers that a returned job inherits; headers of the new job itself are kept."""
        run = self._run
        if run.child_headers is None:
            run.child_headers = {}
        return run.child_headers

    @property
    def kind(self) -> Literal["async", "thread", "process", "batch"]:
        """How its function runs. "batch": one call for several jobs."""
        return self._run.kind

    def memo(self, name: str) -> str | None:
        """The text that this run, or an earlier run of the job, stored under that name; None: there is none."""
        return self._run.read_memo().get(name)

    def set_memo(self, name: str, text: str) -> None:
        """Store a short text with the outcome of this run, for the middleware of later runs of this job. A run that
        succeeds stores nothing, and a run whose worker dies neither. Not in a function of `kind="process"`. Raises
        BadOption for a name of more than 40 or a text of more than 500 characters, and for more than 8 names."""
        memo = self._run.read_memo()
        if not 0 < len(name) <= 40 or len(text) > 500:
            raise BadOption("memo", f"expected a name of 1-40 and a text of at most 500 characters, found {name!r:.60}")
        if name not in memo and len(memo) >= 8:
            raise BadOption("memo", f"expected at most 8 names, found {name!r} in addition to {sorted(memo)}")
        memo[name] = text

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels, by which `app.jobs.list(label=...)` finds it."""
        return self.record.job.labels

    @property
    def cancelled(self) -> bool:
        """Whether the function should stop: it timed out, also as a step, the job was cancelled or lost, or the worker
        stops. Async functions are cancelled; functions in threads must check this regularly, or use `wait`."""
        return self._run.why is not None or left_of_try() == 0.0

    @property
    def state(self) -> Any:
        """The value that the `@app.lifespan` of its app yielded in this process. `lifespan.state` is the same
        with its type. Raises NotRunning if the app has no lifespan."""
        return state_of(self._run.site)

    def wait(self, timeout: float) -> bool:
        """In a thread: sleep up to `timeout` seconds. Returns True as soon as the function should stop."""
        remaining = left_of_try()
        if remaining is None or remaining > timeout:
            return self._run.wait(timeout)
        self._run.wait(remaining)
        return True

    def transaction(self, timeout: float | timedelta = defaults.TRANSACTION) -> Scope:
        """A block whose writes are committed together with the job's ending and its children, or rolled back.

        Use `async with current().transaction() as tx:`, or `with` in a thread. `tx` is a connection to the storage's
        database: sqlite3.Connection; psycopg.AsyncConnection, or psycopg.Connection in a thread. Do not commit it: the
        worker does, when the function has returned. If the function raises, if the lease was lost, or `timeout` seconds
        after the block began, everything is rolled back.

        Raises Unsupported on storages without transactions, Stale if the lease was lost, NestedTransaction for a second
        block in one run, TimeoutError at the end of a block that took too long, and StorageUnavailable.
        """
        site = self._run.site
        if site is None or site.storage is None:
            raise NotRunning('transaction() does not work in a function of kind="process"; use a thread or a coroutine')
        if isinstance(self._run.durable, Part):
            self._run.durable.refuse_transaction()
        return Scope(site.storage, self.record, seconds(timeout, "timeout"), site.loop, self._run)

    async def upstream(self) -> list[Any]:
        """The results of the jobs it waited for, in the order of `after`. A job that did not succeed is represented by
        the exception that its `result()` would raise. Raises StorageError, and NotRunning in a separate process."""
        if not self.after:
            return []
        results = self._run.results
        if results is None:
            raise NotRunning('upstream() does not work in a function of kind="process"; use pass_result=True')
        return await results(self.after)

    def spent(self, costs: Mapping[str, int] | None = None, /, **by_name: int) -> None:
        """Say what this run has really spent of its limits: `current().spent(tokens=1240)`. Calls add up, and the sums
        are stored with the end of the run, whatever that is. Rates then count them in place of the job's costs. A
        limit that no call names keeps its cost.

        by_name  the name of a limit before ":"; it stands for each of the job's limits with that name
        costs    the same by the names as the job has them, such as {"tokens:ann": 1240}

        In a step with limits, its try is such a run, and other calls do not count. Raises BadOption for a limit that
        the job does not name, and for a cost below 0.
        """
        durable = self._run.durable
        if not isinstance(durable, Part) or durable.is_in_step():
            self._run.spend(costs_of(self._run.limits or self.record.job.limits, costs, by_name))

    async def progress(self, fraction: float, text: str = "") -> None:
        """Report progress, 0 to 1, with a short text; the next heartbeat stores it in the row's `note`. Raises
        BadOption."""
        self.report(fraction, text)

    def report(self, fraction: float, text: str = "") -> None:
        """`progress` for functions in threads and processes."""
        number: object = fraction
        if not isinstance(number, int | float) or not 0 <= fraction <= 1:
            raise BadOption("progress", f"expected 0 to 1, found {fraction!r}")
        shown = text.encode(errors="backslashreplace").decode()  # file names may contain lone surrogates
        note = msgspec.json.encode({"progress": float(fraction), "text": shown}).decode()
        a_text("progress", note, MOST_TEXT)  # a heartbeat with a longer note would renew no lease of this worker
        self._run.keep_note(note)


def current() -> Context:
    """The job that runs here. Raises NotRunning outside a job, and in a batch."""
    run: JobRun | None = ids.running.get(None)  # `running_here`, in each step of a replay
    if run is None:
        if many := batch_here.get():
            raise NotRunning(f"current() was called in a batch of {len(many)} jobs: use current_batch()")
        raise NotRunning("current() was called outside a job: call it in a task while a worker runs it")
    return Context(run)


def current_batch() -> tuple[Context, ...]:
    """The jobs of the batch that runs here, in the order of its items. Raises NotRunning outside a batch."""
    runs = batch_here.get()
    if not runs:
        raise NotRunning("current_batch() was called outside a batch")
    return tuple(map(Context, runs))


class JobFilter(logging.Filter):
    """Adds job, task, attempt, worker, queue and workflow to log records, and trace_id and span_id of the OpenTelemetry
    span in which they were made; "-" outside a job, or outside a span. Attributes that a record already has are kept.
    Use: `handler.addFilter(JobFilter())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        values = OUTSIDE if (here := running_here()) is None else log_fields(here)
        for name, value in values.items():
            record.__dict__.setdefault(name, value)
        trace = trace_ids.active()
        record.__dict__.setdefault("trace_id", trace.trace_id if trace else "-")
        record.__dict__.setdefault("span_id", trace.span_id if trace else "-")
        return True


OUTSIDE: Final = dict.fromkeys(("job", "task", "attempt", "worker", "queue", "workflow"), "-")


def log_fields(run: JobRun) -> dict[str, Any]:
    """The attributes of a log record that is made in this run."""
    job = run.record.job
    return {
        "job": job.id,
        "task": job.task,
        "attempt": run.record.attempt + 1,
        "worker": run.worker,
        "queue": job.queue,
        "workflow": job.root or job.id,
    }
