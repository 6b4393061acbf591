"""Reads a bounded copy of what decides when a job starts: queued jobs, running jobs, workers, limits and run times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.claim_ids import worker_name
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.errors import TreadleError
from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import NewJob, Presence, Record, State
from treadle.core.placement_words import needs_of
from treadle.core.query_model import Glance, MetricsRow, Query
from treadle.policy import misfits
from treadle.storage import Carried, Chunk, Edge, Rate
from treadle.storage.contract import Storage
from treadle.storage.row_rules import costs

AHEAD: Final = 1_500  # queued jobs of its own queue that are simulated
OTHERS: Final = 300  # queued jobs of each other queue of the same workers
QUEUES: Final = 8  # queues that are read
BLOCKED: Final = 500  # blocked jobs of each queue
DUE: Final = 200  # scheduled jobs of each queue
RUNNING: Final = 1_000
UPSTREAMS: Final = 200  # jobs that it waits for, directly or through others
PAGE: Final = 500  # rows in one read: their payloads are dropped before the next
BYTES: Final = 16 * 2**20  # bytes of payloads that are read at most
MINUTES: Final = 5  # minutes over which arrivals are counted
COUNTED: Final = 2_000  # with more arrivals in a minute, only the last minute is counted
RECENT: Final = 100  # new jobs that show what arrives
METRICS: Final = (
    (900.0, 300),
    (7_200.0, 300),
    (3 * 86_400.0, 500),
)  # (s back, rows at most), until the tasks are known


class Snapshot(Struct, frozen=True, kw_only=True):
    """A copy of a part of a storage.

    rows      jobs that have not ended, without payloads, results and stored steps
    glance    counts, workers and limits
    metrics   rows of metrics
    arriving  jobs a second that entered each queue in the last minutes, as a median
    recent    new jobs, as examples of what arrives
    left_out  queued jobs of the main queue, before the job, that were not read
    partial   running jobs of other queues were not read
    """

    now: float
    glance: Glance
    rows: tuple[Record, ...] = ()
    metrics: tuple[MetricsRow, ...] = ()
    arriving: dict[str, float] = {}
    recent: tuple[Record, ...] = ()
    left_out: int = 0
    partial: bool = False

    @property
    def workers(self) -> tuple[Presence, ...]:
        return self.glance.workers

    @property
    def limits(self) -> tuple[LimitUse, ...]:
        return self.glance.limits


class Copying:
    """Reads one snapshot. `reach`: the queues of the caller; (): all."""

    def __init__(self, storage: Storage, reach: Sequence[str]) -> None:
        self._storage, self._reach = storage, tuple(reach)
        self._bound = bool(storage.capabilities.queues)
        self._rows: dict[str, Record] = {}
        self._bytes = BYTES

    async def of_job(self, row: Record, glance: Glance, ahead: int | None) -> Snapshot:
        """Read all that decides when this job starts."""
        self._rows[row.job.id] = _light(row)
        queues = self._queues(row.job.queue, glance)
        before = Query(order="queue", queue=row.job.queue, ahead_of=row.job.id)
        if row.queue_position is None:  # it will be behind the jobs queued now, unless its priority is higher
            before = Query(order="queue", queue=row.job.queue)
        read = await self._read(before, AHEAD)
        needs = needs_of(glance.workers, row.job.task)
        if needs is not None and needs.uses and read < AHEAD:  # jobs behind it start first while it has no room
            await self._read(Query(order="queue", queue=row.job.queue), read + OTHERS)
        await self._upstreams(row)
        missing = max(0, (ahead if row.queue_position is not None else _queued(glance, row.job.queue)) or 0) - read
        return await self._whole(row.job.queue, queues, glance, max(0, missing))

    async def of_queue(self, queue: str, glance: Glance) -> Snapshot:
        read = await self._read(Query(order="queue", queue=queue), AHEAD)
        return await self._whole(queue, self._queues(queue, glance), glance, max(0, _queued(glance, queue) - read))

    async def _whole(self, main: str, queues: list[str], glance: Glance, left_out: int) -> Snapshot:
        scan = self._storage.capabilities.scan
        await self._read(Query(order="started", queue=main if self._bound else None, scan=RUNNING), RUNNING)
        for queue in queues:
            if queue != main:
                await self._read(Query(order="queue", queue=queue), OTHERS)
            await self._read(Query(order="oldest", queue=queue, ready="blocked", scan=scan), BLOCKED)
            await self._read(Query(order="due", queue=queue, ready="scheduled", scan=scan), DUE)
        arriving = {queue: await self._arriving(queue, glance.at) for queue in queues}
        recent = list[Record]()
        for queue in [queue for queue, rate in arriving.items() if rate]:
            recent += (await self._storage.find(Query(queue=queue, limit=RECENT // len(queues) or 1))).records
        return Snapshot(
            now=glance.at,
            glance=glance,
            rows=tuple(self._rows.values()),
            metrics=await self._metrics(glance.at),
            arriving=arriving,
            recent=tuple(map(_light, recent)),
            left_out=left_out,
            partial=self._bound or bool(self._reach),
        )

    def _queues(self, main: str, glance: Glance) -> list[str]:
        """Its queue, and those that its workers serve too, as far as the caller may see them."""
        serving = [worker for worker in glance.workers if main in worker.queues]
        names = dict.fromkeys([main, *(queue for worker in serving for queue in worker.queues)])
        busy = {queue.name for queue in glance.queues}
        return [
            queue
            for queue in names
            if queue == main
            or (
                queue in busy
                and queue != SYSTEM_QUEUE
                and (not self._reach or queue in self._reach)
                and not self._bound
            )
        ][:QUEUES]

    async def _read(self, query: Query, most: int) -> int:
        """Read the rows of a query, up to `most`. Returns how many it has."""
        read, cursor = 0, None
        while read < most and self._bytes > 0:
            page = await self._storage.find(replace(query, cursor=cursor, limit=min(PAGE, most - read)))
            self._keep(page.records)
            read, cursor = read + len(page.records), page.cursor
            if cursor is None:
                break
        return read

    def _keep(self, rows: Iterable[Record]) -> None:
        for row in rows:
            self._bytes -= len(row.job.payload)
            if not row.state.final and (not self._reach or row.job.queue in self._reach):
                self._rows.setdefault(row.job.id, _light(row))

    async def _upstreams(self, row: Record) -> None:
        look, seen = list(row.after), set[str]()
        while look and len(seen) < UPSTREAMS:
            ids = [id for id in dict.fromkeys(look) if id not in seen][:PAGE]
            seen.update(ids)
            ups = [up for up in await self._storage.get(ids) if up is not None] if ids else []
            self._keep(ups)
            look = [id for up in ups if not up.state.final for id in up.after]

    async def _arriving(self, queue: str, now: float) -> float:
        """Jobs a second: the median of the last minutes, so that one large enqueue does not distort the estimate."""
        counts = list[int]()
        for minute in range(MINUTES):
            end = now - 60 * minute
            query = Query(queue=queue, since=end - 60, before=end, limit=0, count=True, scan=MINUTES * COUNTED)
            counts.append((await self._storage.find(query)).total or 0)
            if counts[0] >= COUNTED:  # earlier minutes are beyond the bound of the query
                return counts[0] / 60
            if counts.count(0) > MINUTES // 2:
                return 0.0
        return median(counts) / 60

    async def _metrics(self, now: float) -> tuple[MetricsRow, ...]:
        """The newest rows, of as much time as it takes to have some."""
        rows: list[MetricsRow] = []
        for back, most in METRICS:
            try:
                rows = (await self._storage.read_metrics(now - back, now + 60))[-most:]
            except TreadleError:  # a token that is bound to queues may not read them
                return ()
            if rows:
                break
        return tuple(rows)


def _queued(glance: Glance, queue: str) -> int:
    return next((counts.queued for counts in glance.queues if counts.name == queue), 0)


def _light(row: Record) -> Record:
    """The row without what only its run needs."""
    job = replace(row.job, payload="[]", headers=(), labels=(), retry=None, reach=())
    ends = tuple(pair for pair in row.checkpoints if pair[0] == misfits.UNTIL)
    return replace(row, job=job, result=None, value=None, error=None, checkpoints=ends, note=None)


UNSEEN: Final = "treadle.unseen"  # queue and task of stand-ins for jobs that hold slots and were not read


def chunk_of(copy: Snapshot, crew: Collection[str], at_once: str = "") -> Chunk:
    """The chunk to load. `crew`: the workers with a recent heartbeat; `at_once`: a scheduled job that is queued now."""
    rows = {row.job.id: _row(row, copy.now, crew, at_once) for row in copy.rows}
    rows |= {row.job.id: row for row in _unseen(copy)}
    jobs = tuple(Carried(record=row, edges=tuple(_edges(row, rows))) for row in rows.values())
    uses = [use for use in copy.limits if use.key == use.rule.name]
    return Chunk(
        jobs=jobs,
        rules=tuple(LimitFacts(name=use.key, set=_behind(use), pauses=use.pauses) for use in uses),
        rates=tuple(rate for use in copy.limits if (rate := _rate(use, copy.now)) is not None),
    )


def _row(row: Record, now: float, crew: Collection[str], at_once: str) -> Record:
    """A running job of a live worker keeps its lease; a dead worker's job is claimed again when its lease is over."""
    if row.state is State.RUNNING and worker_name(row.worker) in crew:
        return replace(row, due_at=None)
    if row.job.id == at_once and row.state is State.READY and row.queue_position is None and row.blocked_on is None:
        return replace(row, due_at=now)
    return row


def _edges(row: Record, rows: dict[str, Record]) -> Iterator[Edge]:
    if row.state is State.WAITING:
        open_ = [up for up in dict.fromkeys(row.after) if up in rows]
        for up in open_:
            yield Edge(up, row.version, True)


def _behind(use: LimitUse) -> Limit | None:
    """The rule that acts when nothing pauses the limit."""
    rule = use.unpaused
    limit = None if rule is None else refusing(rule)
    return None if limit is None or limit.empty else limit


def refusing(rule: Limit) -> Limit:
    """The rule in a virtual run, which sheds no job: it asks when jobs start, not whether."""
    return rule if rule.when_full == "refuse" else replace(rule, max_waiting=None, when_full="refuse")


def _unseen(copy: Snapshot) -> Iterator[Record]:
    """Stand-ins for the holders of slots that were not read, such as jobs that keep them until they have ended."""
    held: dict[str, int] = {}
    for row in copy.rows:
        if row.started_at is not None and (row.state is State.RUNNING or row.state is State.WAITING):
            for key, cost in costs(row.job):
                held[key] = held.get(key, 0) + cost
    for use in copy.limits:
        missing = use.used - held.get(use.key, 0)
        if missing > 0 and use.key.partition(":")[0] != "queue":
            job = NewJob(id=f"~{use.key}", task=UNSEEN, queue=UNSEEN, limits=((use.key, missing),))
            yield Record(job=job, version=1, state=State.RUNNING, worker="", started_at=copy.now, created_at=copy.now)


def _rate(use: LimitUse, now: float) -> Rate | None:
    """The use of a rate. A storage returns the number of starts that count, and when the next one is possible. This
    function assumes that they are spread evenly in between."""
    rule = use.rule
    if not rule.rate or not use.starts:
        return None
    opens = use.next_start
    if rule.how == "bucket":
        full = rule.burst or rule.rate
        tokens = float(full - use.starts) if opens is None else 1.0 - (opens - now) * rule.rate / rule.per
        return Rate(use.key, tokens=tokens, at=now)
    first = opens - rule.per if opens is not None else now - rule.per * use.starts / (use.starts + 1)
    step = (now - first) / max(1, use.starts)
    return Rate(use.key, starts=tuple((first + step * number, 1) for number in range(use.starts)))
