"""Every error a caller may catch, one class each, with typed fields.

Without this file nobody could tell a job that failed from a storage that is away, or act on either.

    TreadleError
    ├── BadArgument (TypeError)      a call that does not fit the task's parameters
    ├── BadOption (ValueError)       an option outside its range
    ├── BadResult                    a return value that cannot be stored
    ├── BadCodec (ValueError)        a codec that does not give back what it was given
    ├── NotAwaited (RuntimeError)    a coroutine made where nothing can await it
    ├── BadTask (ValueError)         a function that cannot be a task, or a name taken twice
    ├── TooLarge (ValueError)        text beyond its size limit
    ├── UnknownTask (LookupError)    no such task in this app
    ├── UnknownSchedule (LookupError)  no schedule of that name is stored
    ├── KeyHeld                      an unfinished job holds the key
    ├── IdTaken                      a job with this id is stored, of another task or with other arguments
    ├── ForeignRow                   a row that Treadle derives was stored by another caller
    ├── MoveFailed                   `treadle move` cannot go on; nothing was lost
    ├── Stale                        the job moved on: somebody else settled or claimed it
    ├── BadStep (ValueError)         durable code used in a way that could not be remembered
    ├── StepMismatch                 the function takes other steps than the run that began the job
    ├── Signalled                    the job was given that signal before
    ├── RemoteFailure                what a function in a process of its own raised
    ├── ProcessDied                  the process of such a function died under it
    ├── JobNotDone                   what became of a job that did not succeed
    │   ├── JobFailed
    │   │   ├── JobExpired           its deadline passed
    │   │   └── WorkflowFailed       (ExceptionGroup) jobs that came of it did not succeed
    │   └── JobCancelled
    ├── UnknownJob (LookupError)     no such job, or it was pruned
    │   └── UnknownUpstream          `after` names a job that is not stored
    └── StorageError                 the storage refused or is away
        ├── BadUrl (ValueError)
        ├── StorageUnavailable       cannot be reached; worth another try
        │   └── AnswerTooLarge       more came than a client takes
        ├── StorageFull              no room, or read-only; nothing was stored
        ├── StorageDenied            wrong credentials, or a user without the rights it needs
        ├── SchemaTooNew             written by a newer Treadle
        ├── NotADatabase             the file is something else, or has no folder
        ├── Unsupported              this kind of storage cannot do that
        ├── BadSession (ValueError)  a transaction of the user's that cannot be joined
        ├── StorageMoved             its jobs live elsewhere now
        └── NestedTransaction        a call inside a transaction that would wait for its end
            └── EventLoopError (RuntimeError)  the app is open on an event loop that cannot carry the call out
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

# What a decoder raises of a text that somebody else wrote: no JSON, of another shape, half of a character, too deep.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class TreadleError(Exception):
    """The root of everything Treadle raises on purpose."""


class BadArgument(TreadleError, TypeError):
    """A call does not fit the task: `parameter` is the one at fault, or None if it is the call as a whole.

    `permanent` is true for the arguments of a stored job that no later attempt of this program can read: the job fails
    at once.
    """

    permanent = False

    def __init__(self, task: str, parameter: str | None, problem: str) -> None:
        self.task, self.parameter, self.problem = task, parameter, problem
        place = f"{task}: parameter {parameter!r} " if parameter else f"{task}: "
        super().__init__(place + problem)


class BadOption(TreadleError, ValueError):
    """An option is outside its range: what was found, what was expected."""

    def __init__(self, option: str, problem: str) -> None:
        self.option, self.problem = option, problem
        super().__init__(f"option {option!r}: {problem}")


class NotAwaited(TreadleError, RuntimeError):
    """A call that must be awaited was made where no event loop runs: nothing would ever carry it out."""

    def __init__(self, call: str, instead: str) -> None:
        self.call, self.instead = call, instead
        super().__init__(
            f"{call} returns a coroutine, and no event loop runs here to carry it out: write {instead}, or `await` it "
            "in a coroutine"
        )


class BadResult(TreadleError):
    """A task returned what cannot be stored. A counted failure: the job is retried while attempts last."""

    def __init__(self, task: str, problem: str) -> None:
        self.task, self.problem = task, problem
        super().__init__(f"{task}: the result {problem}")


class BadCodec(TreadleError, ValueError):
    """A codec does not give back what it was given."""


class BadTask(TreadleError, ValueError):
    """A function that cannot be a task, or a task name registered twice."""


class TooLarge(TreadleError, ValueError):
    """A text is beyond its size limit. Sizes are in bytes of UTF-8 unless `what` says characters."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} is {size:,} long, the limit is {limit:,}")


class UnknownTask(TreadleError, LookupError):
    """No task of that name is registered in this app."""

    def __init__(self, name: str, known: tuple[str, ...] = (), like: str | None = None) -> None:
        self.name, self.known = name, known
        hint = f"; did you mean {like!r}?" if like else ""
        listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        super().__init__(f"no task {name!r} here{hint} (known: {listed or 'none'})")


class UnknownSchedule(TreadleError, LookupError):
    """No schedule of that name is stored. One declared in code is stored when a worker with that code starts."""

    def __init__(self, name: str, like: str | None = None) -> None:
        self.name, self.like = name, like
        hint = f"; did you mean {like!r}?" if like else ";"
        super().__init__(f"there is no schedule {name!r}{hint} `treadle schedules list` shows those there are")


class UnknownJob(TreadleError, LookupError):
    """There is no such job: it never was, or its row was pruned after its retention."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"no job {id!r} is stored: never enqueued here, or pruned after its retention")


class UnknownUpstream(UnknownJob):
    """`after` names a job that is not stored, or that the caller's token does not see. With `wait_timeout` a job waits
    for one that is not stored yet; jobs of a token that is bound to queues do not."""

    def __init__(self, id: str, waiting: str | None = None) -> None:
        self.id, self.waiting = id, waiting
        first = f"job {waiting}" if waiting else "a job"
        advice = "enqueue that first, or give wait_timeout= if your token is not bound to queues"
        TreadleError.__init__(self, f"{first} waits for unknown job {id!r}; {advice}")


class KeyHeld(TreadleError):
    """An unfinished job holds the key; nothing was stored. `id` is empty where the caller has no right to that job."""

    def __init__(self, key: str, id: str) -> None:
        self.key, self.id = key, id
        holder = f"job {id}" if id else "a job of a queue that this call has no right to; choose another key"
        super().__init__(f"key {key!r} is held by {holder}")


class IdTaken(TreadleError):
    """A job with the chosen id is stored, of another task or with other arguments; this call stored nothing.

    task   the task of the stored job; None where the caller has no right to that job, or the id is one of Treadle's own
    asked  the task of the job that was asked for
    other  whether the stored arguments, as the codec's text, differ from those asked for
    """

    def __init__(self, id: str, task: str | None, asked: str, other: bool) -> None:
        self.id, self.task, self.asked, self.other = id, task, asked, other
        if task is None:
            super().__init__(
                f"id {id!r} is taken by a job that this call has no right to see, or that belongs elsewhere; choose "
                "another id"
            )
            return
        found = f"a job of {task}" if task else "a promise"
        expected = f"{asked} with the same arguments" if task == asked else asked or "a promise"
        super().__init__(
            f"id {id!r} is taken by {found}{' with other arguments' if other else ''}, expected {expected}; "
            "choose another id, or repeat the call with the task and arguments of the stored job"
        )


class ForeignRow(TreadleError):
    """A row that Treadle derives, such as a signal or a mark, was stored by another caller. It is not used."""

    def __init__(self, id: str, found: str, expected: str) -> None:
        self.id, self.found, self.expected = id, found, expected
        super().__init__(
            f"row {id} is in queue {found!r} and not where this job looks for it, in queue {expected!r} and in its "
            "workflow: another caller has stored it. Find out which, and cancel that row. If jobs of two queues share "
            "a key of once(), give each queue a key of its own"
        )


class Stale(TreadleError):
    """The job has moved on: it was settled or claimed by somebody else meanwhile. Nothing was changed."""

    def __init__(self, id: str, found: str) -> None:
        self.id, self.found = id, found
        super().__init__(f"job {id} has moved on: it is {found}")


class BadStep(TreadleError, ValueError):
    """Durable code used in a way that a later run could not repeat: `step` is its name, `problem` what is wrong."""

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(f"step {step!r}: {problem}")


class StepMismatch(TreadleError):
    """The function asks for other steps, or in another order, than the run that began this job.

    recorded  the step that was taken at this point, or this step with the one before it
    asked     the step that is asked for now; `after` the one before it ("" for the first)
    """

    def __init__(self, id: str, asked: str, after: str, recorded: str) -> None:
        self.id, self.asked, self.after, self.recorded = id, asked, after, recorded
        place = f"after {after!r}" if after else "first"
        super().__init__(
            f"job {id} began with other code: it asks for step {asked!r} {place}, but recorded is {recorded}; "
            "keep names and order of the steps for jobs under way, and give a changed function a new task name"
        )


class Signalled(TreadleError):
    """The job was given that signal before; the first value stays, this one was not stored."""

    def __init__(self, id: str, name: str) -> None:
        self.id, self.name = id, name
        super().__init__(f"job {id} was given the signal {name!r} before; the first value stays")


class MoveFailed(TreadleError):
    """A move cannot begin, go on or be given up; the message says what to do. Nothing was lost."""


class RemoteFailure(TreadleError):
    """A function of `kind="process"` raised. The exception stayed in its process; this says what it was.

    type, module  the name of its class, and where that is defined
    message       its text
    text          its traceback, as the process saw it
    """

    def __init__(self, type: str, module: str, message: str, text: str) -> None:
        self.type, self.module, self.message, self.text = type, module, message, text
        super().__init__(text)


class ProcessDied(TreadleError):
    """The process in which a function of `kind="process"` ran has died. A counted failure.

    `code` is its exit code, negative for the signal that killed it (-9: often the kernel, out of memory).
    """

    def __init__(self, task: str, code: int, signal: str | None = None) -> None:
        self.task, self.code, self.signal = task, code, signal
        named = f" ({signal})" if signal else ""
        how = f"died with signal {-code}{named}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"{task}: the process {how} before the function returned")


def error_line(text: str | None) -> str:
    """A stored error in one line: the type of the exception and the first line of its message. "" for None.

    Treadle stores that line first, then the traceback. A runner in another language may store a bare Python traceback:
    there it is the first line that is not indented, behind the frames.
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
    """What became of a job that did not succeed. `error` is the stored text, `reason` one word."""

    def __init__(self, id: str, task: str, reason: str | None, error: str | None) -> None:
        self.id, self.task, self.reason, self.error = id, task, reason, error
        super().__init__(f"{task or 'promise'} {id} ({reason}): {error_line(error) or 'no details'}")


class JobFailed(JobNotDone):
    """The job failed: its attempts are used up, it was aborted, or its worker was lost too often."""


class JobExpired(JobFailed):
    """The job's deadline passed before it ended."""


class WorkflowFailed(JobFailed, ExceptionGroup[JobNotDone]):
    """Jobs that came of this one did not succeed, and nothing said what to do then. `exceptions` has a JobNotDone for
    each that failed by itself, with its id, task, reason and error."""

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
        """The same with some of the failures: for `split`, `subgroup` and `except*`."""
        return WorkflowFailed(self.id, self.task, self.reason, self.error, excs)

    def __str__(self) -> str:
        return self.message


class JobCancelled(JobNotDone):
    """The job was cancelled: asked for, superseded by another, or because of a job it waited for."""


class StorageError(TreadleError):
    """The storage refused a call. Nothing of that call was stored."""


class BadUrl(StorageError, ValueError):
    """A storage URL that cannot be understood."""


class StorageUnavailable(StorageError, ConnectionError):
    """The storage cannot be reached now. Whether the last call was applied is not known; repeating it is safe."""


class AnswerTooLarge(StorageUnavailable):
    """More came than a client takes: from a hostile server, or from a good one that was asked for too much at once.

    `unit` is what was counted: bytes, values, arrays and objects, jobs, or pages.
    """

    def __init__(self, place: str, limit: int, unit: str = "bytes", advice: str = "") -> None:
        self.place, self.limit, self.unit, self.advice = place, limit, unit, advice
        super().__init__(
            f"{place}: expected an answer of at most {limit:,} {unit}, found more{advice and f'; {advice}'}"
        )


class StorageFull(StorageError):
    """There is no room, or the storage is read-only. Nothing of the call was stored."""


class StorageDenied(StorageError):
    """The server refuses the user: the credentials are wrong, or the user lacks a right. Waiting does not help."""


class SchemaTooNew(StorageError):
    """The storage was written by a newer Treadle than this one."""

    def __init__(self, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(f"the storage has schema {found}, this Treadle knows up to {known}: upgrade Treadle")


class NotADatabase(StorageError):
    """The file is something else than a Treadle database, or cannot be made because its folder does not exist."""


class Unsupported(StorageError):
    """This kind of storage cannot do what was asked. `storage` names it, `what` was asked, `instead` what does it."""

    def __init__(self, storage: str, what: str, instead: str) -> None:
        self.storage, self.what, self.instead = storage, what, instead
        super().__init__(f"{storage} cannot do {what}; {instead}")


class BadSession(StorageError, ValueError):
    """What was given as `within=` is no transaction the jobs could be part of. Nothing was stored.

    `session` says what was given, `problem` why it will not do.
    """

    def __init__(self, session: str, problem: str) -> None:
        self.session, self.problem = session, problem
        super().__init__(f"within={session}: {problem}")


class StorageMoved(StorageError):
    """The jobs of this storage live elsewhere now; nothing is stored here any more. `target` is the URL, masked."""

    def __init__(self, storage: str, target: str) -> None:
        self.storage, self.target = storage, target
        super().__init__(f"the jobs of {storage} were moved to {target}: use that URL from now on")


class NestedTransaction(StorageError):
    """A call was made inside a transaction without it, and would wait for itself."""


class EventLoopError(NestedTransaction, RuntimeError):
    """The event loop the app is open on cannot carry out the call: nobody runs it, or it is the caller's own and would
    wait for itself. It is a NestedTransaction for programs that were written before it had a name of its own."""


class UnknownName(UserWarning):
    """A call named a queue, limit, task, label or signal that nothing else uses, so it may be mistyped. The call is
    done."""


class OldRows(UserWarning):
    """A call looked at a storage whose jobs live elsewhere since a move: what it answers no longer changes."""
