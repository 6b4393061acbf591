"""Applies an outcome to a job, and a heartbeat to a running one."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from treadle.core.errors import UnknownUpstream
from treadle.core.model import APPLIED, ASKED, PAUSED, SUPERSEDED, LeaseRenewal, Outcome, Record, Settled, State
from treadle.storage.admission import rule_for, slots_fit
from treadle.storage.machine.endings import count_endings, end_job, wait_for_upstreams
from treadle.storage.machine.limits import kept, settle_costs, unblock_limits
from treadle.storage.machine.plan import StorePlan, plan
from treadle.storage.machine.queueing import queue_job, schedule_job
from treadle.storage.machine.reopen import remember, settle_ended
from treadle.storage.machine.rows import Rows, Steps
from treadle.storage.machine.store import store_all
from treadle.storage.row_rules import (
    REFUSALS,
    awaited,
    costs,
    first_moment,
    may_wait,
    named_outside,
    needed,
    refuse_circle,
    repeats,
    within,
)


def settle(rows: Rows, out: Outcome) -> Steps[Settled]:
    """Apply one outcome, or return why it does not apply."""
    row = rows.get(out.id)
    if row is None or not within(out.reach, row.job.queue):
        return Settled("stale", "there is no such job")
    if repeats(out, row, functools.partial(rows.remembers, out.id)):
        return APPLIED
    if row.version != out.version:
        return Settled("stale", f"it is {row.state} at version {row.version}")
    if row.state.final:
        return (yield from settle_ended(rows, row, out))
    stale = _stale_because_reopened(rows, row, out) if out.state.final else None
    if stale is not None:
        return stale
    try:
        planned = plan(rows, out.followups, leaving=out.id if out.state.final else "")
        for up in () if out.state.final else out.after:
            above = None if up in planned.answers else rows.get(up)
            if up not in planned.answers and (above is None or not may_wait(out, row, above.job)):
                raise UnknownUpstream(up, out.id)
        circle = _circle(rows, out, planned)
    except REFUSALS as error:
        return Settled("refused", str(error))
    if row.state is State.RUNNING and row.worker is not None and out.reason in (ASKED, SUPERSEDED, PAUSED):
        rows.topics.add(f"worker:{row.worker.rpartition('#')[0] or row.worker}")
    if out.spent:
        settle_costs(rows, row, out.spent)
    if out.state.final:
        row = replace(
            _with(rows, row, out), version=row.version, worker=row.worker if row.state is State.RUNNING else None
        )
        end_job(rows, row, out.state, out.reason, out.error, out.keep)
        yield from store_all(rows, planned)
    else:
        yield from _go_on(rows, row, out, planned, circle)
    yield from count_endings(rows)
    return APPLIED


def _stale_because_reopened(rows: Rows, row: Record, out: Outcome) -> Settled | None:
    """Why an ending that names failed jobs does not apply: one of them was reopened and has not failed again, or the
    outcome's job has not waited for it."""
    for up in out.after:
        if up not in row.after:
            return Settled("refused", str(UnknownUpstream(up, out.id)))
        above = rows.get(up)
        if above is not None and above.state not in (State.FAILED, State.CANCELLED):
            return Settled("stale", f"{up} is {above.state}")
    return None


def _circle(rows: Rows, out: Outcome, planned: StorePlan) -> set[str]:
    """The stored rows through which the outcome's job would wait for itself: follow-up jobs were answered with these
    rows or wait for them, and the rows are that job or wait for it, directly or through others."""
    if out.state is not State.WAITING or not out.followups:
        return set()
    fresh = {new.id for new in planned.fresh}
    stored = (set(planned.answers.values()) | named_outside(out, planned.answers, fresh)) - fresh
    if not stored:
        return set()
    circle = rows.waiting_for(out.id, stored)
    refuse_circle(out, planned.answers, circle, fresh)
    return circle


def _with(rows: Rows, old: Record, out: Outcome) -> Record:
    """The row with the values of an outcome, under the next version. Its checkpoints are stored."""
    if out.checkpoints:
        remember(rows, out)
    return replace(
        old,
        version=old.version + 1,
        attempt=out.attempt,
        result=out.result,
        value=out.value,
        error=out.error,
        reason=out.reason,
        note=out.note if out.note is not None else old.note,
        updated_at=rows.now,
        function_done=old.function_done or out.function_done,
        worker=None,
    )


def _go_on(rows: Rows, old: Record, out: Outcome, planned: StorePlan, circle: set[str]) -> Steps[None]:
    """Apply an outcome that does not end the job: it is queued or scheduled, or it waits."""
    row = _with(rows, old, out)
    if out.result is not None:
        rows.topics.add(f"job:{row.job.id}")
    rows.put(replace(row, queue_position=None, blocked_on=None, due_at=None, state=State.WAITING))
    yield from store_all(rows, planned, parent=old.job.id)
    if out.state is State.READY and out.delay <= 0:
        queue_job(rows, row, rows.now)
    elif out.state is State.READY:
        schedule_job(rows, row, rows.now + out.delay)
    else:
        yield from _wait(rows, row, out, awaited(out, planned.answers, circle))
    unblock_limits(rows, old)


def _wait(rows: Rows, row: Record, out: Outcome, after: tuple[str, ...]) -> Steps[None]:
    until = rows.now + out.delay if out.delay > 0 else None
    rows.unname(row.job.id)
    rows.put(
        replace(
            row,
            state=State.WAITING,
            after=after,
            pending=needed(out.required, after),
            failures_allowed=out.failures_allowed,
            queue_position=None,
            blocked_on=None,
            due_at=first_moment(None if row.function_done else row.deadline_at, until),
        )
    )
    yield from wait_for_upstreams(rows, row.job.id, after)


def renew(rows: Rows, renewal: LeaseRenewal, lease: float) -> bool:
    """Renew the lease of a job; False: the job is lost to its worker."""
    row = rows.get(renewal.id)
    if row is None or not _may_go_on(rows, row, renewal):
        return False
    note = renewal.note if renewal.note is not None else row.note
    if note != row.note:
        rows.topics.add(f"job:{row.job.id}")
    if renewal.checkpoints:
        rows.remember(renewal.id, renewal.checkpoints)
    rows.put(
        replace(
            row,
            state=State.RUNNING,
            queue_position=None,
            blocked_on=None,
            due_at=rows.now + min(row.job.lease or lease, lease),
            note=note,
            updated_at=rows.now,
        )
    )
    return True


def _may_go_on(rows: Rows, row: Record, renewal: LeaseRenewal) -> bool:
    """Whether no other claim took the job, and, if its lease expired, its limits still have slots for it."""
    if (
        not within(renewal.reach, row.job.queue)
        or row.version != renewal.version
        or row.worker is None
        or row.state not in (State.RUNNING, State.READY)
    ):
        return False
    if row.state is State.READY and not row.function_done:  # its lease expired and it was not claimed since
        has = kept(rows.rules, row)
        for key, cost in costs(row.job):
            rule = rule_for(rows.rules, key)
            if rule is not None and key not in has and not slots_fit(rule, rows.used(key), cost):
                return False
    return True
