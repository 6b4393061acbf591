"""How a job ends, and what its ending does to those who wait for it; how a waiting one is let go; who has a key.

Without it enqueue, settle and tend would each count endings in their own way.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import Final

from msgspec.structs import replace

from treadle.core.model import SUPERSEDED, UPSTREAM, NewJob, Record, State
from treadle.storage.row_rules import expires_at, first_moment, keeps_key
from treadle.storage.sqlite.rows import text
from treadle.storage.sqlite.unit_of_work import SQL, UnitOfWork

STEP: Final = 64  # dependents between two turns of the loop: 1.5 ms


def end(
    unit: UnitOfWork, row: Record, state: State, reason: str | None, error: str | None, keep: float | None = None
) -> None:
    """The ending of a job. Whoever waits for it is counted down by `count_endings`, before the call is over."""
    now = unit.now
    if not keeps_key(row, now):
        unit.drop_key(row)
    unit.put(
        replace(
            row,
            version=row.version + 1,
            state=state,
            reason=reason,
            error=error,
            queue_position=None,
            blocked_on=None,
            pending=0,
            due_at=None,
            updated_at=now,
            ended_at=now,
            expires_at=expires_at(row, state, now, keep),
        )
    )
    unit.endings.append((row.job.id, state))
    unit.unblock(row)


def count_endings(unit: UnitOfWork) -> Generator[None, None, None]:
    """Count down all that wait for what has ended, and for what ends because of that; a turn of the loop after each
    STEP of them. What was counted is written by then: one ending may have a million dependents."""
    counted = 0
    while unit.endings:
        up, state = unit.endings.pop()
        counted += 1
        downs = [found for found in unit.ex(SQL["downs"], (up,)).fetchall() if found[2]]
        for at in range(0, len(downs), STEP):
            part = downs[at : at + STEP]
            if len(part) > 1:
                unit.read(down for down, *_ in part)
            for down, version, _, soft in part:
                _count(unit, up, down, version, bool(soft), state)
            counted += len(part)
            if counted >= STEP:
                unit.sync()
                yield
                counted = 0
        if counted >= STEP:
            yield
            counted = 0


def _count(unit: UnitOfWork, up: str, down: str, version: int, soft: bool, state: State) -> None:
    unit.ex(SQL["close_edge"], (up, down))
    row = unit.get(down)
    if row is None or row.state is not State.WAITING or row.version != version:
        return
    if soft or row.failures_allowed is None or state is State.SUCCEEDED:
        row = replace(row, pending=row.pending - 1)
    else:
        row = replace(row, failures_allowed=row.failures_allowed - 1)
    if row.pending <= 0:
        release(unit, row)
    elif row.failures_allowed is None or row.failures_allowed >= 0:
        unit.put(row)
    elif row.started_at is None and not row.function_done:
        end(unit, row, State.CANCELLED, UPSTREAM, f"{up}, which it waited for, ended as {state}")
    else:
        unit.join(row, unit.now)


def watch_ups(unit: UnitOfWork, id: str, after: Iterable[str]) -> Generator[None, None, None]:
    """Wait for these; those that have ended count at once."""
    after = list(dict.fromkeys(after))
    if after:
        unit.wait_for([(up, id) for up in after], unit.row(id).version)
        unit.read(after)
    for up in after:
        upstream = unit.get(up)
        if upstream is not None and upstream.state.final:
            found = unit.ex(SQL["open_edge"], (up, id)).fetchone()
            if found is not None and found[1]:
                _count(unit, up, id, found[0], bool(found[2]), upstream.state)
    yield from count_endings(unit)
    row = unit.row(id)
    if row.state is State.WAITING and row.pending <= 0:
        release(unit, row)


def release(unit: UnitOfWork, row: Record) -> None:
    """It waits no longer: in line now, or when its delay is over. A promise waits on, for its settlement."""
    run_at = row.created_at + row.job.delay
    if not row.job.task:
        unit.put(row)
    elif row.started_at is None and not row.function_done and row.job.delay > 0 and run_at > unit.now:
        schedule(unit, row, run_at)
    else:
        unit.join(replace(row, pending=0), unit.now)


def schedule(unit: UnitOfWork, row: Record, run_at: float) -> None:
    due = first_moment(run_at, None if row.function_done else row.deadline_at)
    unit.put(
        replace(
            row, state=State.READY, pending=0, queue_position=None, blocked_on=None, return_position=None, due_at=due
        )
    )
    unit.topics.add(f"queue:{row.job.queue}")


def holder(unit: UnitOfWork, key: str, leaving: str = "") -> Record | None:
    """Who holds a key; `leaving` gives it up meanwhile."""
    row = unit.holder(key)
    if row is None or ((row.state.final or row.job.id == leaving) and not keeps_key(row, unit.now)):
        return None
    return row


def give_up_key(unit: UnitOfWork, new: NewJob, parent: str = "") -> Generator[None, None, str | None]:
    """The holder of the key makes room for a new job. Answers whom that must wait for: the running holder that gave
    the key away, or the one that the superseded holder waited for itself. Never `parent`, which may be waiting for
    this very job, and no job that waits for `parent`."""
    assert new.key is not None
    row = holder(unit, new.key)
    if row is None:
        return None
    unit.ex(SQL["drop_key"], (row.job.id,))
    if row.job.id == parent or row.state.final:  # ended since this call began: it came with it, doomed
        return None
    first: str | None = row.job.id
    if not (
        row.function_done or row.state is State.RUNNING or (row.state is State.WAITING and row.started_at is not None)
    ):
        end(unit, row, State.CANCELLED, SUPERSEDED, f"superseded by {new.id}")
        yield from count_endings(unit)
        found = unit.ex(SQL["behind"], (row.job.id,)).fetchone()
        before = unit.get(found[0]) if found else None
        first = before.job.id if before is not None and not before.state.final else None
    if first is None or (parent and waiting_for(unit, parent, [first])):
        return None
    unit.ex(SQL["set_behind"], (new.id, first))
    return first


def waiting_for(unit: UnitOfWork, id: str, among: Collection[str]) -> set[str]:
    """Which of these wait for the job `id`, directly or through others, or are that job."""
    unit.sync()
    return {found for (found,) in unit.ex(SQL["waiting_for"], (id, text(list(among))))}
