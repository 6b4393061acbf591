"""Every error that a caller may catch, one class each, with typed fields.

TreadleError
├── BadArgument (TypeError)      a call that does not fit the task's parameters
├── BadOption (ValueError)       an option outside its range
├── BadResult                    a return value that cannot be stored
├── BadCodec (ValueError)        a codec that does not restore the value it encoded
├── NotAwaited (RuntimeError)    a coroutine created where nothing can await it
├── BadTask (ValueError)         a function that cannot be a task, or a name taken twice
├── TooLarge (ValueError)        a text beyond its size limit
├── UnknownTask (LookupError)    no such task in this app
├── UnknownSchedule (LookupError)  no schedule of that name is stored
├── KeyHeld                      an unfinished job holds the key
├── IdTaken                      a job with this id is stored, of another task or with other arguments
├── ForeignRow                   a row that Treadle derives was stored by another caller
├── MoveFailed                   `treadle move` cannot continue; nothing was lost
├── Stale                        another caller settled or claimed the job meanwhile
├── BadStep (ValueError)         durable code that a later run could not repeat
├── StepMismatch                 the function takes other steps than the run that began the job
├── Signalled                    the job was given that signal before
├── RemoteFailure                the exception of a function in a separate process
├── ProcessDied                  the process of such a function died
├── JobNotDone                   a job did not succeed, or has not ended
│   ├── JobFailed
│   │   ├── JobExpired           its deadline passed
│   │   └── WorkflowFailed       (ExceptionGroup) descendants of the job did not succeed
│   └── JobCancelled
├── UnknownJob (LookupError)     no such job, or it was pruned
│   └── UnknownUpstream          `after` names a job that is not stored
└── StorageError                 the storage refused the call or is unavailable
    ├── BadUrl (ValueError)
    ├── StorageUnavailable       cannot be reached; a retry may succeed
    │   └── AnswerTooLarge       a response above the client's limit
    ├── StorageFull              no space, or read-only; nothing was stored
    ├── StorageDenied            wrong credentials, or a user without the rights it needs
    ├── SchemaTooNew             written by a newer Treadle
    ├── NotADatabase             not a Treadle database, or a file whose folder does not exist
    ├── Unsupported              this kind of storage cannot do that
    ├── BadSession (ValueError)  a user's transaction that jobs cannot join
    ├── StorageMoved             its jobs were moved to another storage
    └── NestedTransaction        a call inside a transaction that would wait for its end
        └── EventLoopError (RuntimeError)  the app is open on an event loop that cannot carry the call out
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

# Errors of a decoder for a text of another sender: no JSON, another shape, a lone surrogate, nested too deeply.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class TreadleError(Exception):
    """The base of all errors that Treadle raises on purpose."""


class BadArgument(TreadleError, TypeError):
    """A call does not fit the task. `parameter` is the wrong one; None if the call as a whole is wrong.

    `permanent` is true for the arguments of a stored job that no later attempt of this program can read. Such a job
    fails at once.
    """

    permanent = False

    def __init__(self, task: str, parameter: str | None, problem: str) -> None:
        self.task, self.parameter, self.problem = task, parameter, problem
        place = f"{task}: parameter {parameter!r} " if parameter else f"{task}: "
        super().__init__(place + problem)


class BadOption(TreadleError, ValueError):
    """An option is outside its range. The message says what was found and what was expected."""

    def __init__(self, option: str, problem: str) -> None:
        self.option, self.problem = option, problem
        super().__init__(f"option {option!r}: {problem}")


class NotAwaited(TreadleError, RuntimeError):
    """A call that must be awaited was made where no event loop runs, so its coroutine would never run."""

    def __init__(self, call: str, instead: str) -> None:
        self.call, self.instead = call, instead
        super().__init__(
            f"{call} returns a coroutine, and no event loop runs here: write {instead}, or `await` it in a coroutine"
        )


class BadResult(TreadleError):
    """A task returned a value that cannot be stored. It counts as a failed attempt and is retried like one."""

    def __init__(self, task: str, problem: str) -> None:
        self.task, self.problem = task, problem
        super().__init__(f"{task}: the result {problem}")


class BadCodec(TreadleError, ValueError):
    """A codec does not restore the value that it encoded."""


class BadTask(TreadleError, ValueError):
    """A function that cannot be a task, or a task name registered twice."""


class TooLarge(TreadleError, ValueError):
    """A text is longer than its limit. Sizes are in bytes of UTF-8 unless `what` says characters."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} is {size:,} long, the limit is {limit:,}")


class UnknownTask(TreadleError, LookupError):
    """No task of that name is registered in this app."""

    def __init__(self, name: str, known: tuple[str, ...] = (), like: str | None = None) -> None:
        self.name, self.known = name, known
        hint = f"; did you mean {like!r}?" if like else ""
        listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        super().__init__(f"this app has no task {name!r}{hint} (known: {listed or 'none'})")


class UnknownSchedule(TreadleError, LookupError):
    """No schedule of that name is stored. A worker stores the schedules that its code declares when it starts."""

    def __init__(self, name: str, like: str | None = None) -> None:
        self.name, self.like = name, like
        hint = f"; did you mean {like!r}?" if like else ";"
        super().__init__(f"no schedule {name!r} is stored{hint} `treadle schedules list` shows all")


class UnknownJob(TreadleError, LookupError):
    """No such job is stored: it was never enqueued here, or its row was pruned after its retention."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"no job {id!r} is stored: it was never enqueued here, or was pruned after its retention")


class UnknownUpstream(UnknownJob):
    """`after` names a job that is not stored, or that the caller's token has no access to. With `wait_timeout` a job
    may wait for one that is not stored yet, except with a token that is bound to queues."""

    def __init__(self, id: str, waiting: str | None = None) -> None:
        self.id, self.waiting = id, waiting
        first = f"job {waiting}" if waiting else "a job"
        advice = "enqueue that first, or give wait_timeout= if your token is not bound to queues"
        TreadleError.__init__(self, f"{first} waits for unknown job {id!r}; {advice}")


class KeyHeld(TreadleError):
    """An unfinished job holds the key; nothing was stored. `id` is empty if the caller has no access to that job."""

    def __init__(self, key: str, id: str) -> None:
        self.key, self.id = key, id
        holder = f"job {id}" if id else "a job of a queue that the token has no right to; choose another key"
        super().__init__(f"key {key!r} is held by {holder}")


class IdTaken(TreadleError):
    """The chosen id belongs to a stored job of another task or with other arguments; this call stored nothing.

    task   the task of the stored job; None if the caller has no access to that job, or the id is one of Treadle's own
    asked  the task of the job that was to be stored
    other  whether the stored arguments, as the codec's text, differ from those of the call
    """

    def __init__(self, id: str, task: str | None, asked: str, other: bool) -> None:
        self.id, self.task, self.asked, self.other = id, task, asked, other
        if task is None:
            super().__init__(
                f"id {id!r} is taken by a job that the token may not see, or by a row of Treadle's own; choose another "
                "id"
            )
            return
        found = f"a job of {task}" if task else "a promise"
        expected = f"{asked} with the same arguments" if task == asked else asked or "a promise"
        super().__init__(
            f"id {id!r} is taken by {found}{' with other arguments' if other else ''}, expected {expected}; "
            "choose another id, or repeat the call with the task and arguments of the stored job"
        )


class ForeignRow(TreadleError):
    """Another caller stored a row whose id Treadle derives, such as that of a signal or a mark. The row is not used."""

    def __init__(self, id: str, found: str, expected: str) -> None:
        self.id, self.found, self.expected = id, found, expected
        super().__init__(
            f"row {id} was stored by another caller: expected queue {expected!r} and the workflow of this job, found "
            f"queue {found!r}. Find out which program stored it, and cancel the row. If jobs of two queues share a key "
            "of once(), give each queue its own key"
        )


class Stale(TreadleError):
    """Another caller settled or claimed the job meanwhile. Nothing was changed."""

    def __init__(self, id: str, found: str) -> None:
        self.id, self.found = id, found
        super().__init__(f"job {id} has changed: it is {found}")


class BadStep(TreadleError, ValueError):
    """Durable code that a later run could not repeat. `step` is the name of the step, `problem` the reason."""

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(f"step {step!r}: {problem}")


class StepMismatch(TreadleError):
    """The function asks for other steps, or in another order, than the run that began this job.

    recorded  the step that was recorded at this point, or this step with the one before it
    asked     the step that the function asks for now; `after` the one before it ("" for the first)
    """

    def __init__(self, id: str, asked: str, after: str, recorded: str) -> None:
        self.id, self.asked, self.after, self.recorded = id, asked, after, recorded
        place = f"after {after!r}" if after else "first"
        super().__init__(
            f"job {id} began with other code: this run takes step {asked!r} {place}, but the stored run took "
            f"{recorded}; keep the names and order of the steps while jobs are running, and give a changed function a "
            "new task name"
        )


class Signalled(TreadleError):
    """The job was given that signal before. The first value stays; this one was not stored."""

    def __init__(self, id: str, name: str) -> None:
        self.id, self.name = id, name
        super().__init__(f"job {id} has already received the signal {name!r}; the first value stays")


class MoveFailed(TreadleError):
    """A move cannot begin, continue or be cancelled; the message says what to do. Nothing was lost."""


class RemoteFailure(TreadleError):
    """A function of `kind="process"` raised. The exception itself stays in that process.

    type, module  the name of its class and the module that defines it
    message       its text
    text          its traceback
    """

    def __init__(self, type: str, module: str, message: str, text: str) -> None:
        self.type, self.module, self.message, self.text = type, module, message, text
        super().__init__(text)


class ProcessDied(TreadleError):
    """The process that ran a function of `kind="process"` has died. It counts as a failed attempt.

    `code` is its exit code, or the negative number of the signal that killed it (-9 often means out of memory).
    """

    def __init__(self, task: str, code: int, signal: str | None = None) -> None:
        self.task, self.code, self.signal = task, code, signal
        named = f" ({signal})" if signal else ""
        how = f"died with signal {-code}{named}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"{task}: the process {how} before the function returned")


def error_line(text: str | None) -> str:
    """A stored error in one line: the type of the exception and the first line of its message. "" for None.

    Treadle stores this line first, then the traceback. A runner in another language may store a bare Python traceback;
    there it is the first line after the frames that is not indented.
    """
    lines = (text or "").strip().splitlines()
    if not lines or not lines[0].startswith(("Traceback (most recent call last)", "+ Exception Group Traceback")):
        return lines[0].strip() if lines else ""
    frames = [number for number, line in enumerate(lines) if line.lstrip(" |").startswith("File ")]
    behind = lines[(frames[-1] if frames else 0) + 1 :]
    return next((line for line in behind if line and not line[0].isspace()), lines[-1].strip())


def traceback_of(text: str | None) -> str | None:
    """The traceback in a stored error; None if it has none."""
    start = (text or "").find("Traceback (most recent call last)")
    return None if start < 0 or text is None else text[text.rfind("\n", 0, start) + 1 :]


class JobNotDone(TreadleError):
    """A job that did not succeed, or has not ended. `error` is the stored text, `reason` one word such as "aborted"."""

    def __init__(self, id: str, task: str, reason: str | None, error: str | None) -> None:
        self.id, self.task, self.reason, self.error = id, task, reason, error
        super().__init__(f"{task or 'promise'} {id} ({reason}): {error_line(error) or 'no details'}")


class JobFailed(JobNotDone):
    """The job failed: its attempts are used up, it was aborted, or its lease expired too often."""


class JobExpired(JobFailed):
    """The job's deadline passed before it ended."""


class WorkflowFailed(JobFailed, ExceptionGroup[JobNotDone]):
    """Descendants of this job did not succeed, and no condition of the workflow tolerates that. Each descendant that
    failed by itself has a JobNotDone in `exceptions`, with its id, task, reason and error."""

    def __new__(
        cls, id: str, task: str, reason: str | None, error: str | None, failures: Sequence[JobNotDone]
    ) -> WorkflowFailed:
        named = "; ".join(map(str, failures[:3])) + ("; ..." if len(failures) > 3 else "")
        return super().__new__(cls, f"{task} {id}: {len(failures)} failed: {named}", failures)

    def __init__(
        self, id: str, task: str, reason: str | None, error: str | None, failures: Sequence[JobNotDone]
    ) -> None:
        self.id, self.task, self.reason, self.error = id, task, reason, error

    def derive(self, excs: Sequence[Any]) -> WorkflowFailed:  # type: ignore[override]  # of our own kind of member
        """A group of the same kind with some of the failures: for `split`, `subgroup` and `except*`."""
        return WorkflowFailed(self.id, self.task, self.reason, self.error, excs)

    def __str__(self) -> str:
        return self.message


class JobCancelled(JobNotDone):
    """The job was cancelled: by request, because another job superseded it, or because of a job it waited for."""


class StorageError(TreadleError):
    """The storage refused a call, and stored nothing of it. After StorageUnavailable that is unknown."""


class BadUrl(StorageError, ValueError):
    """A storage URL that cannot be parsed, or that has an invalid option."""


class StorageUnavailable(StorageError, ConnectionError):
    """The storage cannot be reached now. It is unknown whether the last call was applied; repeating it is safe."""


class AnswerTooLarge(StorageUnavailable):
    """A response was above the client's limit: from a hostile server, or because one call requested too much.

    `unit` is what was counted: bytes, values, arrays and objects, jobs, or pages.
    """

    def __init__(self, place: str, limit: int, unit: str = "bytes", advice: str = "") -> None:
        self.place, self.limit, self.unit, self.advice = place, limit, unit, advice
        super().__init__(
            f"{place}: expected a response of at most {limit:,} {unit}, found more{advice and f'; {advice}'}"
        )


class StorageFull(StorageError):
    """The storage has no space left, or is read-only. Nothing of the call was stored."""


class StorageDenied(StorageError):
    """The server rejects the user: wrong credentials, or a missing right. Waiting does not help."""


class SchemaTooNew(StorageError):
    """The storage was written by a newer Treadle than this one."""

    def __init__(self, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(f"the storage has schema {found}, this Treadle knows up to {known}: upgrade Treadle")


class NotADatabase(StorageError):
    """The file is not a Treadle database, or cannot be created because its folder does not exist."""


class Unsupported(StorageError):
    """This kind of storage cannot do something. `storage` names it, `what` the operation, `instead` an alternative."""

    def __init__(self, storage: str, what: str, instead: str) -> None:
        self.storage, self.what, self.instead = storage, what, instead
        super().__init__(f"{storage} does not support {what}; {instead}")


class BadSession(StorageError, ValueError):
    """The value of `within=` is not a transaction that the jobs can join. Nothing was stored.

    `session` describes the value, `problem` says why it cannot be used.
    """

    def __init__(self, session: str, problem: str) -> None:
        self.session, self.problem = session, problem
        super().__init__(f"within={session}: {problem}")


class StorageMoved(StorageError):
    """The jobs of this storage were moved to another one; it stores nothing any more. `target` is that URL, masked."""

    def __init__(self, storage: str, target: str) -> None:
        self.storage, self.target = storage, target
        super().__init__(f"the jobs of {storage} were moved to {target}: use that URL")


class NestedTransaction(StorageError):
    """A call inside an open transaction, but not through it, would wait for the end of that transaction."""


class EventLoopError(NestedTransaction, RuntimeError):
    """The event loop on which the app is open cannot carry out the call: it does not run, or it is the caller's own and
    would wait for itself. A subclass of NestedTransaction for compatibility with older programs."""


class UnknownName(UserWarning):
    """A call named a queue, limit, task, label or signal that nothing else uses, so it may be mistyped. The call is
    carried out."""


class OldRows(UserWarning):
    """A call read a storage whose jobs were moved to another one: its rows no longer change."""
