"""What a job is when it is carried from one storage to another: its row, and all that a row does not say.

Without it a moved job would have forgotten whom it waits for and which key it holds. Pure; `operate/moving.py` carries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import StorageError, StorageMoved, StorageUnavailable
from treadle.model import Limit, Record, Settled, State
from treadle.storage.rules import first_moment


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


class Load(Struct, frozen=True):
    """As many jobs as are carried at once. Rules and rates come with the first; `cursor` goes on, None ends."""

    jobs: tuple[Carried, ...] = ()
    rules: tuple[Limit, ...] = ()
    rates: tuple[Rate, ...] = ()
    cursor: str | None = None


class Mark(Struct, frozen=True, kw_only=True):
    """What a storage knows of a move it is part of. Kept by the storage, obeyed by every verb.

    closing  its jobs are about to leave: nothing new is stored, claims find nothing, what runs may still be settled
    gone     they have left: claims and enqueues are told where to, what still runs here is lost
    filling  they are arriving: every verb but those of looking says StorageUnavailable
    arrived  they are here: the storage is like any other, and remembers the move
    """

    role: Literal["closing", "gone", "filling", "arrived"]
    other: str  # the other storage's URL, as it may be shown
    move: str  # id of the move, the same on both sides
    cursor: str | None = None  # filling: what was stored last; the next load begins behind it
    jobs: int = 0  # filling: how many have arrived


SETTLES: Final = "closing"  # the one role under which settle and heartbeat go on as ever
SHUT: Final = frozenset({"closing", "gone", "filling"})

encode_mark = msgspec.json.Encoder().encode
decode_mark = msgspec.json.Decoder(Mark).decode


def refusal(mark: Mark, storage: str) -> StorageError:
    """What a verb says that cannot be done under this mark."""
    if mark.role == "filling":
        return StorageUnavailable(
            f"{storage} is being filled from {mark.other}; it answers when `treadle move` has ended"
        )
    return StorageMoved(storage, mark.other)


def gone(mark: Mark) -> Settled:
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
