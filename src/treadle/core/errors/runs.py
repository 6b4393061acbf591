"""Errors of a run: durable code that cannot be repeated, and functions in separate processes."""

from __future__ import annotations

from treadle.core.errors.base import CODE, TreadleError


class NotRunning(TreadleError, RuntimeError):
    """A call that needs a running job, such as `current()`, was made outside of one."""

    fails_as: str | None = CODE


class BadStep(TreadleError, ValueError):
    """Durable code that a later run could not repeat. `step` is the name of the step, `problem` the reason."""

    fails_as: str | None = CODE

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(f"step {step!r}: {problem}")


class UnknownVersion(TreadleError):
    """A job began with a version of its task that this code does not have."""

    fails_as: str | None = CODE

    def __init__(self, id: str, task: str, version: int, known: tuple[int, ...]) -> None:
        self.id, self.task, self.version, self.known = id, task, version, known
        has = ", ".join(map(str, known))
        super().__init__(
            f"job {id} began with version {version} of task {task!r}, and this code has version {has}: keep the "
            f"function with version={version} until these jobs have ended, or start a worker that has it"
        )


class StepMismatch(TreadleError):
    """The function asks for other steps, or in another order, than the run that began this job.

    recorded  the step that was recorded at this point, or this step with the one before it
    asked     the step that the function asks for now, "" if it ends; `after` the one before it ("" for the first)
    """

    fails_as: str | None = CODE

    def __init__(self, id: str, asked: str, after: str, recorded: str) -> None:
        self.id, self.asked, self.after, self.recorded = id, asked, after, recorded
        place = f"after {after!r}" if after else "first"
        takes = f"takes step {asked!r} {place}" if asked else f"ends after {after!r}" if after else "takes no step"
        super().__init__(
            f"job {id} began with other code: this run {takes}, but the stored run took "
            f"{recorded}; keep the names and order of the steps while jobs are running, and give a changed function a "
            "new task name"
        )

    @classmethod
    def of_arguments(cls, id: str, step: str) -> StepMismatch:
        """The error for a stored step that is called with other arguments."""
        error = cls(id, step, "", "other arguments")
        error.args = (
            f"job {id}: the arguments of step {step!r} changed: the run that stored it passed others; pass the same in "
            "every run, and read what changes (a clock, a list from outside) in a step",
        )
        return error


class StepFailed(TreadleError):
    """A step raised an error that no later run could raise again: its class is not at the top of a module that the
    worker has loaded, or its constructor does not take the error's `args`. So each run raises this one in its place.

    step     the key of the step
    kind     the name of the error's class, such as "Declined"
    message  the error's text
    """

    def __init__(self, step: str, kind: str, message: str) -> None:
        self.step, self.kind, self.message = step, kind, message
        super().__init__(f"step {step!r} raised {kind}{message and ': '}{message}")


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
