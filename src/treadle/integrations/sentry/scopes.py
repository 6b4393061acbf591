"""Describes the running job in the events of Sentry: tags, a context, and its arguments on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import sentry_sdk
from sentry_sdk.scope import Scope, use_isolation_scope

from treadle.core.clock import moment_text
from treadle.core.model import Record
from treadle.execution.context import Context

ARGUMENTS: Final = 2_000  # characters of the arguments in an event, at most

Arguments = Callable[[Record], str | None] | None

# The scope of the run in this context. `judged` is called when `run` has ended, and reports with the tags and
# breadcrumbs that the function has left.
_of_run: ContextVar[Scope | None] = ContextVar("treadle.sentry", default=None)


def of_run(context: Context, arguments: Arguments) -> AbstractContextManager[Scope]:
    """A scope of its own for a run. It stays the scope of this run for `after_run`."""
    scope = _scope_of(context, arguments)
    _of_run.set(scope)
    return use_isolation_scope(scope)


def after_run(context: Context, arguments: Arguments) -> AbstractContextManager[Scope]:
    """The scope of the run that has ended in this context, or a new one if it ended before it began."""
    return use_isolation_scope(_of_run.get() or _scope_of(context, arguments))


def of_call(contexts: Sequence[Context], arguments: Arguments) -> AbstractContextManager[Scope]:
    """A scope for a call in another context than `run`: of a batch, or in another process."""
    if len(contexts) == 1:
        return use_isolation_scope(_scope_of(contexts[0], arguments))
    scope = _new_scope()
    first = contexts[0].record.job
    _name(scope, first.task, first.queue)
    ids = [context.id for context in contexts]
    scope.set_context("treadle", {"task": first.task, "queue": first.queue, "jobs": ids})
    return use_isolation_scope(scope)


def of_row(record: Record, arguments: Arguments) -> AbstractContextManager[Scope]:
    """A scope for the run of a job that another program has reported."""
    scope = _new_scope()
    describe(scope, record, record.worker or "", record.attempt + 1, arguments)
    return use_isolation_scope(scope)


def describe(scope: Scope, record: Record, worker: str, attempt: int, arguments: Arguments) -> None:
    """Add the job to each event of this scope. `arguments` returns the arguments to add."""
    job = record.job
    _name(scope, job.task, job.queue)
    scope.set_tag("treadle.job", job.id)
    facts: dict[str, Any] = {
        "job": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": attempt,
        "lost": record.lost,
        "workflow": job.root or job.id,
        "worker": worker,
        "enqueued": moment_text(record.created_at),
    }
    if job.labels:
        facts["labels"] = list(job.labels)
    if schedule := dict(job.headers).get("treadle-schedule"):
        facts["schedule"] = schedule
    if arguments is not None:
        facts["arguments"] = (arguments(record) or "")[:ARGUMENTS]
    scope.set_context("treadle", facts)


def _scope_of(context: Context, arguments: Arguments) -> Scope:
    scope = _new_scope()
    describe(scope, context.record, context.worker, context.attempt, arguments)
    return scope


def _name(scope: Scope, task: str, queue: str) -> None:
    scope.set_transaction_name(task, source="task")
    scope.set_tag("treadle.task", task)
    scope.set_tag("treadle.queue", queue)


def _new_scope() -> Scope:
    """A copy of the scope of this process, without its breadcrumbs."""
    scope = sentry_sdk.get_isolation_scope().fork()
    scope.clear_breadcrumbs()
    return scope
