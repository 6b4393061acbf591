"""The small decisions about one row that every storage must take alike. Pure.

Without it two storages would disagree on when a key is free, a row may go, or an outcome has been seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.model import ACT, LOST_BY, NewJob, Outcome, Record, State
from treadle.errors import IdTaken, KeyHeld, TreadleError, UnknownUpstream

CLOCK_BACK: Final = 1.0  # s a clock must have gone back; calls of one worker that pass each other are no such case
# Jobs that step aside in one step of a claim: nobody else writes meanwhile (memory 5 ms, SQLite 15 ms).
ASIDE_MOST: Final = 500


class CircularWait(TreadleError):
    """An outcome would make jobs wait for each other. Callers see it as the reason of a refused outcome."""

    def __init__(self, id: str, up: str, origin: str) -> None:
        self.id, self.up, self.origin = id, up, origin
        waits = "" if up == origin else f", which waits for job {origin}"
        super().__init__(
            f"job {id} would wait for job {up}{waits}, which would wait for {id}: none of them could end; leave {up} "
            f"out of after=, or, if {up} answered another job of this call, give that one another key or id"
        )


OWN_ID: Final = "treadle:"  # ids that Treadle makes, or derives, begin so
# What a storage raises before it has written anything of a call.
REFUSALS: Final = (UnknownUpstream, KeyHeld, IdTaken, CircularWait)


def rank(job: NewJob) -> int:
    """The priority it is sorted by. With ageing time decides, so all such jobs share one."""
    return 0 if job.aging else job.priority


def turn(job: NewJob, when: float) -> float:
    """Its number in line if it joins at `when`, lanes aside: ageing gives a head start per step of priority."""
    return when - job.aging * job.priority if job.aging else when


def needed(need: int | None, after: tuple[str, ...]) -> int:
    """Endings it waits for: all of them unless it asks for fewer. A row that answered two names ends once."""
    upstreams = len(after) if len(after) < 2 else len(set(after))
    return upstreams if need is None else min(need, upstreams)


def tolerated(slack: int | None, need: int | None, after: tuple[str, ...]) -> int | None:
    """Failures it tolerates: one more would leave fewer endings than it needs. That counts where one row answers for
    two, so fewer can end than were asked for."""
    return slack if not slack or need is None else min(slack, len(set(after)) - needed(need, after))


def costs(job: NewJob) -> tuple[tuple[str, int], ...]:
    """Every limit a job obeys: its queue's own, then those it names."""
    return (f"queue:{job.queue}", 1), *named_costs(job)


def named_costs(job: NewJob) -> tuple[tuple[str, int], ...]:
    """The limits a job names. A stored cost below 1, which earlier versions took, counts as 1: it frees no slots."""
    for _, cost in job.limits:
        if cost < 1:
            return tuple((name, max(each, 1)) for name, each in job.limits)
    return job.limits


def refuse_taken(jobs: Sequence[NewJob], stored: Callable[[Sequence[str]], dict[str, NewJob]]) -> None:
    """Raise IdTaken for the first job whose id belongs to a job that may not answer it.

    `stored` reads the jobs with these ids. A job of the same call that comes earlier counts as stored.
    """
    asked = [job.id for job in jobs if job.nonce is not None or job.reach or job.id.startswith(OWN_ID)]
    if not asked:
        return
    known = stored(asked)
    for job in jobs:
        first = known.setdefault(job.id, job)
        if first is not job and (error := taken_by(job, first)) is not None:
            raise error


def taken_by(job: NewJob, known: NewJob) -> IdTaken | None:
    """The error if `known`, which has the id of this job, may not answer it: it is out of reach; or the id is one of
    Treadle's own, and `known` belongs elsewhere; or another call chose the id, for another task or payload."""
    if not within(job.reach, known.queue) or (job.id.startswith(OWN_ID) and _place(job) != _place(known)):
        return IdTaken(job.id, None, job.task, False)
    other = job.payload != known.payload
    if job.nonce is not None and job.nonce != known.nonce and (other or job.task != known.task):
        return IdTaken(job.id, known.task, job.task, other)
    return None


def within(reach: Sequence[str], queue: str) -> bool:
    """Whether a row of this queue may concern what has this reach."""
    return not reach or queue in reach


def _place(job: NewJob) -> tuple[str, str | None, str | None]:
    return job.queue, job.root, job.parent


def refuse_holder(job: NewJob, holder: NewJob) -> None:
    """Raise KeyHeld if the job that holds the key is out of reach."""
    if not within(job.reach, holder.queue):
        raise KeyHeld(job.key or "", "")


def named_by(job: NewJob) -> tuple[str, ...]:
    """The jobs that this one names, which a reach is checked with; of parent and root only the nearer."""
    above = job.parent or job.root
    return (*job.after, above) if above else job.after


def check_reach(job: NewJob, found: Callable[[str], NewJob | None]) -> None:
    """Raise UnknownUpstream for a job with a reach that names others outside of it. `found` reads a job of the call, or
    a stored one."""
    for id in named_by(job) if job.reach else ():
        other = found(id)
        if other is None or other.queue not in job.reach:
            raise UnknownUpstream(id, job.id)
        if id == job.parent and job.root != (other.root or other.id):
            raise UnknownUpstream(job.root or id, job.id)


def may_wait(out: Outcome, row: Record, above: NewJob) -> bool:
    """Whether the job of this outcome may wait for that one: it is in reach, or it is waited for already."""
    return within(out.reach, above.queue) or above.id in row.after


def awaited(out: Outcome, answers: Mapping[str, str], circle: Collection[str]) -> tuple[str, ...]:
    """The rows that a job with this outcome waits for: each job it names, or the row that answered it. It does not wait
    for the rows in `circle`, which wait for this job."""
    rows = [answers.get(up, up) for up in dict.fromkeys(out.after)]
    return tuple([up for up in rows if up not in circle] if circle else rows)


def named_outside(out: Outcome, answers: Mapping[str, str], fresh: Container[str]) -> set[str]:
    """The stored rows that new jobs of an outcome wait for by name. `answers` knows each job of the outcome."""
    return {up for new in out.then if new.id in fresh for up in new.after if up not in answers}


def refuse_circle(out: Outcome, answers: Mapping[str, str], circle: Collection[str], fresh: Container[str]) -> None:
    """Raise CircularWait where the job would wait for a job of this outcome, directly or through others, and that one
    for a row in `circle`."""
    if not circle:
        return
    ups = {new.id: [answers.get(up, up) for up in new.after] for new in out.then if new.id in fresh}
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
    """A running job whose lease ran out, before it joins the line."""
    ticket = row.worker or ""
    reason = LOST_BY + (ticket.rpartition("#")[0] or ticket)
    return replace(row, lost=row.lost + 1, reason=reason, updated_at=now)


def keeps_key(row: Record, now: float) -> bool:
    """Whether an ended job still holds its key: it does within `key_window` of its creation."""
    return row.job.key_window is not None and row.created_at + row.job.key_window > now


def expires_at(row: Record, state: State, ended_at: float, keep: float | None = None) -> float:
    """When an ended row may be pruned. A minute at least: a repeated settle and a late waiter must still find it.

    Not within its `key_window`: the row is what holds the key.
    """
    job = row.job
    if keep is None:
        keep = job.keep_failed if state is State.FAILED else job.keep
    return max(ended_at + max(keep, defaults.KEEP_LEAST), row.created_at + (job.key_window or 0.0))


def noted(row: Record, out: Outcome) -> Record:
    """An ended row with the memo of an outcome. An act raises the version: the next one must have seen this one."""
    if not out.memo:
        return row
    memo = {**dict(row.memo), **dict(out.memo)}
    return replace(row, memo=tuple(memo.items()), version=row.version + (ACT in dict(out.memo)))


def first_moment(*moments: float | None) -> float | None:
    """The earliest of those that are moments."""
    return min((at for at in moments if at is not None), default=None)


def taken_back(row: Record, now: float) -> Record | None:
    """A row that a clock ahead of `now` has written, with the time it had left; None: it is as it should be."""
    if row.state not in (State.READY, State.RUNNING) or row.place is not None or row.parked is not None:
        return None
    if row.due_at is None or row.due_at <= now or row.updated_at <= now:
        return None
    return replace(row, due_at=max(now, row.due_at - (row.updated_at - now)), updated_at=now)


def repeats(out: Outcome, row: Record) -> bool:
    """Whether this very outcome has been applied and nothing has touched the row since.

    The version it names is one transition old, that transition was no claim, and all it assigned still stands.
    """
    if row.version != out.version + 1 or row.state is State.RUNNING:
        return False
    if out.memo and (nonce := dict(out.memo).get(ACT)) is not None:
        return dict(row.memo).get(ACT) == nonce
    waited = out.state is State.WAITING and row.state is State.READY and row.ran is out.ran
    return (
        (row.state is out.state or waited)
        and row.attempt == out.attempt
        and row.result == out.result
        and row.value == out.value
        and row.error == out.error
        and row.reason == out.reason
    )
