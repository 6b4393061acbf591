"""Computes the outcome of a job that has run, or could not run: all policy, in pure functions.

Workers and the HTTP server use it; storages do not decide.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from treadle.core import defaults, ids, interrupts
from treadle.core.errors import RESULT, UNREADABLE, StorageError, TreadleError
from treadle.core.model import ABORTED, ASLEEP, ERROR, EXPIRED, LOST, PAUSED, NewJob, Outcome, Pairs, Record, State
from treadle.policy import attempts, guilt
from treadle.policy.error_text import cut, message_of, text_of
from treadle.policy.retry import ABORT, DEFAULT, USED_UP, Abort, Defer, Retry, RetryAfter, RetryNow, read_policy

log = logging.getLogger("treadle")

HOLD = "treadle.limit"  # the system task that pauses a limit for some time

Verdict = RetryNow | RetryAfter | Defer | Abort | None
AFTER = "treadle:after"  # checkpoint with the returned ids of `after`, for a job that waits for others in its run

OnError = Callable[[BaseException, "Failure"], Verdict]


class Failure(Struct, frozen=True):
    """The second argument of `on_error`, after the exception."""

    id: str
    task: str
    attempt: int  # the number of this attempt, from 1
    attempts: int | None  # how many it may have; None: no limit
    record: Record

    @classmethod
    def of(cls, record: Record, attempt: int, retry: Retry) -> Failure:
        """The failure of this attempt of a job, or of this try of its step."""
        attempts = retry.attempts if isinstance(retry.attempts, int) else None
        return cls(record.job.id, record.job.task, attempt, attempts, record)


class Held(Struct, frozen=True):
    """The payload of a `treadle.limit` job: the limit, and the seconds to pause it."""

    limit: str
    seconds: float


class Rules(Struct, frozen=True):
    """The complete policy for one job."""

    retry: Retry
    timeout: float | None
    max_lost: int
    pass_result: bool | Literal["list"] = False
    marks: bool = False
    is_part: bool = False  # it runs over the history of another job, see `policy/parts.py`


def rules_for(record: Record, retry: Retry, timeout: float | None, max_lost: int) -> Rules:
    """The job's own policy, over the task's, over the default."""
    policy = read_policy(record.job.retry)
    own = retry if policy.retry is UNSET else policy.retry.over(retry)
    return Rules(
        own.over(DEFAULT),
        timeout if isinstance(policy.timeout, UnsetType) else policy.timeout,
        max_lost if isinstance(policy.max_lost, UnsetType) else policy.max_lost,
        policy.pass_result,
        policy.marks,
        policy.cleans or bool(policy.takes),
    )


def succeeded(record: Record, result: str, checkpoints: Pairs = (), note: str | None = None) -> Outcome:
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.SUCCEEDED,
        attempt=record.attempt + 1,
        result=result,
        checkpoints=checkpoints,
        note=note,
    )


def released(
    record: Record, delay: float = 0.0, checkpoints: Pairs = (), note: str | None = None, reason: str | None = None
) -> Outcome:
    """Run again after `delay` s, not counted as an attempt; with 0 it keeps its queue position. The error stays."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        delay=delay,
        attempt=record.attempt,
        result=record.result,
        error=record.error,
        reason=reason,
        checkpoints=checkpoints,
        note=note,
    )


def ended(record: Record, reason: str, error: str, checkpoints: Pairs = (), note: str | None = None) -> Outcome:
    """Failed, without a retry."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.FAILED,
        attempt=record.attempt + 1,
        reason=reason,
        error=error,
        checkpoints=checkpoints,
        note=note,
    )


def has_returned(outcome: Outcome) -> bool:
    """Whether the function has returned; its job may still wait for children."""
    return outcome.state is State.SUCCEEDED or (outcome.state is State.WAITING and outcome.function_done)


def unstorable(outcome: Outcome, why: str) -> StorageError:
    """The error of an outcome that the storage refuses. If the function has returned, its job fails at once, because a
    retry would repeat its effects."""
    error = StorageError(why)
    error.fails_as = RESULT if has_returned(outcome) else None
    return error


def asleep(record: Record, key: str, delay: float, now: float) -> Outcome:
    """Run again after `delay` s, when the sleep `key` is over; not counted. Expired if that is after its deadline."""
    if _too_late(record, now + delay):
        return ended(record, EXPIRED, "it would sleep beyond its deadline")
    return released(record, max(delay, 0.001), guilt.cleared_note(record), reason=ASLEEP + key)


def awaiting(record: Record, after: tuple[str, ...], followups: tuple[NewJob, ...] = ()) -> Outcome:
    """Run again when these jobs have ended in any state; not counted."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.WAITING,
        attempt=record.attempt,
        error=record.error,
        after=after,
        followups=followups,
        checkpoints=(*guilt.cleared_note(record), *kept_upstreams(record)),
    )


def upstreams(record: Record) -> tuple[str, ...]:
    """The jobs that this job waited for before it ran, in the order of its `after`. If another row was returned for an
    id, because the id was known or its key held, that row's id."""
    after = record.job.after
    if not after:
        return ()
    noted = dict(record.checkpoints).get(AFTER)
    if noted is None:
        return record.after
    try:
        answers = msgspec.json.decode(noted, type=dict[str, str])
    except UNREADABLE:  # another program has stored it: a bad row must not stop a worker
        return record.after
    return tuple([answers.get(up, up) for up in after])


def kept_upstreams(record: Record) -> Pairs:
    """The checkpoint with the ids of `after`, for an outcome that replaces `Record.after` by other jobs."""
    after = record.job.after
    if not after or AFTER in dict(record.checkpoints):
        return ()
    answers = {up: row for up, row in zip(after, record.after, strict=False) if up != row}
    return ((AFTER, msgspec.json.encode(answers).decode()),)


def lost_too_often(record: Record, rules: Rules) -> Outcome | None:
    """The ending of a job that has lost too many workers while nothing else ran there: it crashes them. With a
    `max_lost` of 1 it does not run again whatever else ran: how far it came is unknown."""
    meaning, once = guilt.guilt_of(record), rules.max_lost == 1
    lost = record.lost - meaning.cleared if once else meaning.alone
    if lost < rules.max_lost or rules.max_lost == 0:
        return None
    how = (
        "1 worker was lost while it ran this job" if once else f"{lost} workers were lost while they ran only this job"
    )
    text = f"{how}; it will not run again (max_lost={rules.max_lost})"
    if deaths := [attempts.death_words(death) for death in attempts.deaths(record)[-lost:]]:
        text = cut(f"{text}: {', '.join(deaths)}")
    return Outcome(
        id=record.job.id, version=record.version, state=State.FAILED, attempt=record.attempt, reason=LOST, error=text
    )


def failed(
    record: Record,
    rules: Rules,
    error: BaseException,
    verdict: Verdict,
    now: float,
    fraction: float,
    checkpoints: Pairs = (),
    note: str | None = None,
) -> Outcome:
    """The outcome of a run that raised. `verdict` is the result of `on_error`; a Defer, an Abort or a `Retry.after`
    that the task raised wins, and anything that is not a verdict is ignored. An error that the same code would raise
    again (`fails_as`) is retried only if the verdict is `Retry.now()` or `Retry.after(...)`. A result that cannot be
    stored is never retried, because the function has done its work.

    now     the storage's time, to compare the next attempt with the deadline
    fraction  0 to 1, for the jitter
    """
    decision = error if isinstance(error, Defer | Abort | RetryAfter) else verdict
    text = text_of(error)
    at_once = None if record.job.queue == defaults.SYSTEM_QUEUE else fails_as(error)  # a later version may succeed
    if at_once == RESULT:
        return ended(record, RESULT, text, checkpoints, note)
    if isinstance(decision, Abort):
        return ended(record, ABORTED, _aborted(decision, error, text), checkpoints, note)
    if isinstance(decision, Defer):
        delay = decision.delay(now)
        if _too_late(record, now + delay):
            return ended(record, EXPIRED, f"deferred beyond its deadline; {text}", checkpoints, note)
        # READY with delay 0 would return to its queue position, and be claimed again ahead of all others, for ever.
        out = released(record, max(delay, 0.001), (*checkpoints, *guilt.cleared_note(record)), note, decision.reason)
        if decision.limit is None or not delay:
            return out
        return replace(out, followups=(_hold(record, decision.limit, delay),))
    if at_once is not None and not isinstance(decision, RetryNow | RetryAfter):
        return ended(record, at_once, text, checkpoints, note)
    attempt, attempts = record.attempt + 1, rules.retry.attempts
    if isinstance(attempts, int) and attempt >= attempts:
        if rules.retry.then == "pause":
            pairs = (USED_UP, *checkpoints, *guilt.cleared_note(record))
            return replace(released(record, defaults.MAX_DELAY, pairs, note, PAUSED), attempt=attempt, error=text)
        return ended(record, ERROR, text, checkpoints, note)
    delay = _wait(decision, rules, attempt, fraction)
    if _too_late(record, now + delay):
        return ended(record, EXPIRED, f"the next attempt would be after its deadline; {text}", checkpoints, note)
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        delay=delay,
        attempt=attempt,
        error=text,
        checkpoints=(*checkpoints, *guilt.cleared_note(record)),
        note=note,
    )


def verdict_of(on_error: OnError | None, error: BaseException, failure: Failure) -> Verdict:
    """The verdict of the user's classifier. If it raises, the error is logged and there is no verdict."""
    if on_error is None:
        return None
    try:
        verdict: object = on_error(error, failure)
        if verdict is None or isinstance(verdict, RetryNow | RetryAfter | Defer | Abort):
            return verdict
        if inspect.iscoroutine(verdict):
            verdict.close()
        expected = "expected Retry.now(), Retry.after(s), Defer(s), Abort() or None from a plain function"
        raise TypeError(f"{expected}, found {verdict!r}")
    except BaseException as broken:  # a plain function: also a CancelledError is its own
        interrupts.pass_on(broken)
        log.exception("on_error failed for %s %s; using the default", failure.task, failure.id)
        return None


def fails_as(error: BaseException) -> str | None:
    """The reason with which a job fails at once if its run raises this error, or a group with it; None: it does not."""
    if isinstance(error, TreadleError):
        return error.fails_as
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(fails_as, error.exceptions)), None)
    return None


def _wait(verdict: Verdict, rules: Rules, attempt: int, fraction: float) -> float:
    """Seconds until the attempt after this counted one."""
    match verdict:
        case RetryNow():
            return 0.0
        case RetryAfter():
            return verdict.seconds
        case _:
            return rules.retry.delay(attempt, fraction)


def _hold(record: Record, limit: str, delay: float) -> NewJob:
    """The job that pauses a limit for `delay` s; it replaces an unfinished one for the same limit."""
    return NewJob(
        id=f"treadle:hold:{ids.digest(record.job.id, record.version, limit)}",
        task=HOLD,
        queue=defaults.SYSTEM_QUEUE,
        payload=msgspec.json.encode(Held(limit, delay)).decode(),
        key=f"{HOLD} {limit}",
        key_conflict="replace",
        lease=defaults.OWN_LEASE,
        keep=0.0,
        keep_failed=0.0,
    )


def _too_late(record: Record, moment: float) -> bool:
    return record.deadline_at is not None and moment >= record.deadline_at


def _aborted(verdict: Abort, error: BaseException, text: str) -> str:
    """The message of an Abort, with the traceback of the error that caused it, if there is one."""
    if verdict is error:
        return text
    message = message_of(verdict)
    return cut(f"{message}; {text}") if message != ABORT else text
