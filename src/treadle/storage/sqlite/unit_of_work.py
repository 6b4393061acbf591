"""The rows of one call, within its transaction, and look-ups in their indexes: the `Rows` of the state machine.

`put` only notes a row; it is written before the next look-up, and at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from treadle.core.limit_model import Limit
from treadle.core.model import OURS, NewJob, Record, State
from treadle.storage.admission import Asker, Usage, keeps_slots, rule_for
from treadle.storage.bounds import Bounds, Candidate
from treadle.storage.count_groups import letter_of
from treadle.storage.machine.rows import Dependent
from treadle.storage.row_rules import costs, rank
from treadle.storage.sqlite import rows as columns
from treadle.storage.sqlite.bulk_read import BulkRead
from treadle.storage.sqlite.counts import Changes
from treadle.storage.sqlite.inserts import Batch
from treadle.storage.sqlite.recent_leases import RecentLeases
from treadle.storage.sqlite.rows import AFTER, CHECKPOINTS, DOWN, FULL, LIMITS, MORE, SLOT, decode, more, text
from treadle.storage.sqlite.shedding import first_queued, last_queued
from treadle.storage.sqlite.statements import load
from treadle.storage.transfer import MoveState, decode_mark, refusal, shut

SQL = load("unit_of_work")
BY_ID = BulkRead(f"SELECT {FULL} FROM job j CROSS JOIN body b ON b.seq = j.seq WHERE j.id = ?")
BY_IDS, BY_SEQS = (
    BulkRead(
        f"SELECT {FULL} FROM json_each(?) e CROSS JOIN job j ON j.{column} = e.value CROSS JOIN body b ON b.seq = j.seq"
    )
    for column in ("id", "seq")
)


class UnitOfWork:
    """The rows that one call has read and changed. It never outlives its transaction."""

    def __init__(
        self,
        db: sqlite3.Connection,
        now: float,
        topics: set[str],
        counts: Changes,
        leases: RecentLeases | None = None,
    ) -> None:
        self._db, self.counts = db, counts
        self.leases = RecentLeases() if leases is None else leases
        self.ex: Callable[..., sqlite3.Cursor] = db.execute
        self.many: Callable[..., sqlite3.Cursor] = db.executemany
        self.now, self.topics = now, topics
        self.endings: list[tuple[str, State]] = []  # ended jobs whose dependents are not counted down yet
        self.ended: set[str] = set()  # jobs that this call ended
        self._rows: dict[str, Record | None] = {}
        self._seq: dict[str, int] = {}
        self._flags: dict[str, int] = {}
        self._dirty: dict[str, str] = {}  # rows to write -> what each is counted as until then
        self._rules: dict[str, Limit] | None = None
        self._rates: dict[str, Usage] = {}
        self._move: MoveState | None = None
        self._bounds: Bounds | None = None  # bounds of queues; None: not read yet
        self._has_read_mark = False  # whether the mark of a move was read: once a call, 1.5 us

    def again(self) -> UnitOfWork:
        """An empty unit of work in the same transaction, after this one was synced."""
        unit = UnitOfWork(self._db, self.now, self.topics, self.counts, self.leases)
        unit._rules, unit._has_read_mark, unit._move = self._rules, self._has_read_mark, self._move
        unit._bounds = self._bounds
        return unit

    def quiet(self) -> UnitOfWork:
        """The same, without publishing its changes."""
        return UnitOfWork(self._db, self.now, set(), self.counts)

    def rows(self, statement: BulkRead, values: Sequence[object]) -> list[Any]:
        return statement.rows(self._db, values)

    def shut(self, *but: str) -> MoveState | None:
        """The mark of a move that stops a method; under the roles `but` the method works as always."""
        if not self._has_read_mark:
            self.saw(*self.ex(SQL["mark_and_bounds"]).fetchone())
        return shut(self._move, *but)

    def saw_mark(self, mark: bytes | None) -> None:
        """Note the stored mark, which was read together with other data; None: there is none."""
        self._has_read_mark, self._move = True, None if mark is None else decode_mark(mark)

    def saw(self, mark: bytes | None, bounds: bytes | None) -> None:
        """Note the stored mark and the bounds of queues, which were read together with other data; None: none."""
        self._has_read_mark, self._move = True, None if mark is None else decode_mark(mark)
        self._bounds = {} if bounds is None else columns.decode_bounds(bounds)

    def refuse(self, *but: str) -> None:
        mark = self.shut(*but)
        if mark is not None:
            raise refusal(mark, "this SQLite file")

    # --- rows

    def get(self, id: str) -> Record | None:
        if id not in self._rows:
            self._rows[id] = None
            for values in self.rows(BY_ID, (id,)):
                self._keep(values)
        return self._rows[id]

    def row(self, id: str) -> Record:
        """A row that exists."""
        row = self.get(id)
        assert row is not None, id
        return row

    def read(self, ids: Iterable[str]) -> None:
        """Load these rows with one read."""
        missing = [id for id in ids if id not in self._rows]
        self._rows.update(dict.fromkeys(missing))
        for values in self.rows(BY_IDS, (text(missing),)) if missing else ():
            self._keep(values)

    def by_seq(self, seqs: Iterable[int]) -> list[Record]:
        """The rows with these numbers that exist, in this order."""
        wanted = list(seqs)
        self.sync()
        rows = self.rows(BY_SEQS, (text(wanted),)) if wanted else []
        for row in rows:
            if row[0] not in self._seq.values():
                self._keep(row)
        ids = {seq: id for id, seq in self._seq.items()}
        return [self.row(ids[seq]) for seq in wanted if seq in ids]

    def _keep(self, values: tuple[object, ...]) -> None:
        seq, flags = values[0], values[1]
        assert isinstance(seq, int)
        assert isinstance(flags, int)
        row = columns.record(values)
        id = row.job.id
        self._rows[id], self._seq[id], self._flags[id] = row, seq, flags

    def add(self, row: Record, seq: int, flags: int) -> None:
        """Note a row that was just inserted."""
        id = row.job.id
        self._rows[id], self._seq[id], self._flags[id] = row, seq, flags

    def forget_all(self) -> None:
        """Forget the rows that were read, because a statement is about to write rows directly."""
        if self._rows:
            self.sync()
            self._rows.clear()

    def forget(self, jobs: Iterable[NewJob]) -> None:
        """The same, if the rows that it writes are known."""
        if self._rows:
            self.sync()
            for job in jobs:
                self._rows.pop(job.id, None)

    def replaced(self, row: Record) -> None:
        """Note the new content of a row that a statement has changed."""
        self._rows[row.job.id] = row

    def put(self, row: Record) -> None:
        id = row.job.id
        if id not in self._dirty:
            self._dirty[id] = letter_of(self.row(id))
        self._rows[id] = row
        if row.queue_position is not None:
            self.topics.add(f"queue:{row.job.queue}")
        if row.state.final:
            self.topics.add(f"job:{id}")

    def sync(self) -> None:
        """Write what was put."""
        if not self._dirty:
            return
        changed = []
        for id, was in self._dirty.items():
            row, flags = self._rows[id], self._flags[id]
            assert row is not None
            flags = flags | MORE if flags & CHECKPOINTS or more(row) else flags & ~MORE
            if row.after:
                flags |= AFTER
            flags = self._write_slots(row, flags)
            self._flags[id] = flags
            changed.append(columns.updated(row, self._seq[id], flags))
            self.counts.move(row.job.queue, row.job.task, was, letter_of(row))
        self._dirty.clear()
        self.many(SQL["put"], changed)

    def whole(self, rows: Sequence[Record]) -> list[Record]:
        self.sync()
        ids = [row.job.id for row in rows if self._flags.get(row.job.id, 0) & CHECKPOINTS]
        return columns.whole(self._db, rows, {id: self._seq[id] for id in ids})

    def remember(self, id: str, checkpoints: Iterable[tuple[str, str]]) -> None:
        seq = self._seq[id]
        self.many(SQL["remember"], [(seq, name, value) for name, value in checkpoints])
        self._mark(id, CHECKPOINTS)

    def forget_steps(self, id: str) -> None:
        self.ex(SQL["forget_steps"], (self._seq[id], OURS))

    def remembers(self, id: str, checkpoints: Mapping[str, str]) -> bool:
        stored = self.ex(SQL["remembered"], (self._seq[id], text(list(checkpoints))))
        return checkpoints.items() == dict(stored).items()

    def stored(self, ids: Collection[str]) -> set[str]:
        return {id for id, _ in self.ex(SQL["states"], (text(list(ids)),))}

    def finals(self, ids: Collection[str]) -> set[str]:
        self.sync()
        return {id for id, state in self.ex(SQL["states"], (text(list(ids)),)) if state > 2}

    def inserts(self, fresh: Sequence[NewJob]) -> Batch:
        return Batch(self, fresh)

    # --- queues

    def lane_last(self, job: NewJob) -> float | None:
        self.sync()
        position: float | None = self.ex(SQL["lane_last"], (job.queue, rank(job), job.lane)).fetchone()[0]
        return position

    def queue_head(self, job: NewJob) -> float | None:
        self.sync()
        row = self.ex(SQL["queue_head"], (job.queue, rank(job))).fetchone()
        return row[0] if row else None

    def queues_of(self, ids: Sequence[str]) -> list[str]:
        return [queue for (queue,) in self.ex(SQL["queues_of"], (text(ids),))]

    def any_queued(self, queue: str) -> bool:
        return self.ex(SQL["any_queued"], (queue,)).fetchone() is not None

    # --- keys and edges

    def holders(self, keys: Collection[str]) -> dict[str, str]:
        return dict(self.ex(SQL["holders"], (text(list(keys)),)).fetchall())

    def give_key(self, key: str, id: str | None) -> None:
        self.ex(SQL["free_key"], (key, id))
        if id is not None:
            self.ex(SQL["take_key"], (key, id))

    def drop_key(self, row: Record) -> None:
        if row.job.key is not None:
            self.ex(SQL["drop_key"], (row.job.id,))

    def behind(self, id: str) -> str | None:
        row = self.ex(SQL["behind"], (id,)).fetchone()
        return row[0] if row else None

    def set_behind(self, id: str, first: str) -> None:
        self.ex(SQL["set_behind"], (id, first))

    def wait_for(self, edges: Sequence[tuple[str, str]], version: int, soft: bool = False) -> None:
        self.many(SQL["edge"], [(up, down, version, soft, not soft) for up, down in edges])
        ups = list({up for up, _ in edges})
        self.ex(SQL["mark_down"], (text(ups),))
        for up in ups:
            self._mark(up, DOWN)
        for _, down in edges:
            self._mark(down, AFTER)

    def _mark(self, id: str, flag: int) -> None:
        if id in self._flags:
            self._flags[id] |= flag

    def dependents(self, up: str) -> list[Dependent]:
        return self.ex(SQL["downs"], (up,)).fetchall()

    def edge(self, up: str, down: str) -> Dependent | None:
        edge: Dependent | None = self.ex(SQL["an_edge"], (up, down)).fetchone()
        return edge

    def set_edge(self, up: str, down: str, is_open: bool) -> None:
        self.ex(SQL["set_edge"], (up, down, is_open))

    def drop_edges(self, edges: Sequence[tuple[str, str]]) -> None:
        self.many(SQL["drop_edge"], edges)

    def unname(self, id: str) -> None:
        self.ex(SQL["unname_edges"], (id,))

    def waiting_for(self, id: str, among: Collection[str]) -> set[str]:
        self.sync()
        return {up for (up,) in self.ex(SQL["waiting_for"], (id, text(list(among))))}

    # --- limits

    @property
    def rules(self) -> dict[str, Limit]:
        if self._rules is None:
            self._rules = {rule.name: rule for (text,) in self.ex(SQL["rules"]) for rule in [columns.decode_rule(text)]}
        return self._rules

    def rules_changed(self) -> None:
        self._rules = self._bounds = None

    @property
    def bounds(self) -> Bounds:
        if self._bounds is None:
            self.saw(*self.ex(SQL["mark_and_bounds"]).fetchone())
        return self._bounds or {}

    def waiting(self, queue: str) -> int:
        self.sync()
        return self.counts.waiting(self.ex, queue)

    def outermost(self, queue: str, last: bool) -> Iterator[Candidate]:
        self.sync()
        return last_queued(self.ex, queue) if last else first_queued(self.ex, queue)

    def _write_slots(self, row: Record, flags: int) -> int:
        """Store the slots that follow from a row: held from the first claim to the ending, live while it runs."""
        if not flags & (LIMITS | SLOT) and not (row.started_at is not None and self.rules):
            return flags
        seq, of_queue = self._seq[row.job.id], f"queue:{row.job.queue}"
        for key, cost in costs(row.job):
            if row.state.final or row.started_at is None:
                if flags & SLOT:
                    self.ex(SQL["drop_slot"], (key, seq))
            elif key != of_queue or flags & SLOT or rule_for(self.rules, key) is not None:
                live = row.state is State.RUNNING and not row.function_done
                self.ex(SQL["set_slot"], (key, seq, live, cost))
                flags |= SLOT
        return flags & ~SLOT if row.state.final or row.started_at is None else flags

    def used(self, key: str) -> Usage:
        """Slots are counted from the rows. Starts and tokens are read once a call."""
        self.sync()
        usage = self._rates.get(key)
        if usage is None:
            usage = self._rates[key] = Usage(starts=self.ex(SQL["starts"], (key,)).fetchall())
            bucket = self.ex(SQL["bucket"], (key,)).fetchone()
            if bucket is not None:
                usage.tokens, usage.at, usage.since = bucket
        until_ended = keeps_slots(self.rules, key)
        usage.used = self.ex(SQL["used" if until_ended else "used_live"], (key,)).fetchone()[0]
        return usage

    def save_usage(self, key: str, usage: Usage) -> None:
        rule = rule_for(self.rules, key)
        assert rule is not None
        if rule.how == "bucket":
            self.ex(SQL["set_bucket"], (key, usage.tokens, usage.at, usage.since))
        else:
            self.ex(SQL["forget_starts"], (key, rule.per, self.now))
            spent = sum(cost for moment, cost in usage.starts if moment == self.now)
            self.ex(SQL["set_start"], (key, self.now, spent))

    def settle_start(self, key: str, at: float, reserved: int, spent: int) -> None:
        self.ex(SQL["settle_start"], (key, at, reserved, spent))
        self._rates.pop(key, None)

    def blocked_limits(self) -> list[str]:
        return [key for (key,) in self.ex(SQL["blocked_keys"])]

    def blocked_queues(self, key: str) -> list[str]:
        """One query for each queue, however many jobs are blocked there."""
        self.sync()
        queues, queue = list[str](), ""
        while (row := self.ex(SQL["next_blocked_queue"], (key, queue)).fetchone()) is not None:
            queue = row[0]
            queues.append(queue)
        return queues

    def returned(self, key: str, queue: str) -> list[Asker]:
        keeps = keeps_slots(self.rules, key)
        jobs = self.ex(SQL["unblocked_jobs"], (key, queue)).fetchall()
        asker = columns.asker
        return sorted(asker(decode(body), position, key, bool(keeps and kept), False) for body, position, kept in jobs)

    def blocked(self, key: str, queue: str, kept: bool) -> Iterator[Asker]:
        keeps = keeps_slots(self.rules, key)
        if kept and not keeps:
            return
        self.sync()
        jobs = self.ex(SQL["blocked_kept"], (key, queue)) if kept else self.ex(SQL["blocked"], (key, queue, keeps))
        for body, position in jobs:
            yield columns.asker(decode(body), position, key, kept, True)

    def set_opening(self, key: str, moment: float | None) -> None:
        if moment is None:
            self.ex(SQL["drop_opening"], (key,))
        else:
            self.ex(SQL["set_opening"], (key, moment))
