"""What a runner in another language reports, as outcomes: "it failed" becomes a retry or an end by the row's policy.

Without it every runner would need our retry rules in its own language, and each would get them wrong differently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.model import NewJob, Outcome, Record
from treadle.errors import RemoteFailure
from treadle.policy import judge
from treadle.policy.retry import Abort, Defer, Retry
from treadle.server.errors import Refused
from treadle.server.time_slices import TimeSlices
from treadle.storage.messages import Report
from treadle.workflow.plan import PLAIN, adopted, continued, either_id, mark_id


class Reported(RemoteFailure):
    """What a runner elsewhere said of a failure; its text is stored as it is."""

    def __init__(self, text: str) -> None:
        super().__init__("Reported", "", text, text)


def check(report: Report) -> bool:
    """Whether the report has to be judged. Raises Refused unless it says exactly one thing."""
    said = [
        report.state is not None,
        report.succeed is not UNSET,
        report.fail is not None,
        report.abort is not None,
        report.defer is not None,
    ]
    # "then" alone says it as well: the job goes on as those; and "again" is said beside nothing else
    if sum(said) != (0 if report.then and not any(said) else 1) or (report.again and (any(said) or not report.then)):
        words = f"job {report.id}: expected exactly one of state, succeed, fail, abort, defer, or else then"
        raise Refused(422, "wrong_shape", words, id=report.id)
    if report.then and report.state is None and report.succeed is UNSET and any(said):
        raise Refused(422, "wrong_shape", f"job {report.id}: only a run that went well may have children", id=report.id)
    if report.defer is not None and not report.defer >= 0:
        raise Refused(422, "wrong_shape", f"job {report.id}: defer: expected seconds, found {report.defer}")
    if report.state is None:
        _check_chosen(report)
    return report.state is None


def judged(report: Report, row: Record, retry: Retry, max_lost: int, now: float, chance: float) -> Outcome:
    """The outcome of a run that was reported in a word."""
    # A report repeated after a lost answer finds the row one transition on: judged as it was the first time, it is
    # the same outcome again, and the storage says applied.
    again = row.version == report.version + 1 and row.attempt > 0 and report.defer is None and not report.again
    record = replace(row, version=report.version, attempt=row.attempt - 1 if again else row.attempt)
    rules = judge.rules_for(record, retry, None, max_lost)
    own = None if report.succeed is UNSET else bytes(report.succeed).decode()
    if report.then:
        return _goes_on(report, record, own, rules.marks, now)
    if own is not None:
        return judge.succeeded(record, own, report.memo, report.note)
    if report.defer is not None:
        error: BaseException = Defer(report.defer)
    elif report.abort is not None:
        error = Abort(report.abort)
    else:
        error = Reported(report.fail or "it failed")
    return judge.failed(record, rules, error, None, now, chance, report.memo, report.note)


def lost_too_often(rows: Sequence[Record], retry: Retry, max_lost: int) -> list[Outcome]:
    """The endings of those whose leases ran out too often."""
    found = []
    for row in rows:
        outcome = judge.lost_too_often(row, judge.rules_for(row, retry, None, max_lost)) if row.lost else None
        if outcome is not None:
            found.append(outcome)
    return found


def _goes_on(report: Report, record: Record, own: str | None, marks: bool, now: float) -> Outcome:
    """A run that has children: it waits for them, to be ended, or to be called again."""
    jobs = report.then
    left = None if record.deadline_at is None else max(0.0, record.deadline_at - now)
    if report.again:
        then = tuple(adopted(job, record.job, left) for job in jobs)
        waits = judge.awaiting(record, tuple(job.id for job in then), then)
        return replace(waits, memo=(*waits.memo, *report.memo), note=report.note)
    outcome = continued(record, jobs, PLAIN, own, left, report.note, marks)
    return replace(outcome, memo=(*outcome.memo, *report.memo))


async def check_ids(outcomes: Iterable[Outcome]) -> None:
    """Raises Refused for a new job whose id has the form of a derived one, but was not derived from this run."""
    turns = TimeSlices()
    for outcome in outcomes:
        await turns.step()
        found = {job.id: stem for job in outcome.then if (stem := ids.stem(job.id)) is not None}
        if not found:
            continue
        own = {ids.derived(outcome.id, outcome.version), mark_id(outcome.id)}
        own |= {either_id(job.id) for job in outcome.then}
        for id, stem in found.items():
            if stem not in own:
                words = f"then: {id} was not derived from version {outcome.version} of job {outcome.id}: leave id empty"
                raise Refused(422, "wrong_id", words, id=id)


def _check_chosen(report: Report) -> None:
    for job in report.then:
        if job.id and (wrong := ids.problem(job.id)):
            raise Refused(422, "wrong_id", f"job {report.id}: then: {wrong}", id=job.id)


def _named(report: Report) -> list[NewJob]:
    """The children with their ids: an empty one is derived, so that a repeated report stores nothing twice. A chosen
    one gets a nonce, which is the same in a repeated report: a job of others with this id refuses the outcome."""
    stem = ids.derived(report.id, report.version)
    return [
        replace(job, nonce=job.nonce or ids.digest(stem, job.id)[:16])
        if job.id
        else replace(job, id=f"{stem}-{number:06d}")
        for number, job in enumerate(report.then, 1)
    ]


async def prepared(report: Report, through: Callable[[Sequence[NewJob]], Awaitable[tuple[NewJob, ...]]]) -> Report:
    """The report with its children named, as the middleware of the server's app lets them through. What a middleware
    raises fails the run, as it does where the run was in Python."""
    if not report.then:
        return report
    try:
        return replace(report, then=await through(_named(report)))
    except Exception as error:
        return Report(
            id=report.id, version=report.version, fail=judge.text_of(error), memo=report.memo, note=report.note
        )
