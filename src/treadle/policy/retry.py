"""When and how often a failed job is retried, and the exceptions by which a task decides itself.

A policy is stored in the row as JSON and merged field by field, so runners in other languages can read it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeGuard, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treadle.core import defaults
from treadle.core.argument_names import Spelled
from treadle.core.errors import UNREADABLE, BadOption, RemoteFailure, TreadleError
from treadle.core.ranges import OWN, a_name


def seconds(value: object, option: str) -> float:
    """A duration in seconds. Raises BadOption for a value that is negative, above 100 years, or not a duration."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= defaults.MAX_DELAY:
        raise BadOption(
            option, f"expected seconds (0 to {defaults.MAX_DELAY:,.0f}) or a timedelta, found {value!r:.60}"
        )
    return float(value)


def until(value: object, option: str, now: float) -> float:
    """Seconds from now to an aware datetime; 0 if it is past. Raises BadOption for one without a time zone."""
    if not isinstance(value, datetime):
        raise BadOption(option, f"expected a datetime, found {value!r}")
    if value.utcoffset() is None:
        aware = value.replace(tzinfo=UTC)
        raise BadOption(option, f"expected a datetime with a time zone, such as {aware!r}, found {value!r}")
    return max(0.0, min(value.timestamp() - now, defaults.MAX_DELAY))


def span_and_instant(value: object, option: str, now: float) -> tuple[float, float]:
    """An aware datetime as the seconds from now, by this process's clock, and as seconds since 1970, which a storage
    compares with its own. Raises BadOption."""
    span, instant = until(value, option, now), cast("datetime", value).timestamp()
    if instant - now > defaults.MAX_DELAY:
        raise BadOption(option, f"expected a datetime within the next 100 years, found {value}")
    return span, max(0.0, instant)


def _is_number(value: object, kind: Any = int | float) -> TypeGuard[float]:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value, int) and 1 <= value <= defaults.MAX_COUNT


class RetryNow(Struct, frozen=True):
    """Retry at once; the attempt counts. `Retry.now()` returns it."""


class RetryAfter(TreadleError):
    """Retry after `seconds`; the attempt counts. `Retry.after(30)` returns it: raise it, or return it from
    `on_error`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"retry after {seconds:g} s")


class RetryOnly:
    """An `on_error` that fails a job at once for every exception but those of these classes. `Retry.only(...)` returns
    it. The exception of a task of kind="process" is compared by the name of its class, without its base classes."""

    def __init__(self, kinds: tuple[type[BaseException], ...]) -> None:
        for kind in kinds:
            checked: object = kind
            if not (isinstance(checked, type) and issubclass(checked, BaseException)):
                raise BadOption("Retry.only", f"expected classes of exceptions, found {kind!r:.60}")
        self._kinds = kinds
        self._names = {(kind.__module__, kind.__qualname__) for kind in kinds}

    def __call__(self, error: BaseException, info: object) -> Abort | None:
        """None, if the exception is one of them: the task's retry policy applies."""
        if isinstance(error, self._kinds):
            return None
        if isinstance(error, RemoteFailure) and (error.module, error.type) in self._names:
            return None
        return Abort()


class Retry(Spelled, frozen=True, omit_defaults=True):
    """When a failed attempt is retried. Fields that are not set come from the app's `retry`, then from the defaults.

    attempts  at most, including the first one (5); None: no limit
    base      s before the second attempt (1)
    factor    ratio of each wait to the one before (2)
    max       s of a wait at most (300)
    jitter    share of the wait, at most, that is subtracted at random, 0 to 1 (0.5)
    then      when the attempts are used up: "fail" the job, or "pause" it until an operator resumes it ("fail"). An
              attempt that cannot be retried fails the job in any case
    Raises BadOption.
    """

    attempts: int | UnsetType | None = UNSET
    base: float | timedelta | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    max: float | timedelta | UnsetType = UNSET
    jitter: float | UnsetType = UNSET
    then: Literal["fail", "pause"] | UnsetType = UNSET

    def __post_init__(self) -> None:
        attempts: object = self.attempts
        if attempts is not UNSET and attempts is not None and not _is_count(attempts):
            raise BadOption(
                "retry", f"attempts: expected 1 to {defaults.MAX_COUNT:,}, or None for no end, found {attempts!r:.60}"
            )
        factor: object = self.factor
        if factor is not UNSET and not (_is_number(factor) and 1 <= factor < math.inf):
            raise BadOption("retry", f"factor: expected 1 or more, found {factor!r:.60}")
        jitter: object = self.jitter
        if jitter is not UNSET and not (_is_number(jitter) and 0 <= jitter <= 1):
            raise BadOption("retry", f"jitter: expected 0 to 1, found {jitter!r:.60}")
        then: object = self.then
        if then not in (UNSET, "fail", "pause"):
            raise BadOption("retry", f"then: expected 'fail' or 'pause', found {then!r:.60}")
        for name in ("base", "max"):
            value = self.base if name == "base" else self.max
            if value is not UNSET:
                msgspec.structs.force_setattr(self, name, seconds(value, f"retry.{name}"))

    @staticmethod
    def now() -> RetryNow:
        """For `on_error=`: retry at once; the attempt counts."""
        return RetryNow()

    @staticmethod
    def after(wait: float | timedelta) -> RetryAfter:
        """Retry after `wait` seconds; the attempt counts. Raise it (`raise Retry.after(30) from error`), or return it
        from `on_error`. Raises BadOption."""
        return RetryAfter(seconds(wait, "Retry.after"))

    @staticmethod
    def only(*kinds: type[BaseException]) -> RetryOnly:
        """For `on_error=`: retry only after exceptions of these classes; any other fails the job at once. Without
        classes, only `Retry.after` and `Defer` are followed by another run. Raises BadOption."""
        return RetryOnly(kinds)

    def over(self, below: Retry) -> Retry:
        """This policy, completed with the fields of `below`."""
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(below)
        return Retry(**{name: theirs[name] if value is UNSET else value for name, value in mine.items()})

    def delay(self, failed: int, fraction: float) -> float:
        """Seconds before the next attempt after `failed` failed ones; `fraction` is 0 to 1. All fields must be set."""
        base, factor, longest, jitter = self.base, self.factor, self.max, self.jitter
        assert isinstance(base, float)
        assert isinstance(longest, float)
        assert not isinstance(factor, UnsetType)
        assert not isinstance(jitter, UnsetType)
        try:
            wait = min(base * factor ** (failed - 1), longest)
        except OverflowError:
            wait = longest
        return wait * (1.0 - jitter * fraction)


PAUSE = "treadle:pause"  # the checkpoint with the last pause of a job, see `policy/pauses.py`
USED_UP = PAUSE, '{"used_up":true}'  # that of a job with `then="pause"`

DEFAULT = Retry(
    attempts=defaults.RETRY_ATTEMPTS,
    base=defaults.RETRY_BASE,
    factor=defaults.RETRY_FACTOR,
    max=defaults.RETRY_MAX,
    jitter=defaults.RETRY_JITTER,
    then="fail",
)


class Policy(Struct, frozen=True, omit_defaults=True):
    """The policy of one job as far as it differs from its task's; stored in the row as JSON text."""

    retry: Retry | UnsetType = UNSET
    timeout: float | UnsetType | None = UNSET
    max_lost: int | UnsetType = UNSET
    # The payload lacks the first argument: it is the result of the job waited for; "list": results of all that
    # succeeded.
    pass_result: bool | Literal["list"] = False
    marks: bool = False  # another job waits for its run alone: if the run continues as other jobs, it stores a mark
    cleans: bool = False  # a cleanup job, see `policy/cleanups.py`
    takes: str = ""  # of a job that makes one try of a step, the key of that step

    def __post_init__(self) -> None:
        timeout, lost = self.timeout, self.max_lost
        if isinstance(timeout, float | int) and not 0 < timeout <= defaults.MAX_DELAY:
            raise BadOption("timeout", f"expected more than 0 s, or None for no limit, found {timeout!r:.60}")
        if isinstance(lost, int) and not 0 <= lost <= defaults.MAX_COUNT:
            raise BadOption("max_lost", f"expected 1 or more, or 0 for any number, found {lost!r:.60}")

    def text(self) -> str | None:
        """The JSON text for the row; None if nothing differs."""
        return None if self == Policy() else msgspec.json.encode(self).decode()


_read = msgspec.json.Decoder(Policy).decode


def read_policy(text: str | None) -> Policy:
    """The policy of a row. One that cannot be read counts as none, because a bad row must not stop a worker."""
    if text is None:
        return Policy()
    try:
        return _read(text)
    except UNREADABLE:
        return Policy()


class Defer(TreadleError):
    """Raise it (or return it from `on_error`) to run again later; the attempt does not count.

    seconds  from now, or `until` an aware datetime
    limit    a limit to pause for the same time: after a 429, no job that names it starts before the time is over. With
             a partition ("tenant:42"), only this partition is paused.
    Raises BadOption.
    """

    reason: str | None = None  # of the row of the job, which Treadle sets

    def __init__(
        self, seconds_: float | timedelta = 0.0, *, until: datetime | None = None, limit: str | None = None
    ) -> None:
        self.seconds = seconds(seconds_, "Defer")
        self.until, self.limit = until, limit
        name: object = limit
        if name is not None and (not isinstance(name, str) or name != name.strip() or name.startswith(OWN)):
            raise BadOption("Defer", f"limit: expected the name of a limit, found {limit!r:.60}")
        if isinstance(name, str):
            a_name("Defer", name)
        moment: object = until
        if moment is not None and (not isinstance(moment, datetime) or moment.utcoffset() is None):
            raise BadOption("Defer", f"until: expected a datetime with a time zone, found {until!r}")
        super().__init__(f"deferred {f'until {until}' if until else f'for {self.seconds:g} s'}")

    def delay(self, now: float) -> float:
        """Seconds from `now`; 0 for a datetime in the past, at most 100 years."""
        return self.seconds if self.until is None else until(self.until, "Defer", now)


ABORT = "aborted"


class Abort(TreadleError):
    """Raise it (or return it from `on_error`) to fail the job at once, without retries."""

    def __init__(self, message: str = ABORT) -> None:
        super().__init__(message)
