"""`TreadleBackend`, the backend of `django.tasks` that stores tasks as jobs of Treadle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, cast

from django.db import connections, transaction

from treadle.core.errors import BadOption, BadSession, TooLarge
from treadle.core.ids import VALID
from treadle.core.job import JobSpec
from treadle.core.model import Record, State
from treadle.integrations.django import checks, options, results
from treadle.integrations.django.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    plain_json,
    task_enqueued,
)
from treadle.integrations.django.connections import is_in_transaction, tests_of
from treadle.integrations.django.database_app import DatabaseApp, connection_of, store_for
from treadle.integrations.django.joining import in_test_memory
from treadle.integrations.django.known_tasks import Known, constants_of
from treadle.integrations.django.reading import read
from treadle.storage import at_once
from treadle.tasks.options import Options, check_names, columns, merge, policy_of

# --- tasks with options of Treadle
#
# `TreadleTask`, a Django task that also has options of Treadle: `@task(retry=Retry(attempts=5), timeout=30)`.


# Options of Treadle that Django has names for, or that a transaction rules out.
OTHERWISE: Final = {
    "queue": "use queue_name=",
    "run_at": "use run_after=",
    "delay": "use run_after=",
    "within": "the backend's OPTIONS['commit'] decides that",
    "inline": "a job cannot run before its transaction is committed",
    "pass_result": "Django passes the arguments of the call, and nothing else",
}
OURS: Final = ("enqueue_sync", "job", "late")  # of a Treadle task


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class TreadleTask(Task):
    """A task of Django with `options`: retry, timeout, key, limits, cost, lane, labels, headers, keep, keep_failed,
    deadline, expires, lease, max_lost, aging, after, when, wait_timeout, id.

    Django 6.1 and the backport accept them in the decorator, `.using(...)` accepts them everywhere. Options of the
    decorator apply to every job, also to stored ones. Options of `.using` apply to the jobs that it enqueues.
    """

    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __init__(self, *, options: dict[str, Any] | None = None, **more: Any) -> None:
        for own in fields(Task):
            value = more.pop(own.name, own.default)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__}: {own.name}= is missing")
            object.__setattr__(self, own.name, value)
        object.__setattr__(self, "options", _merged(options or {}, more) if more else options or {})
        self.__post_init__()

    def using(self, **changes: Any) -> TreadleTask:
        """A task with other defaults: those of Django (priority, queue_name, run_after, backend), and options. Raises
        InvalidTask."""
        own = {name: changes.pop(name) for name in DJANGO & changes.keys()}
        replaced = {name: value for name, value in own.items() if value is not None}
        if changes:
            replaced["options"] = _merged(self.options, changes)
        return replace(self, **replaced)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = ": a Django task; only tasks of @app.task have it, and can be in a chain" if name in OURS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)


# --- the backend


DJANGO: Final = frozenset({"priority", "queue_name", "run_after", "backend"})


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    for name in above:
        if name in OTHERWISE:
            raise InvalidTask(f"{name}= is no option of a Django task: {OTHERWISE[name]}.")
    try:
        check_names(above, (*DJANGO, "takes_context"))
        return dict(merge(Options(**below), Options(**above)))  # type: ignore[typeddict-item]
    except (BadOption, TooLarge) as error:
        raise InvalidTask(str(error)) from error


class TreadleBackend(BaseTaskBackend):
    """Stores tasks in a Django database, by default in the caller's own transaction; see docs/guides/django.md."""

    task_class = TreadleTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.treadle = options.read(alias, self.options)

    @property
    def store(self) -> DatabaseApp:
        return store_for(self.treadle)

    @property
    def app(self) -> Any:
        """The `treadle.App` behind this backend."""
        return self.store.app

    # --- tasks

    def validate_task(self, task: Any) -> None:
        """Check a task, and make its jobs run here. Raises InvalidTask."""
        super().validate_task(task)
        known = self.store.register(task, constants_of(task))
        options_of_task: dict[str, Any] = getattr(task, "options", {})
        if options_of_task is not known.task_options:
            self._check(task, options_of_task)

    def _check(self, task: Any, given: dict[str, Any]) -> None:
        maker, chosen = self.app._core.maker, cast("Options", given)
        try:
            columns(chosen, policy_of(chosen), task.module_path, maker.now(), maker.sizes)
        except (BadOption, TooLarge) as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error

    def _bound(self, known: Known, task: Any) -> Any:
        """The Treadle task with the options of this task's jobs, as far as they differ. Raises InvalidTask."""
        own: dict[str, Any] = {}
        first = known.task
        if task.queue_name != first.queue_name:
            own["queue"] = task.queue_name
        if task.priority != first.priority:
            own["priority"] = task.priority
        if task.run_after is not None:
            own["run_at"] = _aware(task.run_after)
        options_of_task: dict[str, Any] = getattr(task, "options", {})
        if options_of_task is not known.task_options:
            own |= {name: value for name, value in options_of_task.items() if known.options.get(name, own) != value}
        if not own:
            return known.treadle
        try:
            return known.treadle.options(**own)
        except (BadOption, TooLarge) as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error

    # --- enqueuing

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Store the task and return its TaskResult.

        By default the job is stored in the caller's transaction on the database of the jobs: it exists if and only if
        that is committed. Raises InvalidTask, TypeError for arguments that are no JSON, KeyHeld, BadSession and
        StorageError.
        """
        self.validate_task(task)
        store = self.store
        known = store.tasks[task.module_path]
        plain, named = plain_json(list(args)), plain_json(kwargs)
        try:
            spec = self._bound(known, task).job(*plain, **named)
        except (BadOption, TooLarge) as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error
        commit = self.treadle.commit
        if commit in ("same", "outbox"):
            row, created = _stored_within(store, spec, connection_of(store))
        elif commit == "after" and is_in_transaction(connection := connections[self.treadle.database]):
            if not in_test_memory(store.app):
                return self._after_commit(store, task, spec, plain, named)
            row, created = _stored_within(store, spec, connection)
        else:
            row, created = _stored_at_once(store, spec)
        if not created:  # another job has the key or the id
            return results.result_of(row, store, self.alias)
        result = results.fresh(row, self.alias, task, plain, named)
        task_enqueued.send_robust(sender=type(self), task_result=result)
        return result

    def _after_commit(self, store: DatabaseApp, task: Any, spec: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Store the job when the transaction has committed. Until then its result is not known anywhere else."""
        result = results.fresh(Record(job=spec.new, version=0, state=State.READY), self.alias, task, args, kwargs)
        object.__setattr__(result, "enqueued_at", None)
        transaction.on_commit(AfterCommit(self, store, spec, result), using=self.treadle.database)
        return result

    # --- results

    def get_result(self, result_id: str) -> Any:
        """The result of a job of a Django task. Raises TaskResultDoesNotExist for an unknown id, a job that is not kept
        any more, and a job of a task that this code does not have."""
        store, id = self.store, str(result_id)
        row = read(store, id) if VALID.fullmatch(id) else None
        if row is None:
            raise TaskResultDoesNotExist(result_id)
        return results.result_of(row, store, self.alias)

    def check(self, **kwargs: Any) -> Iterable[Any]:
        yield from super().check(**kwargs)
        yield from checks.of_backend(self.alias, self.treadle)


class AfterCommit:
    """Stores a job when the transaction has committed. In a `TestCase`, which never commits, `run_due` calls it. It may
    be called again, for example by captureOnCommitCallbacks."""

    def __init__(self, backend: TreadleBackend, store: DatabaseApp, spec: JobSpec[Any], result: Any) -> None:
        self._backend, self._store, self._spec, self._result = backend, store, spec, result
        self._stored_in: tuple[Any, ...] | None = None  # the blocks of the test in which it was stored

    def __call__(self) -> None:
        tests = tests_of(connections[self._backend.treadle.database])
        if self._stored_in is not None and set(self._stored_in) <= set(tests):
            return  # otherwise it was stored in a test that is over, and rolled back with it
        row, created = _stored_at_once(self._store, self._spec)
        created = created or (self._stored_in is not None and row.job.id == self._spec.new.id)
        self._stored_in = tests
        object.__setattr__(self._result, "id", row.job.id)  # of another job, if that holds the key
        object.__setattr__(self._result, "enqueued_at", results.moment(row.created_at))
        if created:
            task_enqueued.send_robust(sender=type(self._backend), task_result=self._result)


def _stored_within(store: DatabaseApp, spec: JobSpec[Any], connection: Any) -> tuple[Record, bool]:
    """Store the job in the caller's transaction -> the row, and whether it is new."""
    core = store.app._core
    with nullcontext() if connection.in_atomic_block else transaction.atomic(using=connection.alias):
        [row_and_created] = at_once(core.client.send_rows([spec], core.bound(connection)))
    return row_and_created


def _stored_at_once(store: DatabaseApp, spec: JobSpec[Any]) -> tuple[Record, bool]:
    """Store the job now -> the row, and whether it is new. Raises BadSession inside a transaction on SQLite.

    Outside of a transaction it is stored over Django's connection, inside of one over a connection of Treadle's own. A
    database in memory has only Django's connection, and the transaction of a TestCase holds what its test has stored.
    """
    app = store.app
    if store.database is not None:
        connection = connection_of(store)
        if not is_in_transaction(connection) or store.memory is not None or tests_of(connection):
            return _stored_within(store, spec, connection)
        if connection.vendor == "sqlite":  # the other connection would wait for the lock of this one
            raise BadSession(
                "Django's connection",
                "commit='now' cannot store a job while this thread has a transaction on the same SQLite file, which "
                "has one writer; enqueue before or after it, or use commit='same' or 'after'",
            )
    [row_and_created] = app.sync.call(app._core.client.send_rows([spec]))
    return row_and_created


def _aware(moment: Any) -> Any:
    """With USE_TZ = False Django's instants are naive, in the local time zone."""
    from django.utils import timezone

    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
