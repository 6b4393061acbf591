"""Reads the facts of an explanation: only those that the state of the job makes relevant, each at a bounded cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.admin.audit import TASK, AuditEntry, entry_of
from treadle.admin.explain import explain
from treadle.admin.explain.cleanup import other_id
from treadle.admin.explain.facts import Facts, is_due, limits_within, made_by
from treadle.admin.explain.locked import locked
from treadle.admin.job_filters import id_of
from treadle.core import ids
from treadle.core.command_lines import command
from treadle.core.errors import UnknownJob
from treadle.core.model import SHED, Record, State
from treadle.core.query_model import Glance, Query
from treadle.policy.pauses import is_paused
from treadle.producer import Outboxes
from treadle.storage import Usage, mark_of, slots_fit
from treadle.storage.contract import Storage
from treadle.storage.row_rules import costs, order
from treadle.tasks.when import HasId

READINGS: Final = 5  # reads of a job and its surroundings, if the job changes during each of them
RUNS_READ: Final = 1_000  # running jobs among which the parent of a job and the holders of slots are looked for
RIVALS_READ: Final = 200  # blocked or queued jobs of its queue that are compared with a job


class Reader:
    """Reads the facts of one job for one caller.

    visible   the row if the caller may see it, else None
    position  the number of queued jobs ahead of a job
    reach     the queues of the caller; (): all
    """

    def __init__(
        self,
        storage: Storage,
        visible: Callable[[Record | None], Record | None],
        position: Callable[[Record], Awaitable[int | None]],
        reach: tuple[str, ...],
        now: float,
    ) -> None:
        self._storage, self._visible, self._position = storage, visible, position
        self._reach, self._now = reach, now

    async def facts_of(self, get: Callable[[], Awaitable[Record]]) -> Facts:
        """A job and its surroundings. They are read again if the job changes meanwhile: its former state would be
        explained by causes of the next one."""
        row = await get()
        for _ in range(READINGS):
            facts = await self._facts(row)
            before, row = row, await get()
            if _same(before, row):
                break
        return facts

    async def _facts(self, row: Record) -> Facts:
        mark = await mark_of(self._storage)
        seen = limits_within(await self._seen(row), self._reach)
        facts = Facts(row=row, glance=seen, now=seen.at, mark=mark)
        if mark is not None and mark.role in ("gone", "closing"):
            return facts
        if (other := other_id(facts)) is not None:
            facts = replace(facts, other=self._visible((await self._storage.get([other]))[0]))
        if row.state is State.WAITING:
            ups = await self._visible_rows(row.after)
            upstreams = dict(zip(row.after, ups, strict=False))
            lock = await locked(self._visible_rows, row, ups)
            return replace(facts, upstreams=upstreams, holder=await self._holder(row, ups), lock=lock)
        facts = replace(facts, paused=await self._paused(row, seen))
        if row.state is not State.READY:
            return facts
        runs = await self._running(row) if _needs_runs(row, seen.at) else ()
        ahead = await self._position(row) if row.queue_position is not None else None
        return replace(
            facts,
            ahead=ahead,
            first=await self._first(row) if ahead else None,
            running=runs,
            rivals=await self._rivals(row, seen),
            parent=made_by(runs, row.job.id) if ids.stem(row.job.id) is not None else None,
        )

    async def _visible_rows(self, ids: Sequence[str]) -> list[Record | None]:
        return [self._visible(row) for row in await self._storage.get(ids)]

    async def _seen(self, row: Record) -> Glance:
        """Queues, workers and limits if the sentence needs them, and the storage's time: it decides what is due, and
        the clock of this process may differ."""
        if row.reason == SHED:
            return Glance(at=self._now, limits=await self._storage.limits(use=False))
        cancelled = row.state is State.CANCELLED and row.worker is not None
        return await self._storage.glance() if cancelled or not row.state.final else Glance(at=self._now)

    async def _paused(self, row: Record, seen: Glance) -> Mapping[str, tuple[float, str]]:
        """Which operator has paused its limits. A caller that may not see every queue may not read the audit log."""
        if self._reach or self._storage.capabilities.queues:
            return {}
        if is_paused(row):
            return await _paused_job(self._storage, row.id)
        own = {name for key, _ in costs(row.job) for name in (key, key.partition(":")[0])}
        shut = {use.rule.name for use in seen.limits if any(pause.why == "paused" for pause in use.pauses)}
        return await paused_by(self._storage, shut & own)

    def _queue(self, row: Record) -> str | None:
        """The queue that a query must name for a caller that may not see all of them."""
        return row.job.queue if self._reach or self._storage.capabilities.queues else None

    async def _running(self, row: Record) -> tuple[Record, ...]:
        query = Query(order="started", queue=self._queue(row), limit=RUNS_READ, scan=RUNS_READ)
        return tuple(run for run in (await self._storage.find(query)).records if self._visible(run))

    async def _first(self, row: Record) -> Record | None:
        page = await self._storage.find(Query(order="queue", queue=row.job.queue, limit=1))
        return next(iter(page.records), None)

    async def _rivals(self, row: Record, seen: Glance) -> tuple[Record, ...]:
        """The jobs ahead of a blocked job that need room in a limit which has some: those that are queued again, then
        those that are blocked."""
        key = row.blocked_on
        use = next((use for use in seen.limits if use.key == key), None)
        if key is None or row.queue_position is not None or use is None or use.next_start is not None:
            return ()
        cost = dict(costs(row.job)).get(key, 1)
        if not slots_fit(use.rule, Usage(used=use.used), cost):
            return ()
        back = Query(order="queue", queue=row.job.queue, limit=RIVALS_READ, scan=RIVALS_READ)
        scan = self._storage.capabilities.scan
        held = Query(order="oldest", queue=row.job.queue, ready="blocked", limit=RIVALS_READ, scan=scan)
        rows = [other for query in (back, held) for other in (await self._storage.find(query)).records]
        ahead = [other for other in rows if other.blocked_on == key and order(other) < order(row)]
        return tuple(sorted(ahead, key=lambda other: (other.queue_position is None, order(other))))

    async def _holder(self, row: Record, ups: list[Record | None]) -> Record | None:
        """The job from which a waiting job has taken its key, if it waits for that one, too."""
        named = sum(up is None or not up.state.final for up in ups)
        if row.job.key is None or row.started_at is not None or (named and row.pending <= named):
            return None
        key = row.job.key
        for query in (
            Query(order="started", queue=self._queue(row), limit=RUNS_READ, scan=RUNS_READ),
            Query(state=(State.WAITING, State.READY), queue=self._queue(row), limit=RIVALS_READ, scan=RUNS_READ),
        ):
            for other in (await self._storage.find(query)).records:
                if other.job.key == key and other.job.id != row.job.id and self._visible(other):
                    return other
        return None


def _needs_runs(row: Record, now: float) -> bool:
    """Whether the sentence may name running jobs."""
    return row.state is State.READY and (
        row.queue_position is not None or row.blocked_on is not None or is_due(row, now)
    )


def _same(one: Record, other: Record) -> bool:
    """Whether nothing has happened to a job that a sentence about it depends on."""
    where = (one.queue_position, one.blocked_on, one.pending) == (other.queue_position, other.blocked_on, other.pending)
    return one.version == other.version and where


ENTRIES: Final = 500  # newest entries of the audit log that are read


async def paused_by(storage: Storage, names: Collection[str]) -> Mapping[str, tuple[float, str]]:
    """When each of these limits was paused last, and by whom. It leaves out a limit whose last recorded act is not a
    pause: then a program has paused it, or the entry is older than the entries that are read."""
    if not names:
        return {}
    pauses: dict[str, tuple[float, str] | None] = {}
    page = await storage.find(Query(task=TASK, limit=ENTRIES, scan=storage.capabilities.scan))
    for entry in map(entry_of, page.records):
        kind, _, verb = entry.act.partition(".")
        name = f"queue:{entry.target}" if kind == "queue" else entry.target
        if kind in ("queue", "limit") and name in names and name not in pauses and not entry.error:
            pauses[name] = _pause(entry, verb)
    return {name: pause for name, pause in pauses.items() if pause is not None}


async def _paused_job(storage: Storage, id: str) -> Mapping[str, tuple[float, str]]:
    """When the job was paused last, and by whom, by its id."""
    page = await storage.find(Query(task=TASK, limit=ENTRIES, scan=storage.capabilities.scan))
    for entry in map(entry_of, page.records):
        if entry.act in ("job.pause", "jobs.pause") and id in (entry.target, *entry.ids) and not entry.error:
            return {id: (entry.at, entry.by)}
    return {}


def _pause(entry: AuditEntry, verb: str) -> tuple[float, str] | None:
    return (entry.at, entry.by) if verb == "pause" else None


async def explained(facts: Callable[[HasId | str], Awaitable[Facts]], job: HasId | str, outbox: Outboxes | None) -> str:
    """The sentence about a job. Raises UnknownJob if it is not in the storage and not in the outbox."""
    try:
        return explain(await facts(job))
    except UnknownJob:
        entry = None if outbox is None else await outbox.find(id_of(job))
        if entry is None:
            return explain(await facts(job))  # it may have been delivered between the two reads
    if entry.became is not None:
        return f"The storage returned job {entry.became} for it. {explain(await facts(entry.became))}"
    failed = f" (failed deliveries: {entry.tries:,}; the last error: {entry.error})" if entry.error else ""
    relays, lists = (
        command("storage", "relay", "MODULE:APP"),
        command("storage", "relay", "list", options=["--app", "MODULE:APP"]),
    )
    delivered = f"A worker or {relays} delivers it; {lists} shows such jobs"
    return f"It is in the outbox and not delivered to the storage yet{failed}. {delivered}."
