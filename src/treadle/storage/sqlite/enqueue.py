"""Storing new jobs: in bulk where rows do not touch each other, one by one where a key or an ended upstream is met.

Without it nothing gets in. The steps are generators: each `yield` gives the loop a turn, the transaction stays open.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from msgspec import Struct

from treadle.core import defaults
from treadle.core.model import NewJob, Record, State
from treadle.errors import KeyHeld, StorageError, UnknownUpstream
from treadle.storage.row_rules import (
    check_reach,
    first_moment,
    named_by,
    needed,
    rank,
    refuse_holder,
    refuse_taken,
    tolerated,
    turn,
)
from treadle.storage.sqlite import endings
from treadle.storage.sqlite.rows import DOWN, LIMITS, MORE, encode, flags_of, inserted, text
from treadle.storage.sqlite.statements import Rows, load
from treadle.storage.sqlite.unit_of_work import SQL as DESK
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("enqueue")
ROOM = bytearray(72)  # what a claim and an ending add to a plain row, if worker and result are not long
ADD_PLAIN, ADD_ANY, ADD_BODY = Rows(SQL["add_plain"]), Rows(SQL["add_any"]), Rows(SQL["add_body"])
STEP = 256  # jobs between two turns of the loop: 1-2 ms
KEEP, KEEP_FAILED = defaults.KEEP, defaults.KEEP_FAILED
READY = State.READY

Kind = tuple[str, str, int, float | None, float | None]  # queue, task, flags, keep, keep_failed


def add_plain(unit: UnitOfWork, jobs: Sequence[NewJob]) -> Generator[None, None, list[Record]]:
    """Plain jobs (rows.is_plain) go in as they come; a known id is found by the number of rows that went in. What jobs
    of a kind have in common is bound once. Bytes go as bytearray: sqlite3 looks for an adapter of bytes, 0.7 us."""
    now, answers = unit.now, list[Record]()
    top, edges, mark = unit.ex(SQL["glance"]).fetchone()
    unit.saw(mark)
    unit.refuse()
    unit.topics.update({f"queue:{job.queue}" for job in jobs})
    for at in range(0, len(jobs), STEP):
        if at:
            yield
        part = jobs[at : at + STEP]
        waited = _waited_for(unit, part) if edges else ()
        kinds, numbers, bodies = dict[Kind, list[Any]](), dict[str, int](), list[Any]()
        for seq, job in enumerate(part, top + 1):
            kind = (
                job.queue,
                job.task,
                (DOWN if job.id in waited else 0) | (LIMITS if job.limits else 0),
                None if job.keep == KEEP else job.keep,
                None if job.keep_failed == KEEP_FAILED else job.keep_failed,
            )
            alike = kinds.get(kind)
            if alike is None:
                alike = kinds[kind] = []
            if numbers.setdefault(job.id, seq) == seq:  # of two the first, though the other's kind may go in before
                alike += (seq, job.id, job.priority)
            bodies += (seq, bytearray(encode(job)))
        stored = 0
        for kind, alike in kinds.items():
            stored += _insert(unit, ADD_PLAIN, alike, 3, (now, ROOM, *kind))
        if stored == len(part):
            _insert(unit, ADD_BODY, bodies, 2)
            answers += [
                Record(
                    job=job,
                    version=0,
                    state=READY,
                    queue_position=now,
                    return_position=now,
                    created_at=now,
                    updated_at=now,
                )
                for job in part
            ]
        else:
            answers += _known_or_new(unit, part, top, bodies)
        top += len(part)
    return answers


def _insert(unit: UnitOfWork, rows: Rows, params: list[Any], width: int, first: tuple[Any, ...] = ()) -> int:
    """All rows in few statements -> how many went in."""
    at, left, done = 0, len(params) // width, 0
    if left == 1:
        return unit.ex(rows[1], (*first, *params)).rowcount
    for size in Rows.SIZES:
        while left >= size:
            done += unit.ex(rows[size], (*first, *params[at : at + size * width])).rowcount
            at, left = at + size * width, left - size
    return done


def _known_or_new(unit: UnitOfWork, part: Sequence[NewJob], top: int, bodies: list[Any]) -> list[Record]:
    """Some of these ids were known: store the bodies of the others, answer all."""
    seqs = dict(unit.ex(SQL["seqs"], (text([job.id for job in part]),)).fetchall())
    lost = next((job.id for job in part if job.id not in seqs), None)
    if lost is not None:
        raise StorageError(f"job {lost!r} was not stored, and no row has its id; nothing of the call was stored")
    fresh = [seq for seq, job in enumerate(part, top + 1) if seqs[job.id] == seq]
    _insert(unit, ADD_BODY, [value for seq in fresh for value in (seq, bodies[(seq - top) * 2 - 1])], 2)
    unit.read(job.id for job in part)
    return [unit.row(job.id) for job in part]


def _waited_for(unit: UnitOfWork, jobs: Sequence[NewJob]) -> set[str]:
    return {up for (up,) in unit.ex(SQL["waited_for"], (text([job.id for job in jobs]),))}


class Plan(Struct):
    """Which row answers each job, and those of them that are new, in order."""

    answers: dict[str, str]
    fresh: list[NewJob]
    held: set[str]  # keys that some row has

    def of(self, up: str) -> str:
        return self.answers.get(up, up)


def plan(unit: UnitOfWork, jobs: Sequence[NewJob], leaving: str = "") -> Plan:
    """Raises before anything is stored. `leaving` gives its key up meanwhile."""
    if not jobs:
        return Plan({}, [], set())
    unit.sync()
    known = {id for id, _ in unit.ex(SQL["states"], (text([job.id for job in jobs]),))}
    refuse_taken(jobs, lambda ids: _jobs_of(unit, [id for id in ids if id in known]))
    keys = {job.key for job in jobs if job.key is not None}
    held = {key for key, _ in unit.ex(SQL["holders"], (text(list(keys)),))} if keys else set()
    answers, taken, fresh = dict[str, str](), dict[str, NewJob](), list[NewJob]()
    for new in jobs:
        if new.id in known or new.id in answers:
            answers.setdefault(new.id, new.id)
            continue
        if new.key is not None:
            first = taken.get(new.key)
            row = endings.holder(unit, new.key, leaving) if first is None and new.key in held else None
            holder = first if row is None else row.job
            if holder is not None:
                refuse_holder(new, holder)
            if holder is not None and new.key_conflict == "raise":
                raise KeyHeld(new.key, holder.id)
            if holder is not None and (new.key_conflict == "keep" or (row is not None and row.state.final)):
                answers[new.id] = holder.id
                continue
            taken[new.key] = new
        answers[new.id] = new.id
        fresh.append(new)
    _all_known(unit, fresh, answers)
    _all_in_reach(unit, jobs, fresh)
    return Plan(answers, fresh, held)


def _jobs_of(unit: UnitOfWork, ids: Sequence[str]) -> dict[str, NewJob]:
    unit.read(ids)
    return {id: row.job for id in ids if (row := unit.get(id)) is not None}


def _all_known(unit: UnitOfWork, jobs: Sequence[NewJob], answers: dict[str, str]) -> None:
    ups = {up for new in jobs if new.after and new.wait_timeout is None for up in new.after if up not in answers}
    known = {id for id, _ in unit.ex(SQL["states"], (text(list(ups)),))} if ups else set()
    if len(known) < len(ups):
        for new in jobs:
            for up in new.after if new.wait_timeout is None else ():
                if up not in known and up not in answers:
                    raise UnknownUpstream(up, new.id)


def _all_in_reach(unit: UnitOfWork, jobs: Sequence[NewJob], fresh: Sequence[NewJob]) -> None:
    bound = [new for new in fresh if new.reach]
    if bound:
        found = {job.id: job for job in reversed(jobs)}
        found |= _jobs_of(unit, [id for new in bound for id in named_by(new) if id not in found])
        for new in bound:
            check_reach(new, found.get)


class Batch:
    """Rows that wait to be inserted together. Nobody may look at the line, a key or a row before `flush`."""

    def __init__(self, unit: UnitOfWork, jobs: Sequence[NewJob]) -> None:
        self._unit = unit
        self._top = unit.ex(SQL["top"]).fetchone()[0]
        self._rows: list[Any] = []
        self._bodies: list[Any] = []
        self._labels: list[tuple[str, int]] = []
        self._edges: list[tuple[str, str]] = []
        self.keys: set[str] = set()
        self._heads: dict[tuple[str, int], float | None] = {}
        self._lanes: dict[tuple[str, int, str], float | None] = {}
        self._waited = {up for new in jobs for up in new.after}
        if unit.ex(SQL["any_edge"]).fetchone()[0]:
            self._waited |= _waited_for(unit, jobs)

    def add(self, row: Record, key: str | None) -> None:
        job = row.job
        self._top += 1
        flags = flags_of(job) | (DOWN if job.id in self._waited else 0)
        if row.function_done or row.after or row.failures_allowed != 0 or row.deadline_at is not None or row.pending:
            flags |= MORE
        self._rows += inserted(row, self._top, flags, key)
        self._bodies += (self._top, bytearray(encode(job)))
        self._labels += [(label, self._top) for label in job.labels]
        self._edges += [(up, job.id) for up in dict.fromkeys(row.after)]
        if key is not None:
            self.keys.add(key)
        self._unit.add(row, self._top, flags)
        if row.state is not State.WAITING:
            self._unit.topics.add(f"queue:{job.queue}")

    def position(self, job: NewJob, when: float) -> float:
        """As Desk.place, but the rows added here stand in line too."""
        unit, line, position = self._unit, (job.queue, rank(job)), turn(job, when)
        if line not in self._heads:
            self._heads[line] = unit.line_head(job)
        head = self._heads[line]
        if job.lane is not None:
            lane = (*line, job.lane)
            if lane not in self._lanes:
                self._lanes[lane] = unit.lane_last(job)
            last = self._lanes[lane]
            if last is not None:
                position = last + job.stride
            elif head is not None:
                position = min(position, head)
            self._lanes[lane] = position if last is None else max(position, last)
        self._heads[line] = position if head is None else min(position, head)
        return position

    def flush(self) -> Generator[None, None, None]:
        """Insert all; what is read from here on sees them. One job may wait for thousands: those go in in steps."""
        unit = self._unit
        _insert(unit, ADD_ANY, self._rows, 23)
        _insert(unit, ADD_BODY, self._bodies, 2)
        if self._labels:
            unit.many(SQL["add_label"], self._labels)
        for at in range(0, len(self._edges), STEP):
            if at:
                yield
            unit.wait_for(self._edges[at : at + STEP], 0)
        for batch in (self._rows, self._bodies, self._labels, self._edges):
            batch.clear()
        self._heads.clear()
        self._lanes.clear()


def store_all(unit: UnitOfWork, plan: Plan, parent: str = "") -> Generator[None, None, None]:
    """Store what is new. `parent` is the unfinished job they come from."""
    if not plan.fresh:
        return
    ended, batch = _ended(unit, plan), Batch(unit, plan.fresh)
    for number, new in enumerate(plan.fresh, 1):
        yield from _store(unit, batch, new, plan, ended, parent)
        if number % STEP == 0:
            yield from batch.flush()
            yield
    yield from batch.flush()
    unit.sync()


def _ended(unit: UnitOfWork, plan: Plan) -> set[str]:
    """Those of the jobs they wait for that have ended already."""
    ups = {plan.of(up) for new in plan.fresh for up in new.after}
    return {id for id, state in unit.ex(SQL["states"], (text(list(ups)),)) if state > 2} if ups else set()


def _store(
    unit: UnitOfWork, batch: Batch, new: NewJob, plan: Plan, ended: set[str], parent: str
) -> Generator[None, None, None]:
    now, soft = unit.now, None
    after = tuple(map(plan.of, new.after)) if new.after else ()
    if new.key is not None and (new.key in plan.held or new.key in batch.keys):
        yield from batch.flush()
        soft = yield from endings.give_up_key(unit, new, parent)
        if soft in after:
            soft = None  # it waits for the holder by name, and with what it asked of that ending
        unit.ex(DESK["free_key"], (new.key,))
    deadline_at = None if new.deadline is None else now + new.deadline
    timeout_at = None if new.wait_timeout is None else now + new.wait_timeout
    pending, failures_allowed = (
        needed(new.required, after) + (soft is not None),
        tolerated(new.failures_allowed, new.required, after),
    )
    # an ending that is still to be counted moves others in line first, as the contract's order of steps has it
    simple = soft is None and not unit.endings
    if after and simple:
        simple = ended.isdisjoint(after) and unit.ended.isdisjoint(after)
    if simple and pending <= 0 and new.task:
        batch.add(_released(batch, new, after, failures_allowed, deadline_at, now), new.key)
        return
    batch.add(
        Record(
            job=new,
            version=0,
            state=State.WAITING,
            after=after,
            pending=pending,
            failures_allowed=failures_allowed,
            function_done=new.function_done,
            due_at=first_moment(deadline_at if not new.function_done else None, timeout_at),
            deadline_at=deadline_at,
            created_at=now,
            updated_at=now,
        ),
        new.key,
    )
    if not simple:
        yield from batch.flush()
        if soft is not None:
            unit.wait_for([(soft, new.id)], 0, soft=True)
        yield from endings.watch_ups(unit, new.id, after)
        unit.sync()


def _released(
    batch: Batch,
    new: NewJob,
    after: tuple[str, ...],
    failures_allowed: int | None,
    deadline_at: float | None,
    now: float,
) -> Record:
    """A job that has nothing to wait for: in line, or scheduled."""
    due = None if new.function_done else deadline_at
    if not new.function_done and new.delay > 0 and now + new.delay > now:
        position, due = None, first_moment(now + new.delay, due)
    else:
        position = batch.position(new, now)
    return Record(
        job=new,
        version=0,
        state=READY,
        after=after,
        failures_allowed=failures_allowed,
        function_done=new.function_done,
        queue_position=position,
        return_position=position,
        due_at=due,
        deadline_at=deadline_at,
        created_at=now,
        updated_at=now,
    )


def enqueue(unit: UnitOfWork, jobs: Sequence[NewJob]) -> Generator[None, None, list[Record]]:
    unit.refuse()
    found = plan(unit, jobs)
    yield from store_all(unit, found)
    unit.read(found.answers.values())
    return [unit.row(found.answers[new.id]) for new in jobs]
