"""What a job is when it is carried from one storage to another: its row, and all that a row does not say.

Without it a moved job would have forgotten whom it waits for and which key it holds. Pure; `storage_move.py` carries.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.model import LimitFacts, Record, Settled, State
from treadle.errors import MoveFailed, StorageError, StorageMoved, StorageUnavailable
from treadle.storage.row_rules import first_moment

log = logging.getLogger("treadle")


class Edge(Struct, frozen=True, gc=False):
    """A job waits, or waited, for `up`. `version` is its own as it began to; `open`: the ending has still to count;
    `soft`: any ending is a success (it took the other's key)."""

    up: str
    version: int
    open: bool
    soft: bool = False


class Carried(Struct, frozen=True, gc=False, kw_only=True):
    """One job. `holds_key`: its key is its own now; `behind`: whose ending it waits for since it took a key."""

    record: Record
    holds_key: bool = False
    edges: tuple[Edge, ...] = ()
    behind: str | None = None


class Rate(Struct, frozen=True, gc=False):
    """What the rate of one limit remembers: starts within its window (moment, cost), or a bucket's tokens."""

    key: str
    starts: tuple[tuple[float, int], ...] = ()
    tokens: float | None = None
    at: float = 0.0


class Chunk(Struct, frozen=True):
    """As many jobs as are carried at once. Rules and rates come with the first; `cursor` goes on, None ends."""

    jobs: tuple[Carried, ...] = ()
    rules: tuple[LimitFacts, ...] = ()
    rates: tuple[Rate, ...] = ()
    cursor: str | None = None


Role = Literal["closing", "gone", "filling", "arrived", "aborted", "partial"]


class MoveState(Struct, frozen=True, kw_only=True):
    """What a storage knows of a move it is part of. The storage keeps it, and every verb obeys it.

    closing  its jobs are about to leave: nothing new is stored, claims find nothing, running jobs may still be settled
    gone     the jobs have left: enqueues and claims raise StorageMoved, leases of running jobs are lost
    filling  the jobs are arriving: every verb that changes something raises StorageUnavailable
    arrived  the jobs are here: the storage works normally, and remembers the move
    aborted  the move was given up: the storage works normally
    partial  the move was given up: the storage holds some of the jobs and stays shut

    `turn`, `run` and `step` fence the marks, as `version` fences a job: `replaces` says which mark may follow which.
    """

    role: Role
    other: str  # the other storage's URL, without its password
    move: str  # id of the move, the same on both sides
    cursor: str | None = None  # filling: the last load ended here; the next one starts behind it
    jobs: int = 0  # filling: how many have arrived
    turn: int = 0  # a run of the command takes the highest turn of both storages, plus one
    run: str = ""  # id of the run of the command that wrote this mark
    step: int = 0  # number of this mark within its run


SETTLES: Final = "closing"  # the one role under which settle and heartbeat work normally
NOT_HERE: Final = frozenset({"gone", "filling", "partial"})  # no jobs are served here
SHUT: Final = frozenset({"closing", "gone", "filling", "partial"})
FINAL: Final = frozenset({"arrived", "aborted", "partial"})  # the move has ended: no later mark of the same move


def replaces(found: MoveState | None, mark: MoveState) -> bool:
    """Whether `mark` may take the place of the stored one. A storage asks this in the step that writes the mark.

    A run that stood still (a sleeping laptop, a paused container) is refused once another run has taken the move over
    or ended it. Within one run a call that arrives late cannot undo a later one; a repeated call changes nothing.
    """
    if found is None:
        return True
    if found.run == mark.run:
        return mark.step >= found.step
    if found.move == mark.move and found.role in FINAL:
        return False
    return mark.turn > found.turn


def check_replaces(found: MoveState | None, mark: MoveState, storage: str) -> None:
    """Raise MoveFailed unless `mark` may take the place of the stored one."""
    if found is not None and not replaces(found, mark):
        raise overtaken(found, storage)


class InTheWay(StorageError):
    """A mark cannot be set yet: `who`, in words, is under way and may still store jobs. Nothing was changed."""

    def __init__(self, who: str) -> None:
        self.who = who
        super().__init__(f"{who} may have stored jobs: the mark of a move waits until it ends")


def overtaken(found: MoveState, storage: str) -> MoveFailed:
    """Why a mark was refused. The refused run has changed nothing since."""
    if found.role == "arrived":
        what = f"another run has ended this move: the jobs of {found.other} live at {storage} now"
    elif found.role in FINAL:
        what = "this move was given up with --abort"
    else:
        what = "another run of `treadle move` has taken this move over"
    return MoveFailed(f"{what}; this run stops here and has changed nothing since")


encode_mark = msgspec.json.Encoder().encode
decode_mark = msgspec.json.Decoder(MoveState).decode


def refusal(mark: MoveState, storage: str) -> StorageError:
    """The error of a verb that cannot be done under this mark."""
    if mark.role == "partial":
        return StorageUnavailable(
            f"{storage} holds a part of the jobs of {mark.other}, whose move here was given up; those jobs live there. "
            "Delete this storage, or use another one"
        )
    if mark.role == "filling":
        return StorageUnavailable(
            f"{storage} is being filled from {mark.other}; it answers when `treadle move` has ended"
        )
    return StorageMoved(storage, mark.other)


async def mark_of(storage: object) -> MoveState | None:
    """The move that a storage is part of; None also for storages that keep no marks. Raises StorageError."""
    read = getattr(storage, "read_mark", None)
    found: MoveState | None = None if read is None else await read()
    return found


async def check_stays(storage: object) -> None:
    """Raise StorageMoved if the jobs of this storage live elsewhere now. For calls that found or changed nothing: the
    move may be the reason."""
    mark = await mark_of(storage)
    if mark is not None and mark.role == "gone":
        raise refusal(mark, "this storage")


def words(mark: MoveState | None, here: str) -> str | None:
    """What a person must know of a storage whose jobs live elsewhere, or are on their way; None: nothing."""
    there = "" if mark is None else mark.other
    return (
        None
        if mark is None
        else {
            "closing": f"{here} is being moved to {there}; it takes no new jobs",
            "gone": f"{here} was moved to {there}: its jobs live there, and change no more here; use that URL",
            "filling": f"{here} is being filled from {there}; it answers when `treadle move` has ended",
            "partial": f"{here} holds a part of the jobs of {there}, whose move was given up; use that URL",
        }.get(mark.role)
    )


async def warn_of_move(storage: object) -> None:
    """Log a warning if the jobs of a storage that was just opened live elsewhere now."""
    with suppress(StorageError):
        mark = await mark_of(storage)
        if mark is not None and mark.role in NOT_HERE:
            log.warning("%s", words(mark, "the storage of this app"))


def gone(mark: MoveState) -> Settled:
    """What settling says where the jobs have left."""
    return Settled("stale", f"the jobs were moved to {mark.other}")


def handed_over(record: Record) -> Record:
    """A job as it is stored at its new place. One that runs is ready again at its turn, uncounted, as soon as its lease
    is over: until then whoever runs it is told that he has lost it, and cannot be at it beside somebody else."""
    if record.state is not State.RUNNING:
        return record
    due = first_moment(record.due_at, None if record.ran else record.deadline_at)
    return replace(record, state=State.READY, place=None, parked=None, due_at=due, worker=None)


_encode = msgspec.msgpack.Encoder().encode


def digest(jobs: Iterable[Carried]) -> int:
    """A number that two sets of jobs share only if they are the same, in whatever order: add those of the parts.

    Whether one who stands aside has been let back in line is left out: a target that opens lets in whom a rate has room
    for by then, so the two sides would differ as soon as the move is over.
    """
    total = 0
    for each in jobs:
        record = handed_over(each.record)
        if record.parked is not None:
            record = replace(record, place=None)
        told = replace(each, record=record, edges=tuple(sorted(each.edges, key=lambda edge: edge.up)))
        total += int.from_bytes(hashlib.blake2b(_encode(told), digest_size=16).digest())
    return total % 2**128
