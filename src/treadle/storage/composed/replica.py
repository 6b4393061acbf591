"""Builds the rows from the log: each process applies the same verbs at the same moments to a memory storage.

Every change comes from the log; other calls only read. `Snapshot` keeps the whole state including the order of its
dicts, so a process that starts from a base gets exactly the same rows as one that applied every entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from treadle.core.claim_ids import worker_name
from treadle.core.errors import UNREADABLE, NotADatabase
from treadle.core.limit_model import LimitFacts
from treadle.core.model import Claim, Claimed, LeaseRenewal, Outcome, Presence, Record, Settled, State
from treadle.core.query_model import MetricsRow
from treadle.storage.admission import Usage
from treadle.storage.composed import log_entries
from treadle.storage.composed.log_entries import Base, LogEntry, Op
from treadle.storage.memory.claim import ClaimWalk
from treadle.storage.memory.storage import MemoryStorage
from treadle.storage.memory.tables import Edge, Tables
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import MoveState

T = TypeVar("T")

ROWS = 200  # rows in one line of a snapshot


class Snapshot(Struct, frozen=True):
    """Everything but the rows, as of a log position. The rows follow, `ROWS` per line."""

    position: int
    last: str
    at: float
    tidied: int
    announced: dict[str, tuple[float, int]]
    beside: dict[int, tuple[str, int]]
    down: tuple[tuple[str, tuple[tuple[str, int, bool, bool], ...]], ...]  # up -> (down, version, open, soft)
    keys: tuple[tuple[str, str], ...]
    behind: tuple[tuple[str, str], ...]
    limits: tuple[LimitFacts, ...]
    rates: tuple[tuple[str, Usage], ...]
    opens: tuple[tuple[str, float], ...]
    workers: tuple[tuple[Presence, float], ...]
    mark: MoveState | None = None
    metrics: tuple[MetricsRow, ...] = ()


_encode = msgspec.json.Encoder().encode
_head = msgspec.json.Decoder(Snapshot).decode
_rows = msgspec.json.Decoder(tuple[Record, ...]).decode


class RecordingTables(Tables):
    """Rows, and the jobs that started to wait for a worker since `called` was cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[str, float | None] = {}  # job -> when it is due; None: now

    def put(self, row: Record) -> None:
        before = self.jobs.get(row.job.id)
        super().put(row)
        waits = row.state is State.READY and row.blocked_on is None and row.job.task
        if waits and (before is None or before.state is not State.READY):
            self.called[row.job.id] = None if row.queue_position is not None else row.due_at


class Copy(MemoryStorage):
    """A memory storage whose clock is the time of the last log entry."""

    name = "this storage of three ports"
    checks = False
    due_step = math.inf  # a bound would change what the entries do that older versions have written

    def __init__(self, waiters: TopicWaiters) -> None:
        super().__init__(lambda: self.moment)
        self.moment = 0.0
        self._waiters = waiters
        self.tables = self._tables = RecordingTables()
        self._jobs = self.tables.jobs

    # --- the effect of a call, before it is logged

    def claims(self, ask: Claim, now: float) -> bool:
        """Whether this claim would change anything: rows are due, or it would lease or block a job."""
        if self._shut() is not None or self.tables.held.get(ask.worker):
            return False
        moment = self.tables.next_moment()
        if moment is not None and moment <= now:
            return True
        self.tables.begin(now)
        return ClaimWalk(self.tables, ask).would_take_any()

    async def step(self, ask: Claim) -> Claimed | None:
        """One step of a claim. None: no job of this step may start, and there are more jobs to look at."""
        self._refuse("closing")
        return Claimed() if self._shut() is not None else self._claim(ask)

    async def settle_and_step(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed | None]:
        settled = await self.settle(outcomes)
        return settled, Claimed() if self._shut() is not None else await self.step(ask)

    def leases_by_worker(self) -> dict[str, tuple[LeaseRenewal, ...]]:
        """The running jobs."""
        leased: dict[str, tuple[LeaseRenewal, ...]] = {}
        for row in self._jobs.values():
            if row.state is State.RUNNING and row.worker is not None:
                worker = worker_name(row.worker)
                leased[worker] = *leased.get(worker, ()), LeaseRenewal(row.job.id, row.version)
        return leased

    def look(self, ask: Claim, now: float) -> Claimed:
        """The result of a claim that changes nothing."""
        self._refuse("closing")
        if self._shut() is not None:
            return Claimed()
        self.tables.begin(now)
        return self._claimed(self._running(ask), ask, now)

    def prunes(self, now: float) -> bool:
        if self._shut() is not None:
            return False
        moment = self.tables.next_moment()
        if moment is not None and moment <= now:
            return True
        return any(row.expires_at is not None and row.expires_at <= now for row in self._jobs.values())


class Replica:
    """The rows as of `position`, and the log's records about its parts and deletions."""

    def __init__(self, waiters: TopicWaiters) -> None:
        self.copy = Copy(waiters)
        self.position = 0
        self.last = ""  # the id of the entry at `position`
        self.at = 0.0  # the moment of that entry
        self.tidied = 0  # the entries up to this position are deleted
        self.announced: dict[str, tuple[float, int]] = {}  # name of parts -> moment of the announcement, number
        self.beside: dict[int, tuple[str, int]] = {}  # position -> the parts of its entry

    def apply(self, entry: LogEntry, ops: tuple[Op, ...] | None = None) -> list[Any]:
        """Apply the next entry; return what each verb returned or raised. `ops`: its verbs, if known already."""
        before, self.last = self.last, entry.id
        self.position += 1
        if entry.after != before:
            return []  # void: it follows another entry, and its writer has raised StorageUnavailable
        self.at = self.copy.moment = entry.at
        if entry.parts is not None:
            self.beside[self.position] = entry.parts
            self.announced.pop(entry.parts[0], None)
        return [self._apply(op) for op in (ops if ops is not None else entry.ops)]

    def _apply(self, op: Op) -> Any:
        if isinstance(op, log_entries.AnnounceOp):
            self.announced[op.name] = self.at, op.parts
            return None
        if isinstance(op, log_entries.TidiedOp):
            self.tidied = max(self.tidied, op.upto)
            self.beside = {place: parts for place, parts in self.beside.items() if place > self.tidied}
            for name in op.names:
                self.announced.pop(name, None)
            return None
        try:
            return run_through(_VERBS[type(op)](self.copy, *msgspec.structs.astuple(op)))
        except Exception as error:  # a refusal is a result, the same in every process
            return error

    def reads(self, steps: Coroutine[Any, Any, T], now: float) -> T:
        """The result at `now` of a verb that only reads."""
        before, self.copy.moment = self.copy.moment, now
        try:
            return run_through(steps)
        finally:
            self.copy.moment = before

    # --- snapshots

    def write(self) -> Iterator[str]:
        """The whole state, line by line. This call copies all mutable state, so entries may be applied meanwhile."""
        tables = self.copy.tables
        head = Snapshot(
            position=self.position,
            last=self.last,
            at=self.at,
            tidied=self.tidied,
            announced=dict(self.announced),
            beside=dict(self.beside),
            down=tuple(
                (up, tuple((down, edge.version, edge.open, edge.soft) for down, edge in downs.items()))
                for up, downs in tables.down.items()
                if downs
            ),
            keys=tuple(tables.keys.items()),
            behind=tuple(tables.former.items()),
            limits=tuple(tables.facts.values()),
            rates=tuple(
                (key, msgspec.structs.replace(usage, used=0))
                for key, usage in tables.rates.items()
                if usage.starts or usage.tokens is not None
            ),
            opens=tuple(tables.opens.items()),
            workers=tuple(self.copy._workers.values()),
            mark=self.copy._mark,
            metrics=tuple(self.copy._metrics.values()),
        )
        rows = tables.whole(list(tables.jobs.values()))

        def lines() -> Iterator[str]:
            yield _encode(head).decode() + "\n"
            for start in range(0, len(rows), ROWS):
                yield _encode(rows[start : start + ROWS]).decode() + "\n"

        return lines()

    def read(self, text: str, base: Base) -> None:
        """Load a state that `write` made. Raises NotADatabase."""
        try:
            first, *rest = text.split("\n")
            head = _head(first)
            self.position, self.last, self.at, self.tidied = head.position, head.last, head.at, head.tidied
            self.announced, self.beside = dict(head.announced), dict(head.beside)
            self._read_book(head, [row for line in rest if line for row in _rows(line)])
        except UNREADABLE as error:
            raise NotADatabase(f"the base {base.name} of the log cannot be read: {error}") from error

    def _read_book(self, head: Snapshot, rows: list[Record]) -> None:
        copy, tables = self.copy, self.copy.tables
        copy.moment = head.at
        for row in rows:
            tables.restore(row)
        for up, downs in head.down:
            for down, version, is_open, soft in downs:
                edge = tables.down[up][down] = Edge(version, soft)
                edge.open = is_open
        tables.keys.update(head.keys)
        tables.former.update(head.behind)
        for facts in head.limits:
            tables.set_facts(facts)
        tables.rates.update(head.rates)
        tables.opens.clear()
        tables.opens.update(head.opens)
        copy._workers.update((worker.worker, (worker, seen)) for worker, seen in head.workers)
        copy._metrics.update(((row.at, row.span, row.source), row) for row in head.metrics)
        copy._mark = head.mark
        tables.topics.clear()
        tables.called.clear()


def run_through(steps: Coroutine[Any, Any, T]) -> T:
    """The result of a verb of the memory storage, whose verbs never wait."""
    try:
        steps.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError(f"{steps} waited for something")


_VERBS: Final[dict[type[Any], Callable[..., Coroutine[Any, Any, Any]]]] = {  # called with the fields of the op
    log_entries.EnqueueOp: Copy.enqueue,
    log_entries.ClaimOp: Copy.step,
    log_entries.SettleOp: Copy.settle,
    log_entries.SettleClaimOp: Copy.settle_and_step,
    log_entries.HeartbeatOp: Copy.heartbeat,
    log_entries.SetLimitsOp: lambda copy, changes: copy.set_limits(changes.read()),
    log_entries.PruneOp: Copy.prune,
    log_entries.StoreMetricsOp: Copy.store_metrics,
    log_entries.SetMarkOp: Copy.set_mark,
    log_entries.LoadOp: Copy.load,
}
