"""Leases the first jobs of a queue, a page at a time: plain rows with one UPDATE, the others one by one.

The decisions about limits and leases are in `machine/leasing.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.core.model import Claim, Claimed, NewJob, Record, State
from treadle.storage.admission import rule_for
from treadle.storage.count_groups import QUEUED
from treadle.storage.count_groups import RUNNING as RUNNING_KIND
from treadle.storage.machine.leasing import Leasing, next_start, shares
from treadle.storage.row_rules import claim_slot, costs, first_moment, in_order, rank
from treadle.storage.sqlite import slots
from treadle.storage.sqlite.advance_due import advance_due
from treadle.storage.sqlite.bulk_read import BulkRead
from treadle.storage.sqlite.rows import MORE, SLOT, SLOW_CLAIM, STARTED, decode_all, numbers, numbers_text, run_of, text
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork

SQL = load("claim")
BY_LINE = "job j INDEXED BY job_line"
OF_TASKS = "j.task IN (SELECT value FROM json_each(?3))"
OF_ANY_TASKS = f"(?3 IS NULL OR {OF_TASKS})"
BEHIND = "(-j.rank, j.queue_position, j.id) > (-?4, ?5, ?6)"


def _page(source: str, *conditions: str) -> BulkRead:
    return BulkRead(
        SQL["page"].format(source=source, conditions="".join(f"AND {condition} " for condition in conditions))
    )


FIRST_PAGE, FIRST_PAGE_OF_TASKS = _page(BY_LINE), _page(BY_LINE, OF_TASKS)
NEXT_PAGE = _page(BY_LINE, OF_ANY_TASKS, "j.rank <= ?4", BEHIND)
EXEMPT_PAGE = _page(SQL["exempt"], OF_ANY_TASKS, BEHIND)
PAGE_OF_IDS = _page("json_each(?7) e CROSS JOIN job j ON j.id = e.value", OF_ANY_TASKS, f"(?4 IS NULL OR {BEHIND})")
LEASE = SQL["lease"].format(which="seq IN (SELECT value FROM json_each(?6))")
LEASE_RUN = SQL["lease"].format(which="seq BETWEEN ?6 AND ?7")  # consecutive numbers: no list to parse and sort
RUNNING = State.RUNNING
PAGE = 256  # rows read at a time
SLOW_PAGE = 64  # rows read at a time if they may have limits

ASKS = SLOW_CLAIM | MORE
LEASED = 9  # bytes that a lease adds to a plain row, in addition to the name of its worker
CAREFUL = STARTED | SLOT | MORE  # such a row must be read whole; the limits of any other are in its body

Cursor = tuple[int, float, str]  # rank, position, id


def claim(unit: UnitOfWork, ask: Claim, quickly: bool = False) -> Generator[None, None, Claimed | None]:
    """One step of a claim. None: no job of this step may start, and there are more jobs to look at. `quickly`: return
    nothing unless the queue is all there is to read, which means no rules and no rows that are due."""
    name, slot = claim_slot(ask.worker)
    mark, recent, rules, *moments = unit.ex(SQL["glance"], (name, slot, ask.worker)).fetchone()
    unit.saw_mark(mark)
    if mark is not None:
        unit.refuse("closing")
        if unit.shut():
            return Claimed()
    due = first_moment(*moments)
    if quickly and (rules or recent or (due is not None and due <= unit.now)):
        return Claimed()
    earlier = numbers(recent) if recent else []
    taken = _held(unit, ask, earlier) if earlier else []
    if not taken:
        advanced = due is not None and due <= unit.now
        if advanced:
            yield from advance_due(unit)
        taking = ClaimWalk(unit, ask, bool(rules))
        yield from taking.run()
        taken = taking.taken
        if taking.unfinished and not taken:
            unit.sync()
            return None
        if taken:
            seqs = taking.seqs
            unit.leases.note(taken, seqs, taking.groups.pop() if len(taking.groups) == 1 else None)
            if earlier:
                seqs += [seq for seq in earlier if seq not in seqs]
            unit.ex(SQL["set_recent_claim"], (name, slot, ask.worker, numbers_text(seqs), unit.now))
        if advanced or not taking.plainly:
            moments = unit.ex(SQL["moments"]).fetchone()
        else:
            moments += taking.leases
    moment = first_moment(*moments, next_start(unit, ask) if rules else None)
    return Claimed(tuple(unit.whole(taken)), None if moment is None else max(0.0, moment - unit.now))


def _held(unit: UnitOfWork, ask: Claim, seqs: Sequence[int]) -> list[Record]:
    """The jobs that still run under this claim id, in queue order."""
    return in_order([row for row in unit.by_seq(seqs) if row.worker == ask.worker and row.state is RUNNING], ask.queues)


class ClaimWalk:
    """Walks along the queues of one claim."""

    def __init__(self, unit: UnitOfWork, ask: Claim, rules: bool) -> None:
        self.unit, self.ask = unit, ask
        self.taken: list[Record] = []
        self.seqs: list[int] = []
        self._rules = rules
        self.groups: set[tuple[str, str]] = set()  # queue and task of these jobs
        self._leasing = Leasing(unit, ask)
        self._plain: dict[tuple[float, int], list[int]] = {}  # end of the lease, flag to set -> rows to lease together
        self._slots: dict[tuple[str, int], list[int]] = {}  # limit, cost -> the rows that take a slot of it
        # jobs of the page; their rows are read together once a limit blocks the first of them
        self._ahead: list[str] = []
        # True while the claim changed only rows that were not due; these become due when their leases end
        self.plainly = True
        self.leases: set[float] = set()
        self._cursor: Cursor | None = None  # the last job of this queue that was passed over
        self._closed = False  # the queue's own limit is full: only rows exempt from it are read from here on
        self._tasks: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether so many jobs were blocked that other calls get a turn before the walk continues."""
        return self._leasing.unfinished

    def run(self) -> Generator[None, None, None]:
        self._name_tasks()
        for queue, share in shares(self.unit, self.ask):
            share = min(share, self.ask.limit - len(self.taken))
            if share > 0:
                yield from self._walk(queue, share)
        self._flush()
        self._leasing.close()

    def _name_tasks(self) -> None:
        if self.ask.tasks is not None:
            self._tasks = text([task for task in self.ask.tasks if self._leasing.room.get(task, 1) > 0])

    def _page(self, queue: str, size: int) -> list[Any]:
        """The next rows of a queue after the cursor, of the tasks that the worker has room for."""
        self._flush()
        rows, tasks, position = self.unit.rows, self._tasks, self._cursor or (None, None, None)
        if self.ask.ids:
            return rows(PAGE_OF_IDS, (queue, size, tasks, *position, text(list(dict.fromkeys(self.ask.ids)))))
        if self._closed:
            return rows(EXEMPT_PAGE, (queue, size, tasks, *position))
        if self._cursor is not None:
            return rows(NEXT_PAGE, (queue, size, tasks, *position))
        if tasks is None:
            return rows(FIRST_PAGE, (queue, size))
        return rows(FIRST_PAGE_OF_TASKS, (queue, size, tasks))

    def _walk(self, queue: str, share: int) -> Generator[None, None, None]:
        ruled = self._rules and rule_for(self.unit.rules, f"queue:{queue}") is not None
        self._cursor, self._closed = None, False
        slow, first = ruled, True
        while share > 0 and not self.unfinished:
            if not first:
                yield
            size = min(share, SLOW_PAGE if slow else PAGE) if first or not slow else SLOW_PAGE
            first = False
            page = self._page(queue, size)
            jobs = decode_all(row[7] for row in page)
            if ruled or self._leasing.room or any(row[1] & ASKS for row in page) or self._holds_any(jobs):
                before, slow, self.plainly = len(self.taken), True, False
                through = self._admit_all(page, jobs, share, ruled)
                share -= len(self.taken) - before
            else:
                self._take_plain(page[:share], jobs[:share])
                share, through, slow = max(0, share - len(page)), True, False
            if through and len(page) < size:
                return

    def _holds_any(self, jobs: Sequence[NewJob]) -> bool:
        running = self._leasing.running
        return bool(running) and not running.isdisjoint([job.id for job in jobs])

    def _admit_all(self, page: Sequence[Any], jobs: Sequence[NewJob], share: int, ruled: bool) -> bool:
        """Decide on the jobs one by one. Return False if the queue must be read again before the end of the page."""
        self.unit.read(job.id for job, row in zip(jobs, page, strict=True) if row[1] & CAREFUL)
        self._leasing.any_unblocked, self._ahead = False, [job.id for job in jobs]
        head = self._take_head(page[:share], jobs, ruled)
        share -= head
        if not share:
            return False
        for job, row in zip(jobs[head:], page[head:], strict=True):
            taken = self._admit(job, row, ruled)
            if taken:
                share -= 1
            elif taken is None or self._closed:
                self._cursor = rank(job), row[5], job.id
                if ruled and not self._closed and self._shut(job.queue):
                    self._closed = True
                    return False
            if not share or self._leasing.any_unblocked or self.unfinished:
                return False
        return True

    def _take_head(self, page: Sequence[Any], jobs: Sequence[NewJob], ruled: bool) -> int:
        """Lease the jobs at the head of the page that pass all limits, in one statement: 1.7 us a job less than one by
        one."""
        count = 0
        if not self._leasing.room and not self._leasing.running:
            for row, job in zip(page, jobs, strict=False):
                asks = ruled or job.limits
                if not asks or row[1] & CAREFUL or not self._lets_in(row, job, ruled):
                    break
                count += 1
        self._take_plain(page[:count], jobs[:count], SLOT)
        return count

    def _shut(self, queue: str) -> bool:
        return self._leasing.gate.blocked_by(((f"queue:{queue}", 1),)) is not None

    def _take_plain(self, page: Sequence[Any], jobs: Sequence[NewJob], flag: int = 0) -> None:
        """Take all rows of a page; no limit blocks any of them."""
        now, worker, tasks, lease = self.unit.now, self.ask.worker, self.ask.tasks, self.ask.lease
        plain, taken = self._plain, self.taken
        for (seq, _, version, attempt, lost, position, created_at, _), job in zip(page, jobs, strict=True):
            until = now + (job.lease or (tasks[job.task][1] if tasks is not None else None) or lease)
            taken.append(
                Record(
                    job=job,
                    version=version + 1,
                    state=RUNNING,
                    attempt=attempt,
                    lost=lost,
                    return_position=position,
                    worker=worker,
                    due_at=until,
                    created_at=created_at,
                    started_at=now,
                    updated_at=now,
                )
            )
            if (until, flag) in plain:
                plain[until, flag].append(seq)
            else:
                plain[until, flag] = [seq]
            self.seqs.append(seq)
        if jobs:
            self._count(jobs)
        self.unit.forget(jobs)

    def _admit(self, job: NewJob, columns: Any, ruled: bool) -> bool | None:
        """True: taken. False: blocked by a limit and no longer queued. None: passed over."""
        seq, flags = columns[:2]
        if not self._leasing.wants(job):
            return None
        if not flags & CAREFUL and self._lets_in(columns, job, ruled):
            self._take_plain([columns], [job], SLOT if ruled or job.limits else 0)
        elif flags & SLOW_CLAIM or ruled:
            self._read_ahead(job.id)
            row = self.unit.row(job.id)
            if row.queue_position is None:
                return False
            passed = self._leasing.admit(row, self._flush)
            if not passed:
                return passed
            self.taken.append(self._leasing.lease(row))
            self.groups.add((job.queue, job.task))
            self.seqs.append(seq)
        else:
            now, row = self.unit.now, self.unit.row(job.id)
            until = self._leasing.until(job)
            row = replace(
                row,
                version=row.version + 1,
                state=RUNNING,
                queue_position=None,
                worker=self.ask.worker,
                due_at=until,
                started_at=now,
                updated_at=now,
            )
            self.unit.replaced(row)
            self._count([job])
            self._plain.setdefault((until, 0), []).append(seq)
            self.taken.append(row)
            self.seqs.append(seq)
        if self._leasing.took(job.task):
            self._name_tasks()
        return True

    def _count(self, jobs: Sequence[NewJob]) -> None:
        """Count jobs of one queue that are leased by a statement."""
        queue, first = jobs[0].queue, jobs[0].task
        tasks = [job.task for job in jobs]
        if tasks.count(first) == len(tasks):
            self.groups.add((queue, first))
            self.unit.counts.move(queue, first, QUEUED, RUNNING_KIND, len(tasks))
            return
        for task, number in Counter(tasks).items():
            self.groups.add((queue, task))
            self.unit.counts.move(queue, task, QUEUED, RUNNING_KIND, number)

    def _flush(self) -> None:
        """Lease all plain rows collected so far, one statement for each end of a lease."""
        for (until, flag), seqs in self._plain.items():
            self.leases.add(until)
            values = until, self.ask.worker, self.unit.now, flag, LEASED + len(self.ask.worker)
            run = run_of(seqs)
            if run is None:
                self.unit.ex(LEASE, (*values, text(seqs)))
            else:
                self.unit.ex(LEASE_RUN, (*values, *run))
        slots.take(self.unit, self._slots)
        self._plain.clear()
        self._slots.clear()
        self.unit.sync()

    def _lets_in(self, columns: Any, job: NewJob, ruled: bool) -> bool:
        """Whether all limits admit a job that was never claimed before. This also takes the slots, so the row of the
        job need not be read."""
        uses = costs(job) if ruled else job.limits
        if uses:
            turn = -rank(job), columns[5], job.id
            if self._leasing.gate.blocked_by(uses) is not None or self._leasing.held_back_by(job, turn) is not None:
                return False
            self._leasing.gate.admit(uses)
            for use in dict(uses).items():
                self._slots.setdefault(use, []).append(columns[0])
        return True

    def _read_ahead(self, id: str) -> None:
        """A limit has blocked this job and may block others of the page: read all their rows in one statement."""
        if self._ahead:
            self.unit.read(self._ahead[self._ahead.index(id) :])
            self._ahead = []
