"""Runs the jobs that a Django test has enqueued, in its own thread, on its own connection, in its own transaction.

    from treadle.integrations.django.testing import run_due

    class Orders(TestCase):
        def test_a_mail_is_sent(self):
            self.client.post("/orders/", {"what": "a boat"})
            run_due()
            self.assertEqual(len(mail.outbox), 1)

A `TestCase` never commits, so no worker can see its jobs. `run_due` reads them through the connection of the test, runs
each function as a worker does, and stores the outcome in the same transaction.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.db.models.signals import post_migrate
from msgspec.structs import replace

from treadle.core.model import Outcome, Record, Settled, State
from treadle.execution import middleware
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun
from treadle.execution.run_outcome import Ending, RunOutcome
from treadle.execution.runner import Runner
from treadle.integrations.django import results
from treadle.integrations.django.backend import TreadleBackend
from treadle.integrations.django.compat import task_enqueued
from treadle.integrations.django.connections import borrowed
from treadle.integrations.django.job_store import JobStore
from treadle.integrations.django.reading import read
from treadle.integrations.django.signals import send_finished
from treadle.policy import judge
from treadle.storage.user_session import at_once
from treadle.worker.executors.threads import Answer, outcome
from treadle.worker.job_events import name_of

WORKER = "test#1"


class Runaway(AssertionError):
    """More runs than the limit: jobs seem to create jobs without end."""


class Enqueued(threading.local):
    """The ids of the jobs that this thread has enqueued, oldest first, with their stores."""

    def __init__(self) -> None:
        self.ids: deque[tuple[JobStore, str]] = deque(maxlen=100_000)


_enqueued = Enqueued()


def _note(sender: Any, task_result: Any, **kwargs: Any) -> None:
    backend = task_result.task.get_backend()
    if isinstance(backend, TreadleBackend):
        _enqueued.ids.append((backend.store, task_result.id))


def _forget(**kwargs: Any) -> None:
    _enqueued.ids.clear()


task_enqueued.connect(_note, dispatch_uid="treadle.testing")  # this module is imported by tests only
post_migrate.connect(_forget, dispatch_uid="treadle.testing")  # a TransactionTestCase has flushed the database


def run_due(*, limit: int = 1_000, raise_errors: bool = False) -> int:
    """Run the jobs that are due, and the jobs that these enqueue -> the number of runs.

    Runs the jobs that this thread has enqueued and that are still stored. Those of the tests before this one were
    rolled back; a TransactionTestCase, which flushes the database, ends their turn. Jobs for later, with `run_after` or
    after a failed try with a delay, stay. Receivers of `task_started` and `task_finished` are called here.

    raise_errors  raise the first exception of a task, after its outcome was stored
    Raises Runaway after `limit` runs.
    """
    ran = 0
    waiting: list[tuple[JobStore, str]] = []
    while _enqueued.ids:
        store, id = _enqueued.ids.popleft()
        row = read(store, id)
        if row is None or row.state.final:
            continue
        if not _is_due(store, row):
            waiting.append((store, id))
            continue
        if ran == limit:
            raise Runaway(
                f"{limit:,} jobs were run and more are due, next {row.job.task}; give run_due a higher limit="
            )
        ran += 1
        error = _run(store, row)
        _enqueued.ids.append((store, id))  # if it runs again, its turn comes after the others
        if error is not None and raise_errors:
            _enqueued.ids.extend(waiting)
            raise error
        if waiting:  # one of them may have waited for this job
            _enqueued.ids.extend(waiting)
            waiting = []
    _enqueued.ids.extend(waiting)
    return ran


def _is_due(store: JobStore, row: Record) -> bool:
    if row.state is not State.READY or row.job.task not in store.app.tasks:
        return False
    return row.due_at is None or row.queue_position is not None or row.due_at <= store.app._core.now()


def _run(store: JobStore, row: Record) -> BaseException | None:
    """Run one job and store its outcome -> the exception of its function."""
    core = store.app._core
    task = core.tasks[row.job.task]
    claimed = replace(row, state=State.RUNNING, worker=WORKER, started_at=core.now(), due_at=None)
    run = JobRun(claimed, WORKER.partition("#")[0], lambda: None, core.results)
    troubles: dict[JobRun, BaseException | None] = {}
    runner = Runner(core, Here(), NoBatches(), troubles)
    rules = judge.rules_for(claimed, task.retry, task.timeout, task.max_lost)
    token = borrowed.set(True)
    try:
        ended = async_to_sync(runner.run)(task, run, rules)
    finally:
        borrowed.reset(token)
    assert ended is not None, "only a worker can lose a lease"
    _settle(store, replace(ended, version=row.version))
    for new in ended.followups:
        _enqueued.ids.append((store, new.id))
    error = troubles.get(run)
    verdict = RunOutcome(name=cast("Ending", name_of(row, ended)), final=ended.state.final, reason=ended.reason)
    middleware.report(middleware.overrides(core.layers, "judged"), Context(run), verdict, error)
    store.raised.take(row.job.id)
    _tell(store, row.job.id, error)
    return error


def _settle(store: JobStore, ended: Outcome) -> None:
    if store.database is None:
        [answer] = store.app.sync.call(_settled(store, ended))
    else:
        with transaction.atomic(using=store.database):
            bound = store.app._core.bound(connections[store.database])
            [answer] = at_once(bound.settle([ended]))
    assert answer.status == "applied", f"the outcome of {ended.id} was not stored: {answer.reason}"


async def _settled(store: JobStore, ended: Outcome) -> list[Settled]:
    return await (await store.app._core.opened()).settle([ended])


def _tell(store: JobStore, id: str, error: BaseException | None) -> None:
    row = read(store, id)
    if row is not None and row.state.final and row.job.task in store.tasks:
        result = results.result_of(row, store, store.tasks[row.job.task].task.backend)
        send_finished(result, error if result.errors else None)


class Here:
    """Runs plain functions in the thread of the test: asgiref runs there what is thread-sensitive."""

    def threads(self) -> Here:
        return self

    def processes(self) -> Any:
        raise NotImplementedError("run_due runs no task of kind='process'; call its function")

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        return asyncio.ensure_future(sync_to_async(outcome, thread_sensitive=True)(call))


class NoBatches:
    """Batches need a worker, which collects their items."""

    async def join(self, task: Any, run: JobRun, item: Any) -> Any:
        raise NotImplementedError("run_due runs no batch task; use app.sync.testing()")


__all__ = ["Runaway", "run_due"]
