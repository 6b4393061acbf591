"""Makes of a snapshot what the memory storage loads: rows with their edges, rules, and the use of rates and slots."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from msgspec.structs import replace

from treadle.admin.estimate.snapshot import Snapshot
from treadle.core.claim_ids import worker_name
from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import NewJob, Record, State
from treadle.storage import Carried, Chunk, Edge, Rate
from treadle.storage.row_rules import costs

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
    """The use of a rate. A storage tells the number of starts that count and when the next one is possible; in between
    they are taken to be spread evenly."""
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
