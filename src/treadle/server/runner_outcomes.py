"""Turns the reports of runners in other languages into outcomes: a failure becomes a retry or an end by the policy.

Runners therefore need not implement the retry rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.claim_ids import worker_name
from treadle.core.errors import RESULT, RemoteFailure, TooLarge, TreadleError
from treadle.core.events import was_lost
from treadle.core.job import inheriting
from treadle.core.model import NewJob, Outcome, Pairs, Record
from treadle.policy import attempts, judge
from treadle.policy.costs import costs_of
from treadle.policy.error_text import text_of
from treadle.policy.retry import Abort, Defer, Retry
from treadle.server.errors import Refused
from treadle.server.time_slices import TimeSlices
from treadle.storage.messages import RunReport
from treadle.workflow.plan import PLAIN, adopted, called_stem, continued, either_id, mark_id, time_left


class Reported(RemoteFailure):
    """A failure that a runner reported; its text is stored unchanged."""

    def __init__(self, text: str) -> None:
        super().__init__("Reported", "", text, text)


def check(report: RunReport) -> bool:
    """Whether the report needs judging. Raises Refused unless it reports exactly one outcome."""
    kinds = [
        report.state is not None,
        report.succeed is not UNSET,
        report.fail is not None,
        report.abort is not None,
        report.defer is not None,
    ]
    # "followups" alone is an outcome, too: the job continues as these. "again" goes only with "followups".
    if sum(kinds) != (0 if report.followups and not any(kinds) else 1) or (
        report.again and (any(kinds) or not report.followups)
    ):
        message = f"job {report.id}: expected exactly one of state, succeed, fail, abort and defer, or followups alone"
        raise Refused(422, "wrong_shape", message, id=report.id)
    if report.followups and report.state is None and report.succeed is UNSET and any(kinds):
        raise Refused(422, "wrong_shape", f"job {report.id}: only a successful run may have followups", id=report.id)
    if report.defer is not None and not report.defer >= 0:
        raise Refused(422, "wrong_shape", f"job {report.id}: defer: expected seconds, found {report.defer}")
    if report.state is None:
        for job in report.followups:
            if job.id and (wrong := ids.problem(job.id)):
                raise Refused(422, "wrong_id", f"job {report.id}: followups: {wrong}", id=job.id)
    return report.state is None


def judged(
    report: RunReport, row: Record, retry: Retry, max_lost: int, now: float, fraction: float, most: int
) -> Outcome:
    """The outcome of a run whose report needs judging. A result of more than `most` bytes fails its job at once."""
    # A report that is repeated after a lost response finds the row one version later. Judged by the earlier version it
    # gives the same outcome, and the storage returns "applied".
    again = row.version == report.version + 1 and row.attempt > 0 and report.defer is None and not report.again
    record = replace(row, version=report.version, attempt=row.attempt - 1 if again else row.attempt)
    rules = judge.rules_for(record, retry, None, max_lost)
    own = None if report.succeed is UNSET else bytes(report.succeed).decode()
    lost = attempts.losses(record) if was_lost(record) else ()
    if own is not None and len(own) * 4 > most and (size := len(own.encode())) > most:
        return _unstorable(record, TooLarge.of_result(f"the result of {row.job.task}", size, most), now, report, lost)
    if report.followups or own is not None:
        report = replace(report, checkpoints=(*report.checkpoints, *lost))
    if report.followups:
        return _continued(report, record, own, rules.marks, now)
    if own is not None:
        return judge.succeeded(record, own, report.checkpoints, report.note)
    if report.defer is not None:
        error: BaseException = Defer(report.defer)
    elif report.abort is not None:
        error = Abort(report.abort)
    else:
        error = Reported(report.fail or "it failed")
    failed = judge.failed(record, rules, error, None, now, fraction, report.checkpoints, report.note)
    return attempts.noted(record, failed, worker_name(record.worker), now, lost)


def refused(outcome: Outcome, reason: str, row: Record, now: float) -> Outcome:
    """The failed outcome of a job whose function has returned, but whose reported outcome cannot be stored. The runner
    could only run the job again."""
    record = replace(row, version=outcome.version)
    lost = attempts.losses(record) if was_lost(record) else ()
    report = RunReport(id=row.id, version=outcome.version)
    failed = _unstorable(record, judge.unstorable(outcome, reason), now, report, lost)
    return replace(failed, spent=outcome.spent)


def with_spent(outcome: Outcome, report: RunReport, row: Record) -> Outcome:
    """The outcome with what the run has spent of its limits. Raises BadOption for a limit that the job does not
    name."""
    if not report.spent:
        return outcome
    return replace(outcome, spent=tuple(costs_of(row.job.limits, dict(report.spent), {}).items()))


def _unstorable(record: Record, error: TreadleError, now: float, report: RunReport, lost: Pairs) -> Outcome:
    failed = judge.ended(record, RESULT, text_of(error), report.checkpoints, report.note)
    return attempts.noted(record, failed, worker_name(record.worker), now, lost)


def lost_too_often(rows: Sequence[Record], retry: Retry, max_lost: int) -> list[Outcome]:
    """Failed outcomes for the rows whose leases expired too often."""
    outcomes = [judge.lost_too_often(row, judge.rules_for(row, retry, None, max_lost)) for row in rows if row.lost]
    return [outcome for outcome in outcomes if outcome is not None]


def _continued(report: RunReport, record: Record, own: str | None, marks: bool, now: float) -> Outcome:
    """The outcome of a run with children: it waits for them, then ends or runs again."""
    jobs = report.followups
    remaining = time_left(record, now)
    if report.again:
        followups = tuple(adopted(job, record.job, remaining) for job in jobs)
        waits = judge.awaiting(record, tuple(job.id for job in followups), followups)
        return replace(waits, checkpoints=(*waits.checkpoints, *report.checkpoints), note=report.note)
    outcome = continued(record, jobs, PLAIN, own, remaining, report.note, marks)
    return replace(outcome, checkpoints=(*outcome.checkpoints, *report.checkpoints))


async def check_ids(outcomes: Iterable[Outcome]) -> None:
    """Raise Refused for a follow-up job whose id has the form of a derived id, but is not derived from this run."""
    turns = TimeSlices()
    for outcome in outcomes:
        await turns.step()
        stems = {job.id: stem for job in outcome.followups if (stem := ids.stem(job.id)) is not None}
        if not stems:
            continue
        own = {ids.derived(outcome.id, outcome.version), mark_id(outcome.id), called_stem(outcome.id)}
        own |= {either_id(job.id) for job in outcome.followups}
        for id, stem in stems.items():
            if stem not in own:
                derived = f"was not derived from version {outcome.version} of job {outcome.id}"
                message = f"followups: the id {id} {derived}: leave the id empty"
                raise Refused(422, "wrong_id", message, id=id)


def _named(report: RunReport) -> list[NewJob]:
    """The children with their ids.

    An empty id is derived, so that a repeated report stores no job twice. A chosen id gets a nonce that is the same in
    a repeated report; if another job has the id, the outcome is refused.
    """
    stem = ids.derived(report.id, report.version)
    return [
        replace(job, nonce=job.nonce or ids.digest(stem, job.id)[:16])
        if job.id
        else replace(job, id=f"{stem}-{number:06d}")
        for number, job in enumerate(report.followups, 1)
    ]


async def prepared(
    report: RunReport, row: Record, through: Callable[[Sequence[NewJob]], Awaitable[tuple[NewJob, ...]]]
) -> RunReport:
    """The report, whose children have ids and went through the middleware of the server's app. The middleware sees the
    headers that they inherit.

    An exception of a middleware fails the run, as it does for a run in Python.
    """
    if not report.followups:
        return report
    try:
        inherited = dict(row.job.headers)
        return replace(report, followups=await through([inheriting(new, inherited) for new in _named(report)]))
    except Exception as error:
        return RunReport(
            id=report.id,
            version=report.version,
            fail=text_of(error),
            checkpoints=report.checkpoints,
            note=report.note,
        )
