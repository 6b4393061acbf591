"""Stores plain jobs in bulk: they touch no row but their own.

`machine/store.py` stores all other jobs. Both are generators: at each `yield` the loop gets a turn and the transaction
stays open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from typing import Any

from treadle.core import defaults
from treadle.core.errors import StorageError, TreadleError
from treadle.core.model import NewJob, Record, State
from treadle.storage.bounds import bound_of
from treadle.storage.count_groups import QUEUED, SCHEDULED
from treadle.storage.machine import store
from treadle.storage.row_rules import OWN_ID, REFUSALS, new_record
from treadle.storage.sqlite.inserts import ADD_BODY, SQL, BulkInsert, waited_for
from treadle.storage.sqlite.rows import DOWN, LIMITS, MORE, encode, text
from treadle.storage.sqlite.unit_of_work import UnitOfWork

ROOM = bytearray(72)  # bytes that a claim and an ending add to a plain row, if worker name and result are short
ADD_PLAIN = BulkInsert(SQL["add_plain"], 3)
STEP = 256  # jobs between two turns of the loop: 1-2 ms
KEEP, KEEP_FAILED = defaults.KEEP, defaults.KEEP_FAILED
READY = State.READY

Moment = float | None
Kind = tuple[Moment, Moment, Moment, str, str, int, float | None, float | None]
"""Queue position, due_at, deadline_at, queue, task, flags, keep, keep_failed."""


Glance = tuple[int, bool]
"""The greatest number of a row, and whether any job waits for another."""


def add_merged(
    unit: UnitOfWork, calls: Sequence[Sequence[NewJob]]
) -> Generator[None, None, list[list[Record] | TreadleError]]:
    """Store the plain jobs of several callers with one insert. Return the rows for each caller, or its refusal."""
    jobs = [job for jobs in calls for job in jobs]
    glance = _glance(unit, jobs)
    if glance is None:
        return (yield from _one_by_one(unit, calls))
    rows = iter((yield from add_plain(unit, jobs, glance)))
    return [[next(rows) for _ in jobs] for jobs in calls]


def _glance(unit: UnitOfWork, jobs: Sequence[NewJob]) -> Glance | None:
    """None: one of these jobs may be refused. An id of Treadle's own may be that of another job, or a bounded queue has
    no room for all. Some of them may be known, and need none."""
    top, edges, mark, bounds = unit.ex(SQL["glance"]).fetchone()
    if mark is not None or bounds is not None:
        unit.saw(mark, bounds)
        unit.refuse()
    own = [job.id for job in jobs if job.id.startswith(OWN_ID)]
    if own and (len(set(own)) < len(own) or unit.stored(own)):
        return None
    for queue, count in Counter(job.queue for job in jobs).items() if bounds is not None else ():
        rule = bound_of(unit.bounds, queue)
        if rule is not None and rule.max_waiting is not None and unit.waiting(queue) + count > rule.max_waiting:
            return None
    return top, edges


def _one_by_one(
    unit: UnitOfWork, calls: Sequence[Sequence[NewJob]]
) -> Generator[None, None, list[list[Record] | TreadleError]]:
    answers: list[list[Record] | TreadleError] = []
    for jobs in calls:
        unit = unit.again()
        try:
            answers.append((yield from store.enqueue(unit, jobs)))
        except REFUSALS as refused:  # raised before anything was written
            answers.append(refused)
    return answers


def add_plain(
    unit: UnitOfWork, jobs: Sequence[NewJob], glance: Glance | None = None
) -> Generator[None, None, list[Record]]:
    """Store plain jobs (rows.is_plain). Jobs of the same kind share one statement and bind their common values once. If
    fewer rows are inserted than there are jobs, some ids were known. Bytes are bound as bytearray: for bytes, sqlite3
    looks for an adapter, 0.7 us. `glance`: it has shown that no job will be refused."""
    glance = glance or _glance(unit, jobs)
    if glance is None:
        return (yield from store.enqueue(unit, jobs))
    top, edges = glance
    now = unit.now
    answers: list[Record] = []
    for start in range(0, len(jobs), STEP):
        if start:
            yield
        part = jobs[start : start + STEP]
        rows, kinds, bodies = _new_rows(part, now, top, waited_for(unit.ex, part) if edges else ())
        stored = 0
        for kind, alike in kinds.items():
            went = ADD_PLAIN.insert(unit.ex, alike, (now, ROOM, *kind))
            unit.topics.add(f"queue:{kind[3]}")
            unit.counts.add(kind[3], kind[4], SCHEDULED if kind[0] is None else QUEUED, went)
            stored += went
        if stored == len(part):
            ADD_BODY.insert(unit.ex, bodies)
            answers += rows
        else:
            answers += _known_or_new(unit, part, top, bodies)
        top += len(part)
    return answers


def _new_rows(
    jobs: Sequence[NewJob], now: float, top: int, waited: Collection[str]
) -> tuple[list[Record], dict[Kind, list[Any]], list[Any]]:
    """The rows of new jobs, and the parameters of the statements that insert them: number, id and priority by kind, and
    all bodies."""
    rows: list[Record] = []
    kinds: dict[Kind, list[Any]] = {}
    numbers: dict[str, int] = {}
    bodies: list[Any] = []
    for seq, job in enumerate(jobs, top + 1):
        row = (
            new_record(job, now)
            if job.delay or job.deadline is not None
            else Record(  # a call takes 0.2 us more
                job=job,
                version=0,
                state=READY,
                queue_position=now,
                return_position=now,
                created_at=now,
                updated_at=now,
            )
        )
        rows.append(row)
        kind = (
            row.queue_position,
            row.due_at,
            row.deadline_at,
            job.queue,
            job.task,
            (DOWN if job.id in waited else 0)
            | (LIMITS if job.limits else 0)
            | (MORE if row.deadline_at is not None else 0),
            None if job.keep == KEEP else job.keep,
            None if job.keep_failed == KEEP_FAILED else job.keep_failed,
        )
        alike = kinds.get(kind)
        if alike is None:
            alike = kinds[kind] = []
        # the first of two jobs with one id wins, although the other's kind may be inserted before
        if numbers.setdefault(job.id, seq) == seq:
            alike += (seq, job.id, job.priority)
        bodies += (seq, bytearray(encode(job)))
    return rows, kinds, bodies


def _known_or_new(unit: UnitOfWork, part: Sequence[NewJob], top: int, bodies: list[Any]) -> list[Record]:
    """Store the bodies of the new jobs, after some of the ids turned out to be known, and return a row for every
    job."""
    seqs = dict(unit.ex(SQL["seqs"], (text([job.id for job in part]),)).fetchall())
    lost = next((job.id for job in part if job.id not in seqs), None)
    if lost is not None:
        raise StorageError(f"job {lost!r} was not stored, and no row has its id; nothing of the call was stored")
    fresh = [seq for seq, job in enumerate(part, top + 1) if seqs[job.id] == seq]
    ADD_BODY.insert(unit.ex, [value for seq in fresh for value in (seq, bodies[(seq - top) * 2 - 1])])
    unit.read(job.id for job in part)
    return unit.whole([unit.row(job.id) for job in part])


def enqueue(unit: UnitOfWork, jobs: Sequence[NewJob]) -> Generator[None, None, list[Record]]:
    """Store any jobs."""
    unit.refuse()
    return (yield from store.enqueue(unit, jobs))
