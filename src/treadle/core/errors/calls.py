"""Errors of a call: of its arguments, its options, or the task that it names."""

from __future__ import annotations

from treadle.core.errors.base import CODE, RESULT, TreadleError


class BadArgument(TreadleError, TypeError):
    """A call does not fit the task. `parameter` is the wrong one; None if the call as a whole is wrong.

    `permanent` is true for the arguments of a stored job that no later attempt of this program can read. Such a job
    fails at once. It is false for a call that the running function makes.
    """

    def __init__(self, task: str, parameter: str | None, problem: str) -> None:
        self.task, self.parameter, self.problem = task, parameter, problem
        place = f"{task}: parameter {parameter!r} " if parameter else f"{task}: "
        super().__init__(place + problem)


class BadOption(TreadleError, ValueError):
    """An option is outside its range. The message says what was found and what was expected."""

    def __init__(self, option: str, problem: str) -> None:
        self.option, self.problem = option, problem
        super().__init__(f"option {option!r}: {problem}")


class BadResult(TreadleError):
    """A function returned a value that cannot be stored. Its job fails at once: a retry would repeat the effects of the
    function, and get no better result. It is retried if a stored result of another job cannot be read."""

    fails_as: str | None = RESULT

    def __init__(self, task: str, problem: str) -> None:
        self.task, self.problem = task, problem
        super().__init__(f"{task}: the result {problem}")

    @classmethod
    def of_stored(cls, task: str, problem: str) -> BadResult:
        """The error for a stored result that cannot be read. The attempt that reads it may be repeated: the job whose
        result it is may be retried, and another worker may have the key or the codec that this one lacks."""
        error = cls(task, problem)
        error.fails_as = None
        return error


class BadCodec(TreadleError, ValueError):
    """A codec cannot store, or does not restore, a value that the annotations of its task allow."""

    fails_as: str | None = CODE


class BadTask(TreadleError, ValueError):
    """A function that cannot be a task, or a task name registered twice."""

    fails_as: str | None = CODE


class TooLarge(TreadleError, ValueError):
    """A text is longer than its limit. Sizes are in bytes of UTF-8 unless `what` says characters.

    A job whose result is too large fails at once, as one with a BadResult does.
    """

    def __init__(self, what: str, size: int, limit: int, advice: str = "") -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} is {size:,} long, the limit is {limit:,}{advice and f'; {advice}'}")

    @classmethod
    def of_result(cls, what: str, size: int, limit: int, cure: str = "") -> TooLarge:
        """The error of a function whose result is too large: its job fails at once. `cure`: what else helps."""
        error = cls(what, size, limit, f"{cure}store the data elsewhere and return a reference to it")
        error.fails_as = RESULT
        return error


class UnknownTask(TreadleError, LookupError):
    """No task of that name is registered in this app."""

    fails_as: str | None = CODE

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
