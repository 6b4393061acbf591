"""Filters, orders and counts rows in plain Python, and makes and reads the cursors of pages.

The cursors are the same in every storage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import Presence, Record, State
from treadle.core.query_model import Count, CountDrift, Kind, Page, Query, QueueGlance
from treadle.storage.admission import rule_for
from treadle.storage.limit_facts import acting
from treadle.storage.row_rules import rank

Key = tuple[Any, ...]
EMPTY: Mapping[str, int] = {}
RateUse = tuple[int, float | None, float | None]
"""The starts that a rate counts, when it lets the next one through (None: now), and when the first blocked job."""
NO_RATES: Mapping[str, RateUse] = {}
UNUSED: RateUse = 0, None, None


def sort_key(row: Record, order: str) -> Key:
    """The unique key by which rows are paged, ascending. "newest" has the key of "oldest"; its pages are reversed."""
    if order == "ended":
        return -(row.ended_at or 0.0), row.job.id
    if order == "queue":
        return row.job.queue, -rank(row.job), row.queue_position, row.job.id
    return moment_of(row, order), row.job.id


def moment_of(row: Record, order: str) -> float | None:
    """The instant by which an order sorts this row; None for "queue"."""
    if order == "queue":
        return None
    if order == "ended":
        return row.ended_at
    if order == "due":
        return row.due_at
    return row.started_at if order == "started" else row.created_at


def cursor_of(row: Record, order: str) -> str:
    """The cursor of a page that ends with this row."""
    if order == "queue":
        return cursor_at((row.job.queue, -rank(row.job), row.queue_position, row.job.id), order)
    return cursor_at((moment_of(row, order), row.job.id), order)


def cursor_at(key: Key, order: str) -> str:
    """The cursor after a row with this key: (instant, id), or (queue, -rank, position, id). Instants keep full
    precision; the id separates rows with the same instant."""
    return msgspec.json.encode((order, *key)).hex()


_Name = Annotated[str, Meta(max_length=defaults.MAX_NAME, pattern=r"\A[^\0]*\Z")]
_Rank = Annotated[int, Meta(ge=-(2**53), le=2**53)]  # integers that every storage compares exactly


def read_cursor(text: str, order: str) -> Key:
    """The parts of a cursor. Raises BadOption if the text is no cursor, or the cursor of another order."""
    try:
        kind, *parts = msgspec.json.decode(bytes.fromhex(text))
        wanted = [_Name, _Rank, float, _Name] if order == "queue" else [float, _Name]
        if kind == order and len(parts) == len(wanted):
            return tuple(msgspec.convert(part, kind) for part, kind in zip(parts, wanted, strict=True))
    except (TypeError, *UNREADABLE):
        pass
    raise BadOption("cursor", f"expected the cursor of a page in order {order!r}, found {text!r:.60}")


def _after(row: Record, order: str, cursor: Key) -> bool:
    if order == "newest":
        return bool(sort_key(row, order) < cursor)
    if order == "ended":
        ended = row.ended_at or 0.0
        return bool(ended < cursor[0] or (ended == cursor[0] and row.job.id > cursor[1]))
    return bool(sort_key(row, order) > cursor)


def matches(row: Record, query: Query) -> bool:
    job = row.job
    return (
        (not query.state or row.state in query.state)
        and (query.task is None or job.task == query.task)
        and (query.queue is None or job.queue == query.queue)
        and (query.root is None or query.root in (job.root, job.id))
        and (query.parent is None or job.parent == query.parent)
        and (query.label is None or query.label in job.labels)
        and (query.before is None or row.created_at < query.before)
        and (query.since is None or row.created_at >= query.since)
        and (not query.ids or job.id in query.ids)
        and in_order(row, query.order)
        and (query.ready is None or ready_kind(row) == query.ready)
    )


def in_order(row: Record, order: str) -> bool:
    """Whether a row is part of this order at all."""
    if order == "ended":
        return row.ended_at is not None
    if order == "queue":
        return row.queue_position is not None
    if order == "due":
        return row.due_at is not None and not row.state.final
    return order != "started" or row.state is State.RUNNING


def ready_kind(row: Record) -> str | None:
    """Whether a ready row is queued, blocked or scheduled; None for a row in another state."""
    if row.state is not State.READY:
        return None
    if row.queue_position is not None:
        return "queued"
    return "blocked" if row.blocked_on is not None else "scheduled"


def find(rows: Sequence[Record], query: Query) -> Page:
    chosen = [row for row in rows if in_order(row, query.order) and (query.scan is not None or matches(row, query))]
    if query.ahead_of is not None:
        own = next((row for row in rows if row.job.id == query.ahead_of and row.queue_position is not None), None)
        mark = sort_key(own, "queue") if own else ()
        chosen = [
            row
            for row in chosen
            if own
            and row.queue_position is not None
            and row.job.queue == own.job.queue
            and sort_key(row, "queue") < mark
        ]
    chosen.sort(key=lambda row: sort_key(row, query.order), reverse=query.order == "newest")
    total = sum(matches(row, query) for row in chosen[: query.scan]) if query.count else None
    if query.cursor is not None:
        cursor = read_cursor(query.cursor, query.order)
        chosen = [row for row in chosen if _after(row, query.order, cursor)]
    return page_of(chosen, query, total) if query.scan is None else scanned_page(chosen, query, query.scan, total)


def page_of(rows: Sequence[Record], query: Query, total: int | None) -> Page:
    """The first page of these rows, which are in order and all match."""
    page = rows[: query.limit]
    more = len(rows) > len(page) and page
    return Page(tuple(page), cursor_of(page[-1], query.order) if more else None, total)


def scanned_page(rows: Sequence[Record], query: Query, scan: int, total: int | None = None) -> Page:
    """The page of a query with `scan`, from rows that are in order and may match or not: at least `scan` + 1 of them,
    or all there are."""
    page: list[Record] = []
    scanned = 0
    for row in rows[: scan if query.limit else 0]:
        scanned += 1
        if matches(row, query):
            page.append(row)
            if len(page) == query.limit:
                break
    if scanned in (0, len(rows)):  # with no rows, there are none or the caller wants only the total
        return Page(tuple(page), None, total, scanned=scanned)
    last = rows[scanned - 1]
    return Page(tuple(page), cursor_of(last, query.order), total, scanned, moment_of(last, query.order))


def kind_of(row: Record) -> Kind:
    """The kind under which this row is counted."""
    kind: Any = ready_kind(row) or str(row.state)
    counted: Kind = kind
    return counted


COUNTED: Final[tuple[Kind, ...]] = get_args(Kind)
_STATE: Final[Mapping[Kind, State]] = {
    kind: State.READY if kind in ("queued", "scheduled", "blocked") else State(kind) for kind in COUNTED
}


def counts(rows: Iterable[Record], now: float) -> tuple[Count, ...]:
    """The counts of these rows. For storages that can read all rows, and to check kept counts."""
    kept: Counter[tuple[str, str, Kind]] = Counter()
    heads: dict[str, float] = {}
    for row in rows:
        kept[row.job.queue, row.job.task, kind_of(row)] += 1
        if row.queue_position is not None:
            heads[row.job.queue] = min(heads.get(row.job.queue, row.queue_position), row.queue_position)
    return kept_counts(kept, heads, now)


def kept_counts(kept: Mapping[tuple[str, str, Kind], int], heads: Mapping[str, float], now: float) -> tuple[Count, ...]:
    """The counts of `stats`, from jobs by (queue, task, kind), and the first queue position of each queue."""
    groups: defaultdict[tuple[str, str, State], Counter[Kind]] = defaultdict(Counter)
    for (queue, task, kind), jobs in kept.items():
        if jobs > 0:
            groups[queue, task, _STATE[kind]][kind] += jobs
    return tuple(
        Count(
            queue=queue,
            task=task,
            state=state,
            jobs=kinds.total(),
            queued=kinds["queued"],
            blocked=kinds["blocked"],
            oldest=max(0.0, now - heads[queue]) if kinds["queued"] and queue in heads else None,
        )
        for (queue, task, state), kinds in sorted(groups.items())
    )


Group = tuple[str, str, Kind, str]
"""Queue, task, kind, and the limit that blocks the jobs: "" for other kinds, and where a storage counts without it."""


def drifts(kept: Mapping[Group, int], counted: Mapping[Group, int]) -> tuple[CountDrift, ...]:
    """The groups whose kept and counted numbers differ; a missing group counts as 0 jobs."""
    differing: list[CountDrift] = []
    for group in sorted({*kept, *counted}, key=lambda group: (*group[:2], COUNTED.index(group[2]), group[3])):
        stored, rows = kept.get(group, 0), counted.get(group, 0)
        if stored != rows:
            queue, task, kind, limit = group
            differing.append(CountDrift(queue=queue, task=task, kind=kind, limit=limit, kept=stored, counted=rows))
    return tuple(differing)


KINDS = ("running", "scheduled", "blocked", "waiting", "failed")
"""The counts of a glance for which one bound holds over all queues."""


def kept_glances(
    kept: Mapping[tuple[str, str, Kind], int], heads: Mapping[str, float], now: float
) -> tuple[QueueGlance, ...]:
    """The queues of a glance with exact counts, which no bound cuts off, from the kept counts by (queue, task, kind)
    and the first queue position of each queue."""
    queues: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (queue, _, kind), jobs in kept.items():
        if jobs > 0:
            queues[queue][kind] += jobs
    return tuple(
        replace(
            QueueGlance(name=name, oldest=max(0.0, now - heads[name]) if kinds["queued"] and name in heads else None),
            **{kind: kinds[kind] for kind in ("queued", *KINDS)},
        )
        for name, kinds in sorted(queues.items())
    )


def merged_glances(
    parts: Iterable[tuple[Sequence[QueueGlance], Sequence[str]]], most: int
) -> tuple[tuple[QueueGlance, ...], tuple[str, ...]]:
    """The glance of several shards as one, from the queues and the capped kinds of each, counted to the same bound."""
    merged: dict[str, QueueGlance] = {}
    capped: set[str] = set()
    for queues, kinds in parts:
        capped.update(kinds)
        for queue in queues:
            known = merged.get(queue.name, QueueGlance(name=queue.name))
            queued, oldest = known.queued + queue.queued, [it for it in (known.oldest, queue.oldest) if it is not None]
            merged[queue.name] = QueueGlance(
                name=queue.name,
                queued=min(queued, most),
                queued_capped=known.queued_capped or queue.queued_capped or queued > most,
                oldest=max(oldest, default=None),
                **{kind: asdict(known)[kind] + asdict(queue)[kind] for kind in KINDS},
            )
    room = dict.fromkeys(KINDS, most)
    queues = []
    for name in sorted(merged):
        counted = asdict(merged[name])
        numbers = {kind: min(counted[kind], room[kind]) for kind in KINDS}
        capped.update(kind for kind in KINDS if numbers[kind] < counted[kind])
        room = {kind: room[kind] - numbers[kind] for kind in KINDS}
        queue = replace(merged[name], **numbers)
        if queue.queued or any(numbers.values()):
            queues.append(queue)
    return tuple(queues), tuple(kind for kind in KINDS if kind in capped)


def limit_uses(
    facts: Mapping[str, LimitFacts],
    used: Mapping[str, int] = EMPTY,
    blocked: Mapping[str, int] = EMPTY,
    rates: Mapping[str, RateUse] = NO_RATES,
) -> tuple[LimitUse, ...]:
    """The use of each rule, and of each partition in use."""
    rules = acting_rules(facts)
    in_use = [
        *(key for key, slots in used.items() if slots),
        *(key for key, jobs in blocked.items() if jobs),
        *(key for key, (starts, *_) in rates.items() if starts),
    ]
    keys = {*rules, *(key for key in in_use if rule_for(rules, key))}
    uses: list[LimitUse] = []
    for key in sorted(keys):
        if (rule := rule_for(rules, key)) is not None:
            known, (starts, next_start, opens) = facts[rule.name], rates.get(key, UNUSED)
            use = LimitUse(
                key=key,
                rule=rule,
                used=used.get(key, 0),
                blocked=blocked.get(key, 0),
                starts=starts,
                next_start=next_start,
                opens=opens if blocked.get(key) else None,
                pauses=known.pauses,
                behind=(known.set or known.declared) if known.pauses else None,
                declared=known.set is None and known.declared is not None,
            )
            uses.append(use)
    return tuple(uses)


def workers(heartbeats: Iterable[tuple[Presence, float]], now: float) -> tuple[Presence, ...]:
    """The workers whose last heartbeat is no older than their `ttl`, from pairs (worker, moment of that heartbeat)."""
    return tuple(replace(worker, age=max(0.0, now - seen)) for worker, seen in heartbeats if seen + worker.ttl >= now)


def acting_rules(facts: Mapping[str, LimitFacts]) -> dict[str, Limit]:
    """The acting rules by name."""
    return {name: rule for name, limit in facts.items() if (rule := acting(limit)) is not None}
