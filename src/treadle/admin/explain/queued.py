"""Sentences about queued jobs: whether a worker can claim it, what is ahead of it, and which slots are taken.

The figures of workers are as old as their last heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.admin.explain.facts import Facts, declined_by, lost_by
from treadle.admin.explain.limited import own_parent
from treadle.admin.explain.wording import at, count, jobs, lasting, named, start_worker, worker_of
from treadle.admin.explain.workers import (
    able_to_read,
    able_to_run,
    claims,
    free_slots,
    is_silent,
    pauses,
    placed,
    serve,
    short_of,
)
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.model import Presence, Record
from treadle.policy import misfits, unread

_FULL = "all slots of the"


def queued(facts: Facts, no_room: bool = False) -> str:
    """The sentence for a queued job that no limit blocks.

    no_room  the next claim that looks at it will find no room in a limit
    """
    row, queue, task = facts.row, facts.row.job.queue, facts.row.job.task
    if (lacks := placed(facts)) is not None:
        return f"It is queued, and {lacks}."
    serving = serve(facts)
    if not serving:
        if queue == SYSTEM_QUEUE:
            return f"It is queued, and no worker is running: {start_worker(queue)} starts one."
        return f"It is queued, and no worker serves its queue {queue!r}: {start_worker(queue)} starts one."
    able = able_to_run(serving, facts)
    if not able:
        several = f"none of the {len(serving)} workers" if len(serving) > 1 else "the only worker"
        has = "has" if len(serving) > 1 else "does not have"
        return f"It is queued, and {several} of {queue!r} {has} the task {task!r}."
    if (misfit := misfits.words(row)) is not None and not (able := able_to_read(able, facts)):
        return f"It is queued, but {misfit}; {start_worker(queue)} with that code runs it."
    if (held_up := _held_up(able, facts)) is not None:
        return f"It is queued, but {held_up}."
    able = [worker for worker in able if claims(worker)]
    roomy = [worker for worker in able if short_of(worker, facts) is None]
    free = sum(free_slots(worker, facts) for worker in roomy)
    room = " with room for it" if len(roomy) < len(able) else ""
    if facts.ahead:
        place = f"It is queued behind {jobs(facts.ahead)} in queue {queue!r}{_turn(facts)}"
        if free <= 0:
            return f"{place}; {_full(roomy, facts, room)}."
        return f"{place}; {count(len(roomy), 'worker')} can run it, with {count(free, 'free slot')}."
    if free <= 0:
        return f"It is next in its queue; {_full(roomy, facts, room or ' that can run it')}."
    return f"It is next in its queue{_again(row)}{'' if no_room else f'; a worker of {queue!r} will claim it shortly'}."


def _again(row: Record) -> str:
    if unread.words(row) is not None:
        return " again, after a worker could not read its texts"
    if (worker := declined_by(row)) is not None:
        return f" again, after worker {worker!r} declined it (accept=)"
    if (worker := lost_by(row)) is not None:
        return f" again, after worker {worker!r} lost it"
    if (worker := misfits.released_by(row)) is not None:
        return f" again, after worker {worker!r} could not read its arguments"
    return ""


def _turn(facts: Facts) -> str:
    """The rule that decides when it is this job's turn; empty if that is the order of arrival."""
    job, first = facts.row.job, facts.first
    if job.lane is not None:
        return f" (lanes take turns; its lane is {job.lane!r})"
    if job.aging:
        return f" (each {job.aging:g} s of waiting count as one step of priority; its own is {job.priority})"
    if first is not None and not first.job.aging and first.job.priority > job.priority:
        return f" (the first has priority {first.job.priority}, it has {job.priority})"
    return ""


def _full(able: Sequence[Presence], facts: Facts, can: str = "") -> str:
    """The sentence that all slots are taken, with the jobs that hold them."""
    whose = count(len(able), "worker") if len(able) > 1 else "only worker"
    taken = f"{_FULL} {whose}{can} are taken"
    if facts.parent is not None:
        return f"{taken}, one of them by {own_parent(facts.parent)}"
    names = {worker.worker for worker in able}
    first = next((row for row in facts.running if worker_of(row) in names), None)
    if first is None:
        return taken
    since = f"{named(first)} has run longest, on {worker_of(first)} since {at(first.started_at)}"
    return f"{taken}: {since}; {start_worker(facts.row.job.queue)} adds slots"


def _held_up(able: Sequence[Presence], facts: Facts) -> str | None:
    """Why no worker that has the task can claim it; None if one can."""
    heard, now = [worker for worker in able if not is_silent(worker)], facts.now
    if not heard:
        last = min(able, key=lambda worker: worker.age)
        which = f"the {len(able)} workers" if len(able) > 1 else "the only worker"
        return (
            f"the last heartbeat of {which} that can run it came {lasting(last.age)} ago ({last.worker}): if it was "
            f"killed or its machine has stopped, start another one: {start_worker(facts.row.job.queue)}"
        )
    if not [worker for worker in heard if not worker.draining]:
        which = f"all {len(heard)} workers that can run it" if len(heard) > 1 else f"worker {heard[0].worker!r}"
        what = (
            "claim no more jobs, because their processes are"
            if len(heard) > 1
            else ("claims no more jobs, because its process is")
        )
        start = start_worker(facts.row.job.queue)
        return f"{which} {what} replaced ({heard[0].draining}); {start} starts another one"
    heard = [worker for worker in heard if not worker.draining]
    if all(pauses(worker) for worker in heard):
        which = f"all {len(heard)} workers that can run it" if len(heard) > 1 else f"worker {heard[0].worker!r}"
        ends = min(now - worker.age + worker.paused for worker in heard)
        return f"{which} may claim nothing because of a throttle, until {at(ends)}, in {lasting(ends - now)}"
    return None
