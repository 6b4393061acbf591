"""Turns a row of Treadle into a `TaskResult` of Django."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from django.conf import settings
from django.utils.timezone import make_naive

from treadle.core.claim_ids import worker_name
from treadle.core.errors import error_line, traceback_of
from treadle.core.model import Record, State
from treadle.integrations.django.compat import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from treadle.integrations.django.known_tasks import Store
from treadle.policy import attempts

STATUS: Final = {
    State.WAITING: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
UNCOUNTED: Final = frozenset({"deferred", "lost", "cancelled"})
CLASS: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::|$)")


def result_of(row: Record, store: Store, alias: str, task: Any = None, running: bool = False) -> Any:
    """The result of a job of a Django task.

    task     the task if the caller has it; None: the one that is registered under its name
    running  the row is as a worker has claimed it
    Raises TaskResultDoesNotExist for a job of a task that this code does not have.
    """
    args, kwargs = store.app.jobs.arguments(row)
    state = State.RUNNING if running else row.state
    result = TaskResult(
        task=task if task is not None else task_of(row, store, alias),
        id=row.job.id,
        status=STATUS[state],
        enqueued_at=moment(row.created_at),
        started_at=moment(_first_start(row)),
        last_attempted_at=moment(_last_start(row)),
        finished_at=moment(row.ended_at),
        args=list(args),
        kwargs=kwargs,
        backend=alias,
        errors=errors_of(row),
        worker_ids=workers_of(row, state),
    )
    if state is State.SUCCEEDED and row.result is not None:
        object.__setattr__(result, "_return_value", store.app._core.client.decode(row, row.result))
    return result


def fresh(row: Record, alias: str, task: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a job that was stored just now: 20 us, `result_of` takes 60."""
    return TaskResult(
        task=task,
        id=row.job.id,
        status=TaskResultStatus.READY,
        enqueued_at=moment(row.created_at),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def task_of(row: Record, store: Store, alias: str) -> Any:
    """The Django task of a job, with the priority, queue and time of this job. It is not validated again: QUEUES may
    have changed since the job was stored."""
    job = row.job
    known = store.tasks.get(job.task) or store.learn(job.task)
    if known is None:
        raise TaskResultDoesNotExist(
            f"job {job.id} is stored, but this code has no Django task {job.task!r}; "
            "`manage.py treadle jobs show` shows the job"
        )
    later = moment(row.created_at + job.delay if job.run_at is None and job.delay else job.run_at)
    own = {"priority": job.priority, "queue_name": job.queue, "run_after": later, "backend": alias}
    task = object.__new__(type(known.task))
    for field in fields(known.task):
        object.__setattr__(task, field.name, own.get(field.name, getattr(known.task, field.name)))
    return task


def moment(at: float | None) -> datetime | None:
    """Seconds since 1970 as a datetime: aware if USE_TZ, otherwise naive local time."""
    if at is None:
        return None
    aware = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)
    return aware if settings.USE_TZ else cast("datetime", make_naive(aware))


def _first_start(row: Record) -> float | None:
    starts = [attempt.started_at for attempt in attempts.of(row) if attempt.started_at is not None]
    return min(starts, default=_last_start(row))


def _last_start(row: Record) -> float | None:
    """When the last run of the job began. If a test ran it without a claim, that is when it ended."""
    return row.started_at if row.started_at is not None or not row.attempt else row.ended_at


def workers_of(row: Record, state: State) -> list[str]:
    """The worker of each attempt, oldest first; Django counts attempts by this list. Only the last ten are known, so
    the list begins with the oldest known worker, repeated."""
    count = row.attempt + (state is State.RUNNING)
    counted = [attempt.worker or "" for attempt in attempts.of(row) if attempt.outcome not in UNCOUNTED]
    known = [worker for worker in counted if worker] or [worker_name(row.worker) or "unknown"]
    return [known[0]] * (count - len(known)) + known[-count:] if count else []


def errors_of(row: Record) -> list[Any]:
    """The errors of the attempts that failed, oldest first."""
    errors = [_error(attempt.error) for attempt in attempts.of(row)[:-1] if attempt.error]
    if row.state is State.CANCELLED:
        return [
            *errors,
            TaskError(exception_class_path="treadle.errors.JobCancelled", traceback=row.error or "cancelled"),
        ]
    if row.error and row.state is not State.SUCCEEDED:
        return [*errors, _error(row.error)]
    if row.state is State.FAILED:
        return [*errors, TaskError(exception_class_path="treadle.errors.JobFailed", traceback=row.reason or "failed")]
    return errors


def _error(text: str) -> Any:
    trace = traceback_of(text) or text
    return TaskError(exception_class_path=class_path(text), traceback=f"{trace.rstrip()}\n")  # format_exception ends so


def class_path(text: str) -> str:
    """The importable path of the exception in a stored error; `treadle.errors.JobFailed` if it names none.

    Only the type in the first line counts: the lines after it have the message, which may be anybody's text. No
    module is imported for it; `TaskError.exception_class` imports the class when it is read.
    """
    line = error_line(text)
    for part in (line, line.partition("; ")[2]):  # if an error has caused an Abort, the Abort's message comes first
        match = CLASS.match(part)
        path = None if match is None else _path(match[1])
        if path is not None:
            return path
    return "treadle.errors.JobFailed"


def _path(name: str) -> str | None:
    """The dotted path of the exception class with this qualified name; None if `import_string` would not find it."""
    module, _, attribute = name.rpartition(".")
    if not module:
        return f"builtins.{name}" if _is_exception(getattr(builtins, name, None)) else None
    loaded = sys.modules.get(module)
    if loaded is not None:
        return name if _is_exception(getattr(loaded, attribute, None)) else None
    outer, _, inner = module.rpartition(".")
    if isinstance(getattr(sys.modules.get(outer), inner, None), type):  # a class within a class
        return None
    with suppress(ImportError, ValueError):
        return name if importlib.util.find_spec(module.partition(".")[0]) is not None else None
    return None


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
