"""Implements the storage on three ports: each change is first appended to the log, and then applied by every process.

Concurrent calls of one process share one entry. A process that dies at any point leaves either no entry, and then
nothing has happened, or a whole one, which every process applies.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from treadle.concurrency.group_commit import GroupCommit, Request
from treadle.concurrency.spawn import mark_retrieved, started
from treadle.core import clock
from treadle.core.errors import SchemaTooOld
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.ports import Ports
from treadle.storage.composed import compaction, log_entries
from treadle.storage.composed.follower import Follower
from treadle.storage.composed.log import Log, LogClock, as_text, pieces
from treadle.storage.composed.log_entries import Draft, LogEntry, Op
from treadle.storage.composed.notifier import Notifier
from treadle.storage.composed.port_calls import PATIENCE, Port, here, quietly, soon
from treadle.storage.composed.replica import Copy, Replica
from treadle.storage.composed.wakeups import Wakeups
from treadle.storage.contract import Capabilities
from treadle.storage.memory.recount import recount
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import Chunk, MoveState
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    check_rows,
    guarded_settle,
    guarded_settle_claim,
)

T = TypeVar("T")
Look = Callable[[Replica, float], T]  # reads the rows as of a time

EVERY: Final = 4096  # entries after a base until the next is written; as many as there are rows, if that is more
PIECE: Final = 192 * 1024  # characters in one value of the store: up to 4 bytes each, and systems accept a megabyte


class LogCall(Request):
    """A waiting call: the verb it may append, whether it must be appended, and its answer if not."""

    __slots__ = ("look", "op", "text", "wants")

    def __init__(self, op: Op | None, look: Look[Any] | None, wants: Look[bool] | None) -> None:
        super().__init__()
        self.op, self.look, self.wants = op, look, wants
        self.text = log_entries.encode(op) if op is not None else b""

    def writes(self, replica: Replica, now: float) -> bool:
        return self.op is not None and (self.wants is None or self.wants(replica, now))

    def seen(self, replica: Replica, now: float) -> Any:
        """The answer of a call that appended nothing."""
        try:
            return self.look(replica, now) if self.look is not None else None
        except Exception as error:  # for example a wrong cursor
            return error


class ComposedStorage:
    """A storage on the user's own systems.

    ports      queue, pub/sub and store; the jobs are in the store
    namespace  prefix of all keys and channels, so that programs can share the systems
    now        the storage's clock; None: the store's if it has one, otherwise this machine's
    every      log entries until all rows are written as a new base
    piece      most characters in one value of the store
    patience   seconds to wait for an answer of a port
    """

    capabilities = Capabilities(settle_claim=True, movable=True, marks=True)

    def __init__(
        self,
        ports: Ports,
        *,
        namespace: str = "treadle",
        now: clock.Clock | None = None,
        every: int = EVERY,
        piece: int = PIECE,
        patience: float = PATIENCE,
    ) -> None:
        self.ports, self.namespace = ports, namespace
        self._every, self._piece = every, piece
        self._store, self._pubsub = Port(ports.store, "store", patience), Port(ports.pubsub, "pub/sub", patience)
        self._queue = Port(ports.queue, "queue", patience)
        self._clock = LogClock(now, self._store)
        self._waiters = TopicWaiters()
        self._log = Log(self._store, namespace)
        self._follower = Follower(self._log, namespace, self._waiters)
        self._groups = GroupCommit[LogCall](f"the jobs of {namespace!r}", self._step, self._together)
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        """Reset all state of tasks, because a closed event loop may have left some of them unfinished."""
        self._closing: asyncio.Task[None] | None = None  # the task that closes the storage
        self._beside: set[asyncio.Task[Any]] = set()
        self._wakeups = Wakeups(self._queue, self._row, self._waiters.wake, lambda: self._replica.at)
        follow = functools.partial(self._look, lambda replica, now: None)
        self._notifier = Notifier(
            self._pubsub, f"{self.namespace}:log", lambda: self._replica.position, follow, self._start
        )
        self._tidying = False
        self._reserved = not self._store.has("alone")

    @property
    def _replica(self) -> Replica:
        return self._follower.replica

    async def _now(self) -> float:
        return await self._clock.now(self._replica.at)

    def _row(self, id: str) -> Record | None:
        return self._replica.copy.tables.jobs.get(id)

    # --- life

    async def open(self, look: bool = False) -> None:
        """Read the current rows and subscribe to changes of the log, which `look` does not. Raises SchemaTooOld."""
        while self._closing is not None and self._closing.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._closing])  # otherwise the close in progress would close what is opened here
        if self._is_open:
            return
        self._begin()
        try:
            await self._follower.reload()
            await self._follower.catch_up()
            if look and not self._replica.position:
                raise SchemaTooOld(0, log_entries.RULES, f"the namespace {self.namespace!r}")
        except BaseException:
            await self._close_ports()
            raise
        self._is_open = True
        if not look:
            await self._notifier.listen()

    async def close(self) -> None:
        """Stop and close the ports. If the caller is cancelled, closing continues, and the next `open` or `close` waits
        for it."""
        if self._closing is None or self._closing.get_loop() is not asyncio.get_running_loop():
            if not self._is_open:
                return
            self._is_open = False
            self._closing = started(self._finish())
            self._closing.add_done_callback(mark_retrieved)
        await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        try:
            await self._stop()
        finally:
            self._closing = None

    async def _stop(self) -> None:
        await self._wakeups.close()
        beside = here(self._beside)
        for task in beside:
            task.cancel()
        await self._groups.idle()
        if beside:
            await asyncio.wait(beside)
        await self._notifier.close()
        await self._close_ports()

    async def _close_ports(self) -> None:
        for port in (self._queue, self._pubsub, self._store):
            if port.has("close"):
                await soon(port(port.port.close))

    # --- the verbs

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        check_jobs(jobs)
        return await self._ask(log_entries.EnqueueOp(tuple(jobs)))

    async def claim(self, ask: Claim) -> Claimed:
        check_ask(ask)
        await self._reserve()
        self._wakeups.serve((queue for queue, _ in ask.queues), ask.tasks)
        claimed: Claimed | None = None
        while claimed is None:  # with very many blocked jobs a claim takes several steps, each with its own entry
            claimed = await self._ask(
                log_entries.ClaimOp(ask),
                lambda replica, now: replica.copy.look(ask, now),
                lambda replica, now: replica.copy.claims(ask, now),
            )
        if not claimed.records:
            self._wakeups.listen()  # once per empty claim, so the user's poll interval sets the cost of idling
        return claimed

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        check_beat(worker, renewals, lease)
        return await self._ask(log_entries.HeartbeatOp(worker, tuple(renewals), lease))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        return await self._ask(log_entries.SettleOp(tuple(outcomes)))

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        if not outcomes:
            return [], await self.claim(ask)
        await self._reserve()
        self._wakeups.serve((queue for queue, _ in ask.queues), ask.tasks)
        both: tuple[list[Settled], Claimed | None] = await self._ask(log_entries.SettleClaimOp(tuple(outcomes), ask))
        settled, claimed = both
        return settled, await self.claim(ask) if claimed is None else claimed

    async def _reserve(self) -> None:
        """Before the first claim: reserve a store of one process at a time, and end the leases of dead processes. The
        leases are read before the reservation, so that none of them is of this process."""
        if self._reserved:
            return
        leased = await self._look(lambda replica, now: replica.copy.leases_by_worker())
        if await self._store(self._store.port.alone, self.namespace):
            for worker, leases in leased.items():
                await self._ask(log_entries.HeartbeatOp(Presence(worker=worker, gone=True), leases, 0.0))
        self._reserved = True

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(lambda copy: copy.get(ids))

    async def find(self, query: Query) -> Page:
        return await self._read(lambda copy: copy.find(query))

    async def stats(self) -> Stats:
        return await self._read(lambda copy: copy.stats())

    async def glance(self, most: int = 10_000) -> Glance:
        return await self._read(lambda copy: copy.glance(most))

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        """Counts the rows of this process: each process derives its counts from the log, and repairs its own."""
        return await recount(await self._look(lambda replica, now: replica.copy.tables), repair)

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await self._read(lambda copy: copy.limits(use))

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        await self._ask(log_entries.SetLimitsOp(log_entries.UnboundedLimitChanges.of(changes)))

    async def prune(self, limit: int) -> int:
        return await self._ask(
            log_entries.PruneOp(limit), lambda replica, now: 0, lambda replica, now: replica.copy.prunes(now)
        )

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        check_rows(rows, remove)
        await self._ask(log_entries.StoreMetricsOp(tuple(rows), tuple(remove)))

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        return await self._read(lambda copy: copy.read_metrics(since, until))

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if not self._notifier.is_listening:
            self._start(self._notifier.listen)
        return await self._waiters.wait(topics, timeout)

    # --- moves

    async def read_mark(self) -> MoveState | None:
        return await self._read(lambda copy: copy.read_mark())

    async def set_mark(self, mark: MoveState) -> None:
        await self._ask(log_entries.SetMarkOp(mark))

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        return await self._read(lambda copy: copy.unload(cursor, limit))

    async def load(self, load: Chunk, mark: MoveState) -> None:
        await self._ask(log_entries.LoadOp(load, mark))

    # --- appending entries

    async def _read(self, verb: Callable[[Copy], Coroutine[Any, Any, T]]) -> T:
        return await self._look(lambda replica, now: replica.reads(verb(replica.copy), now))

    async def _look(self, look: Look[T]) -> T:
        return await self._ask(None, look)

    async def _ask(self, op: Op | None, look: Look[T] | None = None, wants: Look[bool] | None = None) -> T:
        answer: T = await self._groups.ask(LogCall(op, look, wants))
        return answer

    def _together(self, waiting: deque[LogCall]) -> list[LogCall]:
        """Take the calls of one entry: as many as fit into one value, or one call that is larger."""
        calls = [waiting.popleft()]
        size = len(calls[0].text)
        while waiting and size + len(waiting[0].text) <= self._piece:
            calls.append(waiting.popleft())
            size += len(calls[-1].text)
        return calls

    async def _step(self, calls: list[LogCall]) -> None:
        """Append the verbs of these calls as one entry, and answer all calls from the rows after it."""
        replica, log, at_end = self._replica, self._log, False
        beside: tuple[str, int] | None = None
        while True:
            now = await self._now()
            writing = [call for call in calls if call.writes(replica, now)]
            if not writing and at_end:
                break
            if writing:
                if beside is None and len(writing[0].text) > 2 * self._piece:  # alone in the group: see `_together`
                    beside = await self._set_beside(writing[0])
                    replica = self._replica
                ops = tuple(msgspec.Raw(call.text) for call in writing) if beside is None else ()
                draft = Draft(uuid4().hex, now, log_entries.RULES, replica.last, ops, beside)
                text = as_text(draft)
                place = replica.position + 1
                if await log.append(place, text, draft.id):
                    await self._follower.check_won(place)
                    entry = LogEntry(draft.id, now, log_entries.RULES, draft.after, parts=beside)
                    for call, answer in zip(writing, self._apply_own(entry, writing), strict=True):
                        call.reply(answer)
                    calls, at_end = [call for call in calls if call not in writing], True
                    continue
            await self._follower.catch_up()
            replica, at_end = self._replica, True
        for call in calls:
            call.reply(call.seen(replica, now))

    def _apply_own(self, entry: LogEntry, writing: list[LogCall]) -> list[Any]:
        replica, tables = self._replica, self._replica.copy.tables
        tables.called.clear()
        answers = replica.apply(entry, tuple(call.op for call in writing if call.op is not None))
        self._wakeups.ring(tables.called)
        tables.called.clear()
        self._wakeups.took(sum(map(taken, answers)))
        self._notifier.changed()
        self._tidy_up()
        return answers

    async def _set_beside(self, call: LogCall) -> tuple[str, int]:
        """Store a verb that is too long for one value as parts, before the entry that names them."""
        name, parts = uuid4().hex, pieces(f"[{call.text.decode()}]", self._piece)
        await self._append_now(log_entries.AnnounceOp(name, len(parts)))
        await self._log.write_parts(name, parts)
        return name, len(parts)

    async def _append_now(self, op: Op) -> None:
        """Append an entry within a step, without queueing it behind the waiting calls."""
        while True:
            entry = LogEntry(uuid4().hex, await self._now(), log_entries.RULES, self._replica.last, (op,))
            if await self._log.append(self._replica.position + 1, as_text(entry), entry.id):
                await self._follower.check_won(self._replica.position + 1)
                self._replica.apply(entry)
                return
            await self._follower.catch_up()

    # --- work next to the calls

    def _tidy_up(self) -> None:
        behind = self._replica.position - self._log.base.position
        if behind >= max(self._every, len(self._replica.copy.tables.jobs)) and not self._tidying:
            self._tidying = True
            self._start(self._rebase)

    async def _rebase(self) -> None:
        try:
            await compaction.rebase(self._log, self._replica, self._ask, self._piece)
        finally:
            self._tidying = False

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        task = started(quietly(work))  # a plain task that is cancelled before it begins would not reset its flag
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


def taken(answer: Any) -> int:
    """The number of jobs in an answer of a claim."""
    claimed = answer[1] if isinstance(answer, tuple) and len(answer) == 2 else answer
    return len(claimed.records) if isinstance(claimed, Claimed) else 0
