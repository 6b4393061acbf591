"""Defines the data of a move between storages: a job's row with its edges and its key, and the marks of a move. Pure.

`storage_move.py` runs the move.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import MoveFailed, StorageError, StorageMoved, StorageUnavailable
from treadle.core.limit_model import LimitFacts
from treadle.core.model import Record, Settled, State
from treadle.core.query_model import MetricsRow
from treadle.storage.row_rules import first_moment


class Edge(Struct, frozen=True, gc=False):
    """A job waits, or waited, for `up`. `version`: its own version when the wait began; `open`: the ending is not
    counted yet; `soft`: any ending counts as success (the job took over the key of `up`)."""

    up: str
    version: int
    open: bool
    soft: bool = False


class Carried(Struct, frozen=True, gc=False, kw_only=True):
    """One job. `holds_key`: it holds its key now; `behind`: the former holder of the key, whose ending it waits for."""

    record: Record
    holds_key: bool = False
    edges: tuple[Edge, ...] = ()
    behind: str | None = None


class Rate(Struct, frozen=True, gc=False):
    """The usage of one rate: starts within its window (moment, cost), or a bucket's tokens, and since when it counts
    starts."""

    key: str
    starts: tuple[tuple[float, int], ...] = ()
    tokens: float | None = None
    at: float = 0.0
    since: float = 0.0


def rates_of(
    starts: Iterable[tuple[str, float, int]], buckets: Iterable[tuple[str, float | None, float, float]]
) -> tuple[Rate, ...]:
    """The rates of a storage that keeps starts (key, moment, cost) and buckets (key, tokens, moment, since), by key."""
    by_key, tokens = defaultdict[str, list[tuple[float, int]]](list), {key: rest for key, *rest in buckets}
    for key, moment, cost in starts:
        by_key[key].append((moment, cost))
    return tuple(Rate(key, tuple(by_key[key]), *tokens.get(key, ())) for key in sorted({*by_key, *tokens}))


class Chunk(Struct, frozen=True):
    """The jobs of one step of a move. The first chunk has the rules, the rates and the rows of metrics too. `cursor`
    None: the last chunk."""

    jobs: tuple[Carried, ...] = ()
    rules: tuple[LimitFacts, ...] = ()
    rates: tuple[Rate, ...] = ()
    cursor: str | None = None
    metrics: tuple[MetricsRow, ...] = ()


Role = Literal["closing", "gone", "filling", "arrived", "aborted", "partial"]


class MoveState(Struct, frozen=True, kw_only=True):
    """The mark of a move, stored in both of its storages. Every verb obeys it.

    closing  before the jobs are moved away: nothing new is stored, claims find nothing, running jobs can be settled
    gone     the jobs were moved away: enqueues and claims raise StorageMoved, leases of running jobs are lost
    filling  the jobs are being loaded: every verb that changes something raises StorageUnavailable
    arrived  the jobs were loaded: the storage works normally and keeps the mark
    aborted  the move was aborted: the storage works normally
    partial  the move was aborted: the storage has some of the jobs and stays shut

    `turn`, `run` and `step` fence the marks, as `version` fences a job: `replaces` says which mark may follow which.
    """

    role: Role
    other: str  # the other storage's URL, without its password
    move: str  # id of the move, the same on both sides
    cursor: str | None = None  # filling: where the last load ended; the next one starts after it. Of an import: what
    # it reads, see `admin/storage_file.py`
    jobs: int = 0  # filling: number of jobs loaded
    turn: int = 0  # one more than the highest turn that the run found in the two storages
    run: str = ""  # id of the run of the command that wrote this mark
    step: int = 0  # number of this mark within its run


SETTLES: Final = "closing"  # the shut role under which settle and heartbeat work normally
NOT_HERE: Final = frozenset({"gone", "filling", "partial"})  # no jobs are served here
SHUT: Final = frozenset({"closing", "gone", "filling", "partial"})
FINAL: Final = frozenset({"arrived", "aborted", "partial"})  # the move has ended: no later mark of the same move


def replaces(stored: MoveState | None, mark: MoveState) -> bool:
    """Whether `mark` may replace the stored one. A storage checks this in the step that writes the mark.

    A run that was suspended (a sleeping laptop, a paused container) is refused once another run has taken the move over
    or ended it. Within one run a call that arrives late cannot undo a later one; a repeated call changes nothing.
    """
    if stored is None:
        return True
    if stored.run == mark.run:
        return mark.step >= stored.step
    if stored.move == mark.move and stored.role in FINAL:
        return False
    return mark.turn > stored.turn


def shut(mark: MoveState | None, *but: str) -> MoveState | None:
    """The mark of a move that stops a verb; under the roles `but` the verb works as always."""
    return mark if mark is not None and mark.role in SHUT and mark.role not in but else None


def check_replaces(stored: MoveState | None, mark: MoveState, storage: str) -> None:
    """Raise MoveFailed unless `mark` may replace the stored one."""
    if stored is not None and not replaces(stored, mark):
        raise overtaken(stored, storage)


class InTheWay(StorageError):
    """A mark cannot be set yet, because `who` (a text) may still store jobs. Nothing was changed."""

    def __init__(self, who: str) -> None:
        self.who = who
        super().__init__(f"{who} may have stored jobs: the move waits until it ends")


def overtaken(stored: MoveState, storage: str) -> MoveFailed:
    """The error of a refused mark: another run took the move over or ended it."""
    if stored.role == "arrived":
        what = f"another run has finished this move: the jobs of {stored.other} are at {storage} now"
    elif stored.role in FINAL:
        what = "this move was aborted with --abort"
    else:
        what = "another run of `treadle storage move` has taken this move over"
    return MoveFailed(f"{what}; this run stops here and has changed nothing since then")


encode_mark = msgspec.json.Encoder().encode
decode_mark = msgspec.json.Decoder(MoveState).decode


def refusal(mark: MoveState, storage: str) -> StorageError:
    """The error of a verb that this mark does not allow."""
    if mark.role == "partial":
        return StorageUnavailable(
            f"{storage} holds some of the jobs of {mark.other}, whose move here was aborted; all of them are still "
            "there. Delete this storage, or use another one"
        )
    if mark.role == "filling":
        return StorageUnavailable(
            f"{storage} receives the jobs of {mark.other}; it can be used when the move or import has ended"
        )
    return StorageMoved(storage, mark.other)


def words(mark: MoveState | None, here: str) -> str | None:
    """A message for operators about a storage that is shut because of a move; None if it works normally."""
    if mark is None:
        return None
    there = mark.other
    return {
        "closing": f"{here} is being moved to {there}; it accepts no new jobs",
        "gone": f"{here} was moved to {there}: its rows here no longer change; use that URL",
        "filling": f"{here} receives the jobs of {there}; it can be used when the move or import has ended",
        "partial": f"{here} holds some of the jobs of {there}, whose move was aborted; use that URL",
    }.get(mark.role)


def gone(mark: MoveState) -> Settled:
    """The result of settling a job that was moved away."""
    return Settled("stale", f"the jobs were moved to {mark.other}")


def handed_over(record: Record) -> Record:
    """The row that the target stores. A running job becomes ready, not counted as lost, and is due when its lease (or
    its deadline) is over. By then its worker has learned from the source that the lease is lost, so the job does not
    run twice at the same time."""
    if record.state is not State.RUNNING:
        return record
    due = first_moment(record.due_at, None if record.function_done else record.deadline_at)
    return replace(record, state=State.READY, queue_position=None, blocked_on=None, due_at=due, worker=None)


_encode = msgspec.msgpack.Encoder().encode


def digest(jobs: Iterable[Carried]) -> int:
    """A checksum of a set of jobs, in any order. Add the checksums of the chunks to get the checksum of all jobs.

    The queue position of jobs with a `blocked_on` is left out. When the target opens, it queues the blocked jobs that
    their rate admits by then, so positions would differ right after the move.
    """
    total = 0
    for job in jobs:
        record = handed_over(job.record)
        if record.blocked_on is not None:
            record = replace(record, queue_position=None)
        content = replace(job, record=record, edges=tuple(sorted(job.edges, key=lambda edge: edge.up)))
        total += int.from_bytes(hashlib.blake2b(_encode(content), digest_size=16).digest())
    return total % 2**128
