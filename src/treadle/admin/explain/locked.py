"""The lock that a durable job waits for: which job has it, how many wait before, and whether these jobs wait for each
other in a circle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from treadle.admin.explain.wording import at, count, named, on_job, worker_of
from treadle.core.errors import UNREADABLE
from treadle.core.model import Record, State
from treadle.durable import LOCKED, read_entry
from treadle.workflow.locks import LockHeader, ahead_of, lock_of

LOOKED: Final = 100  # turns that are read, and jobs that are followed

Get = Callable[[Sequence[str]], Awaitable[Sequence[Record | None]]]


class Locked(Struct, frozen=True):
    """A lock that a job waits for.

    owner   the job that has it; None: the caller may not see it
    before  jobs before it, with the owner, counted up to LOOKED
    circle  for each job through which it waits for itself: that job, and the lock that it waits for
    """

    name: str
    owner: Record | None
    before: int
    circle: tuple[tuple[Record, str], ...] = ()


async def locked(get: Get, row: Record, upstreams: Iterable[Record | None]) -> Locked | None:
    """The lock that this job waits for, if it waits for one. `get` returns the rows that the caller may see."""
    turn = _turn(upstreams)
    if turn is None:
        return None
    name, turns = await _line(get, turn)
    owner = await _owner(get, turns)
    return Locked(name, owner, len(turns), () if owner is None else await _circle(get, row.id, owner))


async def _circle(get: Get, start: str, owner: Record) -> tuple[tuple[Record, str], ...]:
    """From the owner of a lock on: the jobs that wait for a lock of the next one, up to `start`; (): there are none."""
    path: list[tuple[Record, str]] = []
    while owner.id != start:
        if owner.state is not State.WAITING or any(owner.id == one.id for one, _ in path) or len(path) == LOOKED:
            return ()
        turn = _turn(await get(owner.after))
        if turn is None:
            return ()
        name, turns = await _line(get, turn)
        path.append((owner, name))
        next_owner = await _owner(get, turns)
        if next_owner is None:
            return ()
        owner = next_owner
    return tuple(path)


def _turn(upstreams: Iterable[Record | None]) -> Record | None:
    return next((up for up in upstreams if up is not None and not up.state.final and _name(up)), None)


async def _line(get: Get, turn: Record) -> tuple[str, list[Record]]:
    """The name of the lock, and the turns from this one up to the owner's."""
    turns, up = [turn], ahead_of(turn)
    while up and len(turns) < LOOKED:
        [before] = await get([up])
        if before is None or before.state.final:
            break
        turns.append(before)
        up = ahead_of(before)
    return _name(turn), turns


async def _owner(get: Get, turns: Sequence[Record]) -> Record | None:
    lock = lock_of(turns[-1].job)
    return None if lock is None else (await get([lock.job]))[0]


def _name(turn: Record) -> str:
    lock = lock_of(turn.job)
    return "" if lock is None else lock.lock


# --- sentences


def words(lock: Locked) -> str:
    """The sentence about a job that waits for a lock."""
    others = "" if lock.before < 2 else f"; {count(lock.before - 1, 'job')} before it {_wait(lock.before - 1)}, too"
    if lock.owner is None:
        return f"It waits for the lock {lock.name!r}, which another job has{others}."
    does = (
        f"runs on {worker_of(lock.owner)} since {at(lock.owner.started_at)}"
        if lock.owner.state is State.RUNNING
        else f"is {lock.owner.state}"
    )
    sentence = f"It waits for the lock {lock.name!r}, which {named(lock.owner)} has, which {does}{others}"
    if not lock.circle:
        return f"{sentence}: {on_job('explain', lock.owner)} says what that job waits for."
    chain = ", ".join(f"{named(row)} waits for the lock {name!r}" for row, name in lock.circle)
    return f"{sentence}. None of them can go on: {chain}, up to this job. {on_job('cancel', lock.owner)} ends one."


def words_of_row(lock: LockHeader) -> str:
    """The sentence about a row of a lock."""
    if not lock.job:
        return f"It is the row of the lock {lock.lock!r}, which a job has."
    turn = f"It is the turn of job {lock.job} for the lock {lock.lock!r}"
    return f"{turn}: it ends as soon as that job has left the lock, or has ended, and the turns before it have ended."


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def has(row: Record) -> str:
    """The sentence about the locks that an unfinished job has."""
    names = [] if row.state.final else [name for name, is_held in _entries(row) if is_held]
    return f" It has the lock {' and '.join(map(repr, names))}." if names else ""


def _entries(row: Record) -> Iterable[tuple[str, bool]]:
    for key, text in row.checkpoints:
        if key.startswith(LOCKED):
            try:
                entry = read_entry(text)
            except UNREADABLE:
                continue
            name = key.removeprefix(LOCKED).partition("#")[0]
            yield name, entry.has_value and not entry.exit
