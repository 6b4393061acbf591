"""Decides about single rows: when a key is free, when a row may be pruned, whether an outcome was applied before. Pure.

Every storage must take these decisions alike; the SQL and Lua versions follow this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.claim_ids import worker_name
from treadle.core.errors import IdTaken, KeyHeld, QueueFull, TreadleError, UnknownUpstream
from treadle.core.model import ACT, ASKED, CHILDREN, LOST_BY, OURS, SUPERSEDED, UPSTREAM, NewJob, Outcome, Record, State

CLOCK_BACK: Final = 1.0  # seconds by which a clock must go back to count; calls that overtake each other differ by less
# Jobs blocked in one step of a claim, during which no other call can write (memory 5 ms, SQLite 15 ms).
BLOCKED_MOST: Final = 500
CLAIM_IDS: Final = 64  # claim ids remembered for each worker


class CircularWait(TreadleError):
    """An outcome would make jobs wait for each other. Callers get it as the reason of a refused outcome."""

    def __init__(self, id: str, up: str, origin: str) -> None:
        self.id, self.up, self.origin = id, up, origin
        waits = "" if up == origin else f", which waits for job {origin}"
        super().__init__(
            f"job {id} would wait for job {up}{waits}, which would wait for {id}: none of them could end; leave {up} "
            f"out of after=, or, if {up} was returned for another job of this call, give that job another key or id"
        )


OWN_ID: Final = "treadle:"  # prefix of the ids that Treadle makes or derives
# Errors that a storage raises before it has written anything of a call.
REFUSALS: Final = (UnknownUpstream, KeyHeld, IdTaken, CircularWait, QueueFull)


def rank(job: NewJob) -> int:
    """The priority by which a job is sorted. It is 0 for all jobs with ageing: their position decides."""
    return 0 if job.aging else job.priority


def turn(job: NewJob, when: float) -> float:
    """The queue position of a job that is queued at `when`, ignoring its lane. Each step of priority counts as `aging`
    seconds."""
    return when - job.aging * job.priority if job.aging else when


def order(row: Record) -> tuple[float, float, str]:
    """The key by which a queue is sorted."""
    place = row.queue_position if row.queue_position is not None else row.return_position
    return -rank(row.job), place if place is not None else 0.0, row.job.id


def in_order(held: Iterable[Record], queues: Sequence[tuple[str, int]]) -> list[Record]:
    """The jobs that run under a claim id, in the order in which a claim from these queues would take them."""
    first = {queue: -number for number, (queue, _) in enumerate(reversed(queues))}
    return sorted(held, key=lambda row: (first.get(row.job.queue, 1), order(row)))


def claim_slot(claim_id: str) -> tuple[str, int]:
    """The worker of a claim id, and where the jobs of the id are remembered: under its number, or under a hash if it
    has no number."""
    number = claim_id.rpartition("#")[2]
    slot = int(number) % CLAIM_IDS if number.isdecimal() else crc32(claim_id.encode()) >> 1
    return worker_name(claim_id), slot


def delay_of(job: NewJob, created_at: float) -> float:
    """Seconds from its creation until it may be claimed."""
    return job.delay if job.run_at is None else max(0.0, job.run_at - created_at)


def deadline_of(job: NewJob, created_at: float, since: float) -> float | None:
    """When it must end. A job that is reopened has the same time again, counted from `since`."""
    span = job.deadline if job.deadline_at is None else max(0.0, job.deadline_at - created_at)
    return None if span is None else since + span


def new_record(job: NewJob, now: float) -> Record:
    """The record of a plain job without a lane that has just been stored: queued, or scheduled after its delay."""
    due = deadline_at = None if job.deadline is None else now + job.deadline
    place: float | None = now
    if now + job.delay > now:
        place, due = None, first_moment(now + job.delay, deadline_at)
    return Record(
        job=job,
        version=0,
        state=State.READY,
        queue_position=place,
        return_position=place,
        due_at=due,
        deadline_at=deadline_at,
        created_at=now,
        updated_at=now,
    )


def needed(required: int | None, after: tuple[str, ...]) -> int:
    """The number of endings it waits for: `required`, or all. A row that `after` names twice ends once."""
    upstreams = len(after) if len(after) < 2 else len(set(after))
    return upstreams if required is None else min(required, upstreams)


def tolerated(failures_allowed: int | None, required: int | None, after: tuple[str, ...]) -> int | None:
    """The number of failures it tolerates, lowered so that enough endings remain for `required`. A row that `after`
    names twice ends only once, so there may be fewer endings than names."""
    if not failures_allowed or required is None:
        return failures_allowed
    return min(failures_allowed, len(set(after)) - needed(required, after))


def costs(job: NewJob) -> tuple[tuple[str, int], ...]:
    """The limits of a job with their costs: the limit of its queue, then the limits that it names."""
    return (f"queue:{job.queue}", 1), *job.limits


def refuse_taken(jobs: Sequence[NewJob], stored: Callable[[Sequence[str]], dict[str, NewJob]]) -> None:
    """Raise IdTaken for the first job whose id belongs to a job that may not be returned for it.

    `stored` reads the jobs with these ids. An earlier job of the same call counts as stored.
    """
    ids = [job.id for job in jobs if job.nonce is not None or job.reach or job.id.startswith(OWN_ID)]
    if not ids:
        return
    known = stored(ids)
    for job in jobs:
        first = known.setdefault(job.id, job)
        if first is not job and (error := taken_by(job, first)) is not None:
            raise error


def taken_by(job: NewJob, known: NewJob) -> IdTaken | None:
    """The error if `known`, which has the same id, may not be returned for this job: it is out of reach, or the id is
    Treadle's own and `known` has another queue, root or parent, or another call chose the id for another task or
    payload."""
    if not within(job.reach, known.queue) or (job.id.startswith(OWN_ID) and _place(job) != _place(known)):
        return IdTaken(job.id, None, job.task, False)
    other = job.payload != known.payload
    if job.nonce is not None and job.nonce != known.nonce and (other or job.task != known.task):
        return IdTaken(job.id, known.task, job.task, other)
    return None


def within(reach: Sequence[str], queue: str) -> bool:
    """Whether a reach covers rows of this queue. An empty reach covers all queues."""
    return not reach or queue in reach


def _place(job: NewJob) -> tuple[str, str | None, str | None]:
    return job.queue, job.root, job.parent


def refuse_holder(job: NewJob, holder: NewJob) -> None:
    """Raise KeyHeld if the job that holds the key is out of reach."""
    if not within(job.reach, holder.queue):
        raise KeyHeld(job.key or "", "")


def named_by(job: NewJob) -> tuple[str, ...]:
    """The jobs that this one names and its reach must cover: `after`, and its parent or, without one, its root."""
    above = job.parent or job.root
    return (*job.after, above) if above else job.after


def check_reach(job: NewJob, job_of: Callable[[str], NewJob | None]) -> None:
    """Raise UnknownUpstream for a job that names jobs outside its reach. `job_of` reads a job of the call, or a stored
    one."""
    for id in named_by(job) if job.reach else ():
        other = job_of(id)
        if other is None or other.queue not in job.reach:
            raise UnknownUpstream(id, job.id)
        if id == job.parent and job.root != (other.root or other.id):
            raise UnknownUpstream(job.root or id, job.id)


def may_wait(out: Outcome, row: Record, above: NewJob) -> bool:
    """Whether the job of this outcome may wait for `above`: it is in reach, or the job waits for it already."""
    return within(out.reach, above.queue) or above.id in row.after


def awaited(out: Outcome, answers: Mapping[str, str], circle: Collection[str]) -> tuple[str, ...]:
    """The rows that the job of this outcome waits for: each row it names, or the row that was returned for it. The rows
    in `circle`, which wait for this job, are left out."""
    rows = [answers.get(up, up) for up in dict.fromkeys(out.after)]
    return tuple([up for up in rows if up not in circle] if circle else rows)


def named_outside(out: Outcome, answers: Mapping[str, str], fresh: Container[str]) -> set[str]:
    """The ids in `after` of the new follow-up jobs that are no follow-ups themselves. `answers` has every follow-up."""
    return {up for new in out.followups if new.id in fresh for up in new.after if up not in answers}


def refuse_circle(out: Outcome, answers: Mapping[str, str], circle: Collection[str], fresh: Container[str]) -> None:
    """Raise CircularWait if the job would wait, directly or through others, for a follow-up that waits for a row in
    `circle`."""
    if not circle:
        return
    ups = {new.id: [answers.get(up, up) for up in new.after] for new in out.followups if new.id in fresh}
    reached, look = set[str](), [up for up in out.after if up in ups]
    while look:
        if (id := look.pop()) not in reached:
            reached.add(id)
            look += [up for up in ups[id] if up in ups]
    for id, rows in ups.items():
        wrong = next((row for row in rows if row in circle), None) if id in reached else None
        if wrong is not None:
            raise CircularWait(id, wrong, out.id)


def lost(row: Record, now: float) -> Record:
    """The row of a running job whose lease expired, counted as lost and not queued yet."""
    return replace(row, lost=row.lost + 1, reason=LOST_BY + worker_name(row.worker or ""), updated_at=now)


def keeps_key(row: Record, now: float) -> bool:
    """Whether an ended job still holds its key: `now` is within `key_window` seconds of its creation."""
    return row.job.key_window is not None and row.created_at + row.job.key_window > now


def expires_at(row: Record, state: State, ended_at: float, keep: float | None = None) -> float:
    """The moment from which an ended row may be pruned: at least 60 s after the ending, because a repeated settle and a
    late waiter must still find it, and not before its `key_window` is over, because the row holds the key."""
    job = row.job
    if keep is None:
        keep = job.keep_failed if state is State.FAILED else job.keep
    return max(ended_at + max(keep, defaults.KEEP_LEAST), row.created_at + (job.key_window or 0.0))


def workflow_of(row: Record) -> str:
    """The workflow that keeps an ended row while a job of it is unfinished. A row without a task that was settled with
    `keep=0`, such as a message that was received, is its own."""
    kept = row.job.task or (row.expires_at or 0.0) > (row.ended_at or 0.0) + defaults.KEEP_LEAST
    return (row.job.root if kept else None) or row.job.id


def was_doomed(row: Record) -> bool:
    """Whether this job was cancelled because an upstream of it had failed."""
    return row.state is State.CANCELLED and row.reason == UPSTREAM


def failed_by_child(row: Record) -> bool:
    """Whether this job has failed because of a child."""
    return row.state is State.FAILED and row.reason == CHILDREN


def kept_longer(rows: Iterable[Record], now: float) -> dict[str, float]:
    """The jobs that these would wait for again if a retry of another job reopened them, each with the time until which
    its row stays: the latest `expires_at` of the jobs that name it."""
    until: dict[str, float] = {}
    for row in rows:
        if row.expires_at is not None and row.expires_at > now and (was_doomed(row) or failed_by_child(row)):
            for up in row.after:
                until[up] = max(until.get(up, 0.0), row.expires_at)
    return until


def first_moment(*moments: float | None) -> float | None:
    """The earliest of the moments that are not None."""
    return min([moment for moment in moments if moment is not None], default=None)


def only_ends(out: Outcome) -> bool:
    """Whether the outcome ends its job and changes nothing else but the note."""
    return (
        out.state.final
        and not out.followups
        and not out.after
        and not out.checkpoints
        and not out.function_done
        and not out.reach
        and not out.spent
        and (out.reason is None or (out.reason != ASKED and out.reason != SUPERSEDED))
    )


def taken_back(row: Record, now: float) -> Record | None:
    """The row with its remaining time counted from `now`, if a clock ahead of `now` wrote it; None: nothing to
    correct. A job that has not started before its `run_at` is due at that instant by any clock."""
    if row.state not in (State.READY, State.RUNNING) or row.queue_position is not None or row.blocked_on is not None:
        return None
    if row.due_at is None or row.due_at <= now or row.updated_at <= now:
        return None
    if row.job.run_at is not None and row.started_at is None:
        return None
    return replace(row, due_at=max(now, row.due_at - (row.updated_at - now)), updated_at=now)


def has_checkpoints(row: Record, checkpoints: Mapping[str, str]) -> bool:
    """Whether a whole row has all these checkpoints."""
    return dict(row.checkpoints).items() >= checkpoints.items()


def repeats(out: Outcome, row: Record, has: Callable[[Mapping[str, str]], bool]) -> bool:
    """Whether this same outcome has been applied and the row is unchanged since: its version is one transition old,
    that transition was not a claim, and every value it assigned is still there.

    Treadle's own checkpoints are not compared: some contain times, and a report of a runner that is repeated has
    others. `has`: whether the job has all these checkpoints.
    """
    if row.version != out.version + 1 or row.state is State.RUNNING:
        return False
    checkpoints = dict(out.checkpoints)
    if ACT in checkpoints:
        return has({ACT: checkpoints[ACT]})
    assigned = {name: value for name, value in checkpoints.items() if not name.startswith(OURS)}
    waited = out.state is State.WAITING and row.state is State.READY and row.function_done is out.function_done
    return (
        (row.state is out.state or waited)
        and row.attempt == out.attempt
        and row.result == out.result
        and row.value == out.value
        and row.error == out.error
        and row.reason == out.reason
        and (not assigned or has(assigned))
    )
