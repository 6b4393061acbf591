"""Runs the jobs that a Django test has enqueued, in its own thread, on its own connection, in its own transaction.

    from treadle.integrations.django.testing import run_due

    class Orders(TestCase):
        def test_a_mail_is_sent(self):
            self.client.post("/orders/", {"what": "a boat"})
            run_due()
            self.assertEqual(len(mail.outbox), 1)

A `TestCase` never commits, so no worker can see its jobs. `run_due` reads them through the connection of the test, runs
each function as a worker does, and stores the outcome in the same transaction. Jobs that would be stored after a
commit, or delivered from an outbox, it stores and delivers itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.db.models.signals import post_migrate
from msgspec.structs import replace

from treadle.concurrency.threads import Answer
from treadle.core.claim_ids import worker_name
from treadle.core.errors import UnknownUpstream
from treadle.core.model import NewJob, Outcome, Record, Settled, State
from treadle.execution import Ending, Runner, RunOutcome, middleware
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun
from treadle.integrations.django import results
from treadle.integrations.django.backend import AfterCommit, TreadleBackend
from treadle.integrations.django.compat import task_enqueued
from treadle.integrations.django.connections import borrowed, open_savepoints, tests_of
from treadle.integrations.django.database_app import DatabaseApp, connection_of
from treadle.integrations.django.joining import in_test_memory
from treadle.integrations.django.reading import in_outbox, read
from treadle.integrations.django.signals import send_finished
from treadle.policy import judge
from treadle.storage import at_once
from treadle.testing.sync_app import ends_test
from treadle.worker import name_of, outcome

WORKER = "test#1"


class Runaway(AssertionError):
    """More runs than the limit: jobs seem to create jobs without end."""


class Enqueued(NamedTuple):
    """A job that was enqueued by this thread.

    alias   the database whose transaction it belongs to; None: the backend has no database
    tests   the blocks of the TestCase in which it was enqueued: that of the class, and that of the test
    """

    store: DatabaseApp
    id: str
    alias: str | None
    tests: tuple[Any, ...]

    @property
    def tests_now(self) -> tuple[Any, ...]:
        return () if self.alias is None else tests_of(connections[self.alias])


class Noted(threading.local):
    """The jobs that this thread has enqueued, oldest first."""

    def __init__(self) -> None:
        self.jobs: deque[Enqueued] = deque(maxlen=100_000)


_noted = Noted()


def _note(sender: Any, task_result: Any, **kwargs: Any) -> None:
    backend = task_result.task.get_backend()
    if isinstance(backend, TreadleBackend):
        alias = backend.treadle.database
        known = alias if alias in connections.settings else None
        job = Enqueued(backend.store, task_result.id, known, ())
        _noted.jobs.append(job._replace(tests=job.tests_now))


def _forget(**kwargs: Any) -> None:
    _noted.jobs.clear()


task_enqueued.connect(_note, dispatch_uid="treadle.testing")  # this module is imported by tests only
post_migrate.connect(_forget, dispatch_uid="treadle.testing")  # a TransactionTestCase has flushed the database


def run_due(*, limit: int = 1_000, raise_errors: bool = False) -> int:
    """Run the jobs that are due, and the jobs that these enqueue -> the number of runs.

    Runs the jobs that this thread has enqueued in this test, or for all tests of its class. A TransactionTestCase
    flushes the database, so jobs that were enqueued before it are forgotten. Jobs for later, with `run_after` or after
    a failed try with a delay, stay. With commit="after", jobs are stored first if their block of `atomic` has ended;
    with "outbox", jobs that are due are delivered to their storage. Receivers of `task_started` and `task_finished` are
    called here.

    raise_errors  raise the first exception of a task, after its outcome was stored
    Raises Runaway after `limit` runs.
    """
    ran = 0
    jobs = _noted.jobs
    over: list[Enqueued] = []  # a job of the whole class runs again in its next test
    waiting: list[Enqueued] = []
    try:
        _store_committed()
        while jobs:
            job = jobs.popleft()
            if not set(job.tests) <= set(job.tests_now):
                continue  # a test that has ended left it
            row, due = _found(job)
            if row is None or row.state.final:
                over.append(job)
                continue
            waiting.append(job)
            if not due:
                continue
            if ran == limit:
                raise Runaway(
                    f"{limit:,} jobs were run and more are due, next {row.job.task}; give run_due a higher limit="
                )
            ran += 1
            # asgiref carries context variables back to its caller, and the run would stay the current one.
            error = copy_context().run(_run, job, row)
            _store_committed()
            if error is not None and raise_errors:
                raise error
            jobs.extend(waiting)  # one of them may have waited for this job; if it runs again, it is the last
            waiting.clear()
        return ran
    finally:
        jobs.extend(waiting)
        jobs.extend(job for job in over if job.tests != job.tests_now)


def _store_committed() -> None:
    """Store the jobs that wait for a commit, if the block that enqueued them has ended."""
    for connection in connections.all(initialized_only=True):
        within = open_savepoints(connection)
        for savepoints, call, *_ in list(connection.run_on_commit):
            if isinstance(call, AfterCommit) and not within & savepoints:
                call()


def _found(job: Enqueued) -> tuple[Record | None, bool]:
    """The row of a job, and whether it is due."""
    store = job.store
    if store.outbox is not None and not in_test_memory(store.app):
        held = _deliver(store, job.id)
        if held is not None:
            return held, False
    row = read(store, job.id)
    return row, row is not None and _is_due(store, row)


def _deliver(store: DatabaseApp, id: str) -> Record | None:
    """Deliver a job of the outbox, as a relay does after the commit -> None, or its row if it must stay there: it is
    for later, or waits for a job that is not delivered."""
    core = store.app._core
    assert core.outbox_tasks is not None
    assert store.app.outbox is not None
    if core.loop is not None:
        store.app.sync.call(core.outbox_tasks.idle())
    held = in_outbox(store, id)
    if held is None or held.job.delay > 0:
        return held
    with suppress(UnknownUpstream), transaction.atomic(using=store.outbox):
        jobs = at_once(store.app.outbox._within(connection_of(store), None).take([id]))
        store.app.sync.call(_enqueue(store, jobs))
        return None
    return held


async def _enqueue(store: DatabaseApp, jobs: Sequence[NewJob]) -> None:
    await (await store.app._core.opened()).enqueue(jobs)


def _is_due(store: DatabaseApp, row: Record) -> bool:
    if row.state is not State.READY or row.job.task not in store.app.tasks:
        return False
    return row.due_at is None or row.queue_position is not None or row.due_at <= store.app._core.now()


def _run(job: Enqueued, row: Record) -> BaseException | None:
    """Run one job and store its outcome -> the exception of its function."""
    store = job.store
    core = store.app._core
    task = core.tasks[row.job.task]
    claimed = replace(row, state=State.RUNNING, worker=WORKER, started_at=core.now(), due_at=None)
    run = JobRun(claimed, worker_name(WORKER), lambda: None, core.results)
    troubles: dict[JobRun, BaseException | None] = {}
    here = Here()
    runner = Runner(core, here, NoBatches(), troubles)
    rules = judge.rules_for(claimed, task.retry, task.timeout, task.max_lost)
    borrowed.set(True)
    ended = async_to_sync(runner.run)(task, run, rules)
    if here.ends_test is not None:
        raise here.ends_test
    assert ended is not None, "only a worker can lose a lease"
    _settle(store, replace(ended, version=row.version))
    for new in ended.followups:
        _noted.jobs.append(job._replace(id=new.id, tests=job.tests_now))
    error = troubles.get(run)
    verdict = RunOutcome(name=cast("Ending", name_of(row, ended)), final=ended.state.final, reason=ended.reason)
    middleware.report(middleware.overrides(core.layers, "judged"), Context(run), verdict, error)
    store.raised.take(row.job.id)
    _tell(store, row.job.id, error)
    return error


def _settle(store: DatabaseApp, ended: Outcome) -> None:
    if store.database is None:
        [answer] = store.app.sync.call(_settled(store, ended))
    else:
        with transaction.atomic(using=store.database):
            bound = store.app._core.bound(connections[store.database])
            [answer] = at_once(bound.settle([ended]))
    assert answer.status == "applied", f"the outcome of {ended.id} was not stored: {answer.reason}"


async def _settled(store: DatabaseApp, ended: Outcome) -> list[Settled]:
    return await (await store.app._core.opened()).settle([ended])


def _tell(store: DatabaseApp, id: str, error: BaseException | None) -> None:
    row = read(store, id)
    if row is not None and row.state.final and row.job.task in store.tasks:
        result = results.result_of(row, store, store.tasks[row.job.task].task.backend)
        send_finished(result, error if result.errors else None)


class Here:
    """Runs plain functions in the thread of the test: asgiref runs there what is thread-sensitive."""

    def __init__(self) -> None:
        self.ends_test: BaseException | None = None

    def threads(self) -> Here:
        return self

    def processes(self) -> Any:
        raise NotImplementedError("run_due runs no task of kind='process'; call its function")

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        return asyncio.ensure_future(sync_to_async(self._outcome, thread_sensitive=True)(call))

    def _outcome(self, call: Callable[[], Any]) -> Answer:
        answer = outcome(call)
        if ends_test(answer[1]):
            self.ends_test = answer[1]
        return answer


class NoBatches:
    """Batches need a worker, which collects their items."""

    async def join(self, task: Any, run: JobRun, item: Any) -> Any:
        raise NotImplementedError("run_due runs no batch task; use app.sync.testing()")


__all__ = ["Runaway", "run_due"]
