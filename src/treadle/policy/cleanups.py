"""The cleanup job of a durable job that did not succeed: it runs the function over the history of the ended job. Pure.

It is a row of its own, of the same task and queue, that waits for the job. So the job ends at once, whoever ends it,
and its cleanup has attempts, a lease and an ending of its own.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from treadle.core import ids
from treadle.core.model import (
    ARGUMENTS_NOW,
    ASLEEP,
    BEGUN_WITH,
    EXPIRED,
    LOST,
    OURS,
    PUBLISHED,
    ROUND,
    STREAM,
    NewJob,
    Outcome,
    Pairs,
    Record,
    State,
)
from treadle.core.own_checkpoints import own_checkpoints
from treadle.policy import judge
from treadle.policy.parts import is_part, part_of

PREFIX: Final = "treadle:cleanup:"  # prefix of the ids of cleanup jobs
# Checkpoint of a job: the number of the reopening for which its cleanup job is stored.
STORED: Final = "treadle:cleanup"
# Checkpoint of a cleanup job: the run that the cancellation interrupted has ended, and these of its steps had not been
# stored with the job. With ":" and the id of a try behind it: so has that of the try.
FREE: Final = "treadle:free"
# Why a cleanup job is queued again: it has to wait for the lease of that run.
LEASE: Final = "waits for a lease"
# Checkpoint of a job that was reopened after its cleanup took steps: the reopening at which a new round begins.
UNDONE: Final = "treadle:undone"
# Checkpoint of a job that was cancelled without its children: the number of its reopenings then.
ALONE: Final = "treadle:alone"
# Payload of a cleanup job that has no function to run.
CHILDREN_ONLY: Final = '["children"]'
# Checkpoints of Treadle that a part reads of its job: its round and version, whether it had a cleanup stored, its late
# steps, upstreams, locks, memo and streams.
_READ: Final = (ROUND, ARGUMENTS_NOW, BEGUN_WITH, STORED, FREE, STREAM, judge.AFTER, "treadle:once:", "treadle:memo:")


def cleanup_id(job: str, reopenings: int) -> str:
    """The id of the cleanup job. It has a digest, because the job's own id may have the maximum length."""
    return f"{PREFIX}{ids.digest(job)}:{reopenings}"


def is_cleanup(job: NewJob) -> bool:
    return job.id.startswith(PREFIX)


def cleanup_of(row: Record) -> NewJob:
    """The cleanup job of this job. It has the job's limits, lane and labels, and a retry policy of its own."""
    job = row.job
    longest = max(job.keep, job.keep_failed)  # a retry of the job asks what its cleanup did
    own = part_of(job, cleanup_id(job.id, row.reopenings), cleans=True)
    return replace(own, after=(job.id,), failures_allowed=None, keep=longest, keep_failed=longest)


def has_steps(checkpoints: Pairs) -> bool:
    """Whether one of these is a step, a sleep or a wait of a function."""
    return any(not name.startswith(OURS) for name, _ in checkpoints)


def has_begun(row: Record) -> bool:
    """Whether the function of this unfinished job has taken a step, sleeps or waits. A row of a page has no steps."""
    waits = row.state is State.WAITING and row.started_at is not None
    return waits or (row.reason or "").startswith(ASLEEP) or has_steps(row.checkpoints)


def is_unheard(state: State, reason: str | None) -> bool:
    """Whether a job was ended from outside, so that its function has seen no error."""
    return state is State.CANCELLED or (state is State.FAILED and reason in (EXPIRED, LOST))


def with_cleanup(
    record: Record, outcome: Outcome, has_steps: bool, has_undo: bool = False, has_children: bool = False
) -> Outcome:
    """The outcome with the cleanup job, stored in the same change, if the job may need it: it has an undo, or it has
    taken steps and ends unheard, or suspends and may be ended by the storage, or its function has ended before its
    children."""
    if is_part(record.job) or is_stored(record):
        return outcome
    needs = is_unheard(outcome.state, outcome.reason) if outcome.state.final else _may_end(record, outcome)
    job = cleanup_of(record)
    if outcome.state is State.SUCCEEDED or not (has_undo or (has_steps and needs)):
        if not (has_children and (outcome.state.final or outcome.function_done)):
            return outcome
        job = replace(job, payload=CHILDREN_ONLY)
    mark = (STORED, str(record.reopenings))
    return replace(outcome, checkpoints=(*outcome.checkpoints, mark), followups=(*outcome.followups, job))


def cancelled_with_cleanup(row: Record, outcome: Outcome, tree: bool = True) -> Outcome:
    """The cancellation of a job from outside, with its cleanup, which also cancels its children if `tree`. If the job
    runs, its function may continue until its worker learns of it: at the end of that run the worker starts the
    cleanup."""
    if row.function_done:
        return outcome
    outcome = with_cleanup(row, outcome, has_begun(row))
    if not tree:
        outcome = replace(outcome, checkpoints=(*outcome.checkpoints, (ALONE, str(row.reopenings))))
    if row.state is not State.RUNNING:
        return outcome
    return replace(outcome, followups=tuple([replace(job, run_at=row.due_at) for job in outcome.followups]))


def nothing_to_do(own: Record) -> Outcome:
    """The ending of a cleanup job that need not run."""
    return replace(judge.succeeded(own, "null"), result=None, attempt=own.attempt, keep=0.0)


def is_stored(record: Record) -> bool:
    """Whether the job has its cleanup job already."""
    return own_checkpoints(record.checkpoints).get(STORED) == str(record.reopenings)


def ends_alone(record: Record) -> bool:
    """Whether this job was cancelled without its children."""
    return own_checkpoints(record.checkpoints).get(ALONE) == str(record.reopenings)


def _may_end(record: Record, outcome: Outcome) -> bool:
    """Whether a storage may end the job while it does not run: at its deadline, or for a job that supersedes it."""
    replaceable = record.job.key is not None and record.job.key_conflict == "replace"
    return not outcome.function_done and (record.deadline_at is not None or replaceable)


def merged(own: Record, ended: Record) -> Record:
    """The row with which the function runs: that of the part, with the arguments and the history of its job, which has
    ended unless a step is taken."""
    kept = {name: text for name, text in ended.checkpoints if not name.startswith(OURS) or name.startswith(_READ)}
    return replace(
        own,
        job=replace(ended.job, id=own.job.id, retry=own.job.retry, root=own.job.root),
        after=judge.upstreams(ended),
        reopenings=ended.reopenings + own.reopenings,
        checkpoints=tuple({**kept, **dict(own.checkpoints)}.items()),
    )


def with_published(ended: Record, own: Record) -> Record:
    """The row of an ended job, with the values that its cleanup has published, and with the streams that it has
    written: they are those of the job."""
    later = {name: text for name, text in own.checkpoints if name.startswith((PUBLISHED, STREAM))}
    return replace(ended, checkpoints=tuple({**dict(ended.checkpoints), **later}.items())) if later else ended


def free_mark(id: str) -> str:
    """The checkpoint of a cleanup job for this try of a step of its job."""
    return f"{FREE}:{id}"


def remaining_lease(own: Record, ended: Record, lease: float, now: float, mark: str = FREE) -> float:
    """Seconds for which the run that a cancellation has interrupted may still go on; 0: it has ended, or its worker has
    lost it. If the clock was set back to before the cancellation, only the waiting itself counts."""
    if ended.state is not State.CANCELLED or ended.worker is None or ended.ended_at is None:
        return 0.0
    if mark in dict(own.checkpoints):
        return 0.0
    lease = ended.job.lease or lease
    passed = now - ended.ended_at
    if passed < 0:
        return 0.0 if own.reason == LEASE else lease
    return max(0.0, lease - passed)
