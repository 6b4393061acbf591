"""What becomes of a job that was run, or could not be: all policy, in pure functions.

Without it nothing would decide between another try and the end. Storages never judge; workers and the HTTP server
both ask here.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from treadle.core import defaults, ids
from treadle.core.model import ABORTED, ARGUMENTS, ERROR, EXPIRED, LOST, NewJob, Outcome, Pairs, Record, State
from treadle.errors import UNREADABLE, BadArgument, RemoteFailure
from treadle.policy.retry import ABORT, DEFAULT, Abort, Defer, Retry, RetryNow, read_policy

SUMMARY = 300  # characters of the line that sums up an error
FEW = re.compile("[0-9]{1,9}")  # a number of leases, as it is noted
HOLD = "treadle.limit"  # the task of our own that shuts a limit for a while

Verdict = RetryNow | Defer | Abort | None
AFTER = "treadle:after"  # the memo entry with the answered ids of `after`, of a job that waits for others in its run
FORGIVEN = "treadle:lost"  # the memo entry of that name: round and number of the leases lost that count no more

OnError = Callable[[BaseException, "Failure"], Verdict]


class Failure(Struct, frozen=True):
    """What `on_error` is told beside the exception."""

    id: str
    task: str
    attempt: int  # this one: 1 is the first
    attempts: int | None  # as many as it may have; None: without end
    record: Record


class Held(Struct, frozen=True):
    """What a hold is asked to do."""

    limit: str
    seconds: float


class Rules(Struct, frozen=True):
    """The policy one job is judged by, complete."""

    retry: Retry
    timeout: float | None
    max_lost: int
    pass_result: bool | Literal["list"] = False
    marks: bool = False


def rules_for(record: Record, retry: Retry, timeout: float | None, max_lost: int) -> Rules:
    """What the row asks for, over the task's policy, over the default."""
    policy = read_policy(record.job.retry)
    own = retry if policy.retry is UNSET else policy.retry.over(retry)
    return Rules(
        own.over(DEFAULT),
        timeout if isinstance(policy.timeout, UnsetType) else policy.timeout,
        max_lost if isinstance(policy.max_lost, UnsetType) else policy.max_lost,
        policy.pass_result,
        policy.marks,
    )


def succeeded(record: Record, result: str, memo: Pairs = (), note: str | None = None) -> Outcome:
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.SUCCEEDED,
        attempt=record.attempt + 1,
        result=result,
        memo=memo,
        note=note,
    )


def handed_back(
    record: Record, delay: float = 0.0, memo: Pairs = (), note: str | None = None, reason: str | None = None
) -> Outcome:
    """Later, uncounted; with delay 0 it keeps its turn. The last error stays."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        delay=delay,
        attempt=record.attempt,
        result=record.result,
        error=record.error,
        reason=reason,
        memo=memo,
        note=note,
    )


def ended(record: Record, reason: str, error: str, memo: Pairs = (), note: str | None = None) -> Outcome:
    """Failed, for good."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.FAILED,
        attempt=record.attempt + 1,
        reason=reason,
        error=error,
        memo=memo,
        note=note,
    )


def asleep(record: Record, delay: float, now: float) -> Outcome:
    """Back in so many seconds, uncounted; one that would sleep beyond its deadline has expired."""
    if _too_late(record, now + delay):
        return ended(record, EXPIRED, "it would sleep beyond its deadline")
    return handed_back(record, max(delay, 0.001), _forgiving(record))


def awaiting(record: Record, after: tuple[str, ...], then: tuple[NewJob, ...] = ()) -> Outcome:
    """Again when these have ended, however; uncounted."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.WAITING,
        attempt=record.attempt,
        error=record.error,
        after=after,
        then=then,
        memo=(*_forgiving(record), *kept_upstreams(record)),
    )


def upstreams(record: Record) -> tuple[str, ...]:
    """The rows this job waited for before it ran, in the order of its `after`: of an id that was known, or a key that
    was held, the row that answered."""
    asked = record.job.after
    if not asked:
        return ()
    noted = dict(record.memo).get(AFTER)
    if noted is None:
        return record.after
    try:
        answers = msgspec.json.decode(noted, type=dict[str, str])
    except UNREADABLE:  # another program has stored it: a bad row must not stop a worker
        return record.after
    return tuple([answers.get(up, up) for up in asked])


def kept_upstreams(record: Record) -> Pairs:
    """The memo entry for an outcome that makes a job wait for others: its row names those from then on."""
    asked = record.job.after
    if not asked or AFTER in dict(record.memo):
        return ()
    answers = {up: row for up, row in zip(asked, record.after, strict=False) if up != row}
    return ((AFTER, msgspec.json.encode(answers).decode()),)


def _forgiving(record: Record) -> Pairs:
    """Leases lost up to here count no more: a job that sleeps for a year may meet more than three deploys, and one
    that gets on does not take its workers down. They count again in another round."""
    return ((FORGIVEN, f"{record.round}:{record.lost}"),) if record.lost else ()


def _forgiven(record: Record) -> int:
    round, _, lost = dict(record.memo).get(FORGIVEN, "").partition(":")
    return int(lost) if round == str(record.round) and FEW.fullmatch(lost) else 0


def lost_too_often(record: Record, rules: Rules) -> Outcome | None:
    """The ending of a job whose leases keep running out: it seems to take its workers down with it."""
    lost = record.lost - _forgiven(record)
    if lost < rules.max_lost or rules.max_lost == 0:
        return None
    text = f"{lost} workers were lost while they ran it; it was not run again (max_lost={rules.max_lost})"
    return Outcome(
        id=record.job.id, version=record.version, state=State.FAILED, attempt=record.attempt, reason=LOST, error=text
    )


def failed(
    record: Record,
    rules: Rules,
    error: BaseException,
    verdict: Verdict,
    now: float,
    chance: float,
    memo: Pairs = (),
    note: str | None = None,
) -> Outcome:
    """What becomes of a run that raised. `verdict` is what `on_error` said; Defer and Abort raised by the task win.
    Anything else a classifier answers counts as nothing said. Stored arguments that do not fit the task are not tried
    again unless it asks for that.

    now     the storage's moment, to hold the next try against the deadline
    chance  0 to 1, for the jitter
    """
    said = error if isinstance(error, Defer | Abort) else verdict
    text = text_of(error)
    if isinstance(said, Abort):
        return ended(record, ABORTED, _aborted(said, error, text), memo, note)
    if isinstance(said, Defer):
        delay = said.delay(now)
        if _too_late(record, now + delay):
            return ended(record, EXPIRED, f"deferred beyond its deadline; {text}", memo, note)
        # READY with delay 0 would keep its turn and be claimed again before everybody else, for ever.
        out = handed_back(record, max(delay, 0.001), memo, note)
        return out if said.limit is None or not delay else replace(out, then=(_hold(record, said.limit, delay),))
    if isinstance(error, BadArgument) and error.permanent and not isinstance(said, RetryNow):
        return ended(record, ARGUMENTS, text, memo, note)
    attempt, attempts = record.attempt + 1, rules.retry.attempts
    if isinstance(attempts, int) and attempt >= attempts:
        return ended(record, ERROR, text, memo, note)
    delay = 0.0 if isinstance(said, RetryNow) else rules.retry.delay(attempt, chance)
    if _too_late(record, now + delay):
        return ended(record, EXPIRED, f"the next try would be after its deadline; {text}", memo, note)
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.READY,
        delay=delay,
        attempt=attempt,
        error=text,
        memo=memo,
        note=note,
    )


def _hold(record: Record, limit: str, delay: float) -> NewJob:
    """The job that shuts a limit for so long; while one is under way, a newer one takes its place."""
    return NewJob(
        id=f"treadle:hold:{ids.digest(record.job.id, record.version, limit)}",
        task=HOLD,
        queue=defaults.OWN_QUEUE,
        payload=msgspec.json.encode(Held(limit, delay)).decode(),
        key=f"{HOLD} {limit}",
        key_conflict="replace",
        lease=defaults.OWN_LEASE,
        keep=0.0,
        keep_failed=0.0,
    )


def _too_late(record: Record, moment: float) -> bool:
    return record.deadline_at is not None and moment >= record.deadline_at


def _aborted(said: Abort, error: BaseException, text: str) -> str:
    """The words of whoever aborted; with the traceback of what was behind it, if anything was."""
    if said is error:
        return text if error.__cause__ is not None else cut(message_of(error))
    words = message_of(said)
    return cut(f"{words}; {text}") if words != ABORT else text


def text_of(error: BaseException) -> str:
    """An exception as the row keeps it: a line with its type and the first line of its message, then its traceback
    without Treadle's own lines; at most 10,000 characters. `errors.error_line` reads the first line."""
    if isinstance(error, RemoteFailure):
        return cut(error.text)  # the process it was raised in has made it so
    try:
        found = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        _without_ours(found)
        text = f"{_summary(error)}\n{''.join(found.format()).rstrip()}"
    except BaseException as broken:  # an exception whose `__str__` exits must not end the worker
        text = f"{type(error).__name__} (its text cannot be shown: {type(broken).__name__})"
    return cut(text)


def message_of(error: BaseException) -> str:
    """What `str` says of an exception; empty if that raises."""
    try:
        return str(error)
    except BaseException:  # also SystemExit
        return ""


def _summary(error: BaseException) -> str:
    """Its type and the first line of its message; of a group, also the first exception in it."""
    module, name = type(error).__module__, type(error).__qualname__
    if module not in ("builtins", "__main__"):
        name = f"{module}.{name}"
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    line = f"{name}: {message}" if message else name
    if isinstance(error, BaseExceptionGroup):
        line += f": {_summary(error.exceptions[0])}"
    return line if len(line) <= SUMMARY else line[: SUMMARY - 3] + "..."


def cut(text: str) -> str:
    """At most 10,000 characters, begin and end kept; what UTF-8 cannot carry is replaced."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) > defaults.MAX_ERROR:
        half = defaults.MAX_ERROR // 2 - 20
        text = f"{text[:half]}\n... (shortened) ...\n{text[-half:]}"
    return text


_HERE = str(Path(__file__).parents[1])


def _without_ours(found: traceback.TracebackException) -> None:
    """Take our lines out, in everything that hangs on it: the runner's, a middleware's way in."""
    every: list[traceback.TracebackException | None] = [found]
    while every:
        each = every.pop()
        if each is not None:
            kept = [frame for frame in each.stack if not frame.filename.startswith(_HERE)]
            each.stack = traceback.StackSummary.from_list(kept)
            every += [each.__cause__, each.__context__, *(each.exceptions or ())]
