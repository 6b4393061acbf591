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
from treadle.storage.sqlite.unit_of_work import SQL, Desk

STEP: Final = 64  # dependents between two turns of the loop: 1.5 ms


def end(
    desk: Desk, row: Record, state: State, reason: str | None, error: str | None, keep: float | None = None
) -> None:
    """The ending of a job. Whoever waits for it is counted down by `count_endings`, before the call is over."""
    now = desk.now
    if not keeps_key(row, now):
        desk.drop_key(row)
    desk.put(
        replace(
            row,
            version=row.version + 1,
            state=state,
            reason=reason,
            error=error,
            place=None,
            parked=None,
            pending=0,
            due_at=None,
            updated_at=now,
            ended_at=now,
            expires_at=expires_at(row, state, now, keep),
        )
    )
    desk.endings.append((row.job.id, state))
    desk.call_in(row)


def count_endings(desk: Desk) -> Generator[None, None, None]:
    """Count down all that wait for what has ended, and for what ends because of that; a turn of the loop after each
    STEP of them. What was counted is written by then: one ending may have a million dependents."""
    counted = 0
    while desk.endings:
        up, state = desk.endings.pop()
        counted += 1
        downs = [found for found in desk.ex(SQL["downs"], (up,)).fetchall() if found[2]]
        for at in range(0, len(downs), STEP):
            part = downs[at : at + STEP]
            if len(part) > 1:
                desk.read(down for down, *_ in part)
            for down, version, _, soft in part:
                _count(desk, up, down, version, bool(soft), state)
            counted += len(part)
            if counted >= STEP:
                desk.sync()
                yield
                counted = 0
        if counted >= STEP:
            yield
            counted = 0


def _count(desk: Desk, up: str, down: str, version: int, soft: bool, state: State) -> None:
    desk.ex(SQL["close_edge"], (up, down))
    row = desk.get(down)
    if row is None or row.state is not State.WAITING or row.version != version:
        return
    if soft or row.slack is None or state is State.SUCCEEDED:
        row = replace(row, pending=row.pending - 1)
    else:
        row = replace(row, slack=row.slack - 1)
    if row.pending <= 0:
        release(desk, row)
    elif row.slack is None or row.slack >= 0:
        desk.put(row)
    elif row.started_at is None and not row.ran:
        end(desk, row, State.CANCELLED, UPSTREAM, f"{up}, which it waited for, ended as {state}")
    else:
        desk.join(row, desk.now)


def watch_ups(desk: Desk, id: str, after: Iterable[str]) -> Generator[None, None, None]:
    """Wait for these; those that have ended count at once."""
    after = list(dict.fromkeys(after))
    if after:
        desk.wait_for([(up, id) for up in after], desk.row(id).version)
        desk.read(after)
    for up in after:
        upstream = desk.get(up)
        if upstream is not None and upstream.state.final:
            found = desk.ex(SQL["open_edge"], (up, id)).fetchone()
            if found is not None and found[1]:
                _count(desk, up, id, found[0], bool(found[2]), upstream.state)
    yield from count_endings(desk)
    row = desk.row(id)
    if row.state is State.WAITING and row.pending <= 0:
        release(desk, row)


def release(desk: Desk, row: Record) -> None:
    """It waits no longer: in line now, or when its delay is over. A promise waits on, for its settlement."""
    run_at = row.created_at + row.job.delay
    if not row.job.task:
        desk.put(row)
    elif row.started_at is None and not row.ran and row.job.delay > 0 and run_at > desk.now:
        schedule(desk, row, run_at)
    else:
        desk.join(replace(row, pending=0), desk.now)


def schedule(desk: Desk, row: Record, run_at: float) -> None:
    due = first_moment(run_at, None if row.ran else row.deadline_at)
    desk.put(replace(row, state=State.READY, pending=0, place=None, parked=None, joined_at=None, due_at=due))
    desk.topics.add(f"queue:{row.job.queue}")


def holder(desk: Desk, key: str, leaving: str = "") -> Record | None:
    """Who holds a key; `leaving` gives it up meanwhile."""
    row = desk.holder(key)
    if row is None or ((row.state.final or row.job.id == leaving) and not keeps_key(row, desk.now)):
        return None
    return row


def give_up_key(desk: Desk, new: NewJob, parent: str = "") -> Generator[None, None, str | None]:
    """The holder of the key makes room for a new job. Answers whom that must wait for: the running holder that gave
    the key away, or the one that the superseded holder waited for itself. Never `parent`, which may be waiting for
    this very job, and no job that waits for `parent`."""
    assert new.key is not None
    row = holder(desk, new.key)
    if row is None:
        return None
    desk.ex(SQL["drop_key"], (row.job.id,))
    if row.job.id == parent or row.state.final:  # ended since this call began: it came with it, doomed
        return None
    first: str | None = row.job.id
    if not (row.ran or row.state is State.RUNNING or (row.state is State.WAITING and row.started_at is not None)):
        end(desk, row, State.CANCELLED, SUPERSEDED, f"superseded by {new.id}")
        yield from count_endings(desk)
        found = desk.ex(SQL["behind"], (row.job.id,)).fetchone()
        before = desk.get(found[0]) if found else None
        first = before.job.id if before is not None and not before.state.final else None
    if first is None or (parent and waiting_for(desk, parent, [first])):
        return None
    desk.ex(SQL["set_behind"], (new.id, first))
    return first


def waiting_for(desk: Desk, id: str, among: Collection[str]) -> set[str]:
    """Which of these wait for the job `id`, directly or through others, or are that job."""
    desk.sync()
    return {found for (found,) in desk.ex(SQL["waiting_for"], (id, text(list(among))))}
