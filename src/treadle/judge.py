"""What becomes of a job that was run, or could not be: all policy, in pure functions.

Without it nothing would decide between another try and the end. Storages never judge; workers and the HTTP server
both ask here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from treadle import defaults
from treadle.errors import RemoteFailure
from treadle.model import ABORTED, ERROR, EXPIRED, LOST, Outcome, Pairs, Record, State
from treadle.retry import DEFAULT, Abort, Defer, Retry, RetryNow, read_policy

Verdict = RetryNow | Defer | Abort | None
OnError = Callable[[BaseException, "Failure"], Verdict]


class Failure(Struct, frozen=True):
    """What `on_error` is told beside the exception."""

    id: str
    task: str
    attempt: int                # this one: 1 is the first
    attempts: int | None        # as many as it may have; None: without end
    record: Record


class Rules(Struct, frozen=True):
    """The policy one job is judged by, complete."""

    retry: Retry
    timeout: float | None
    max_lost: int


def rules_for(record: Record, retry: Retry, timeout: float | None, max_lost: int) -> Rules:
    """What the row asks for, over the task's policy, over the default."""
    policy = read_policy(record.job.retry)
    own = retry if policy.retry is UNSET else policy.retry.over(retry)
    return Rules(
        own.over(DEFAULT),
        timeout if isinstance(policy.timeout, UnsetType) else policy.timeout,
        max_lost if isinstance(policy.max_lost, UnsetType) else policy.max_lost,
    )


def succeeded(record: Record, result: str, memo: Pairs = (), note: str | None = None) -> Outcome:
    return Outcome(
        id=record.job.id, version=record.version, state=State.SUCCEEDED, attempt=record.attempt + 1, result=result,
        memo=memo, note=note,
    )  # fmt: skip


def handed_back(record: Record, delay: float = 0.0, memo: Pairs = (), note: str | None = None) -> Outcome:
    """Later, uncounted; with delay 0 it keeps its turn. The last error stays."""
    return Outcome(
        id=record.job.id, version=record.version, state=State.READY, delay=delay, attempt=record.attempt,
        error=record.error, memo=memo, note=note,
    )  # fmt: skip


def ended(record: Record, reason: str, error: str, memo: Pairs = (), note: str | None = None) -> Outcome:
    """Failed, for good."""
    return Outcome(
        id=record.job.id, version=record.version, state=State.FAILED, attempt=record.attempt + 1, reason=reason,
        error=error, memo=memo, note=note,
    )  # fmt: skip


def lost_too_often(record: Record, rules: Rules) -> Outcome | None:
    """The ending of a job whose leases keep running out: it seems to take its workers down with it."""
    if record.lost < rules.max_lost or rules.max_lost == 0:
        return None
    text = f"{record.lost} workers were lost while they ran it; it was not run again (max_lost={rules.max_lost})"
    return Outcome(
        id=record.job.id, version=record.version, state=State.FAILED, attempt=record.attempt, reason=LOST, error=text
    )


def failed(
    record: Record, rules: Rules, error: BaseException, verdict: Verdict, now: float, chance: float,
    memo: Pairs = (), note: str | None = None,
) -> Outcome:  # fmt: skip
    """What becomes of a run that raised. `verdict` is what `on_error` said; Defer and Abort raised by the task win.

    now     the storage's moment, to hold the next try against the deadline
    chance  0 to 1, for the jitter
    """
    said = error if isinstance(error, Defer | Abort) else verdict
    text = text_of(error)
    if isinstance(said, Abort):
        return ended(record, ABORTED, text if said is not error else str(error), memo, note)
    if isinstance(said, Defer):
        delay = max(0.0, said.until.timestamp() - now) if isinstance(said.until, datetime) else said.seconds
        if _too_late(record, now + delay):
            return ended(record, EXPIRED, f"deferred beyond its deadline; {text}", memo, note)
        # READY with delay 0 would keep its turn and be claimed again before everybody else, for ever.
        return handed_back(record, max(delay, 0.001), memo, note)
    attempt, attempts = record.attempt + 1, rules.retry.attempts
    if isinstance(attempts, int) and attempt >= attempts:
        return ended(record, ERROR, text, memo, note)
    delay = 0.0 if isinstance(said, RetryNow) else rules.retry.delay(attempt, chance)
    if _too_late(record, now + delay):
        return ended(record, EXPIRED, f"the next try would be after its deadline; {text}", memo, note)
    return Outcome(
        id=record.job.id, version=record.version, state=State.READY, delay=delay, attempt=attempt, error=text,
        memo=memo, note=note,
    )  # fmt: skip


def _too_late(record: Record, moment: float) -> bool:
    return record.deadline_at is not None and moment >= record.deadline_at


def text_of(error: BaseException) -> str:
    """An exception as the row keeps it: its traceback from the user's code on, at most 10,000 characters."""
    if isinstance(error, RemoteFailure):
        return error.text  # the process it was raised in has made it so
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None and _is_ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, tb)).rstrip()
    except Exception as broken:  # an exception whose own __str__ raises must not lose the job
        text = f"{type(error).__name__} (its text cannot be shown: {type(broken).__name__})"
    text = text.encode("utf-8", "replace").decode()
    if len(text) > defaults.MAX_ERROR:
        half = defaults.MAX_ERROR // 2 - 20
        text = f"{text[:half]}\n... (shortened) ...\n{text[-half:]}"
    return text


_HERE = __file__.removesuffix("judge.py")


def _is_ours(filename: str) -> bool:
    return filename.startswith(_HERE)
