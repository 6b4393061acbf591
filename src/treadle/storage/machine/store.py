"""Stores new jobs. A job for which an ending counts already is stored alone, all others in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.core.model import NewJob, Record, State
from treadle.storage.machine.bounds import make_room
from treadle.storage.machine.endings import count_endings, wait_for_upstreams
from treadle.storage.machine.keys import take_over
from treadle.storage.machine.plan import StorePlan, plan
from treadle.storage.machine.queueing import position
from treadle.storage.machine.rows import Inserts, Rows, Steps
from treadle.storage.row_rules import deadline_of, delay_of, first_moment, needed, tolerated

STEP: Final = 256  # jobs between two turns of the loop: 1 to 2 ms


def enqueue(rows: Rows, jobs: Sequence[NewJob]) -> Steps[list[Record]]:
    """Store the jobs that are new; return the row of each."""
    planned = plan(rows, jobs)
    if rows.bounds:
        yield from make_room(rows, planned)
    yield from store_all(rows, planned)
    rows.read(planned.answers.values())
    return rows.whole([rows.row(planned.answers[new.id]) for new in jobs])


def store_all(rows: Rows, planned: StorePlan, parent: str = "") -> Steps[None]:
    """Store the new jobs. `parent` is the unfinished job that they come from."""
    if not planned.fresh:
        return
    inserts = rows.inserts(planned.fresh)
    taken: set[str] = set()
    upstreams = {planned.of(up) for new in planned.naming for up in new.after}
    ended = rows.finals(upstreams) if upstreams else upstreams
    for number, new in enumerate(planned.fresh, 1):
        after = tuple(map(planned.of, new.after)) if new.after else ()
        soft: str | None = None
        if new.key is not None:
            if new.key in planned.held or new.key in taken:
                yield from inserts.flush()
                soft = yield from take_over(rows, new, parent)
                if soft in after:
                    soft = None  # it names the holder in `after`, so its own condition applies to that ending
            taken.add(new.key)
        if rows.endings and soft is None:
            yield from inserts.flush()
            yield from count_endings(rows)  # jobs that this releases are queued before the new one
        if soft is None and (not after or (ended.isdisjoint(after) and rows.ended.isdisjoint(after))):
            inserts.add(_first_row(inserts, new, after, rows.now), new.key)
        else:
            yield from _store_counted(rows, inserts, new, after, soft)
        if number % STEP == 0:
            yield from inserts.flush()
            yield
    yield from inserts.flush()
    rows.sync()


def _store_counted(rows: Rows, inserts: Inserts, new: NewJob, after: tuple[str, ...], soft: str | None) -> Steps[None]:
    """Store a job that waits for a job that has ended, or for the former holder of its key (`soft`)."""
    inserts.add(_waiting(new, after, int(soft is not None), rows.now), new.key)
    yield from inserts.flush()
    if soft is not None:
        rows.wait_for([(soft, new.id)], 0, soft=True)
    yield from wait_for_upstreams(rows, new.id, after)
    rows.sync()


def _first_row(inserts: Inserts, new: NewJob, after: tuple[str, ...], now: float) -> Record:
    """The row of a job for which no ending counts yet: waiting, scheduled or queued."""
    if not new.task or (after and needed(new.required, after) > 0):
        return _waiting(new, after, 0, now)
    deadline_at, delay = deadline_of(new, now, now), delay_of(new, now)
    due = None if new.function_done else deadline_at
    if not new.function_done and delay > 0 and now + delay > now:
        place, due = None, first_moment(now + delay, due)
    else:
        place = position(inserts, new, now)
    return Record(
        job=new,
        version=0,
        state=State.READY,
        after=after,
        failures_allowed=tolerated(new.failures_allowed, new.required, after),
        function_done=new.function_done,
        queue_position=place,
        return_position=place,
        due_at=due,
        deadline_at=deadline_at,
        created_at=now,
        updated_at=now,
    )


def _waiting(new: NewJob, after: tuple[str, ...], more: int, now: float) -> Record:
    """The row of a job that waits for these, and for `more` other jobs."""
    deadline_at = deadline_of(new, now, now)
    timeout_at = None if new.wait_timeout is None else now + new.wait_timeout
    return Record(
        job=new,
        version=0,
        state=State.WAITING,
        after=after,
        pending=needed(new.required, after) + more,
        failures_allowed=tolerated(new.failures_allowed, new.required, after),
        function_done=new.function_done,
        due_at=first_moment(deadline_at if not new.function_done else None, timeout_at),
        deadline_at=deadline_at,
        created_at=now,
        updated_at=now,
    )
