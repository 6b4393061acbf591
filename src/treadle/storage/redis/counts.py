"""Reads the kept counts, the sizes of sets that the scripts maintain, workers, limits and their use. No row is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import Presence
from treadle.core.query_model import Glance, Kind, QueueGlance, Stats
from treadle.storage import queries
from treadle.storage.admission import counted, keeps_slots, rule_for
from treadle.storage.limit_facts import Fact, gathered
from treadle.storage.redis.reading import STEP, Reader
from treadle.storage.redis.rows import decode_presence, decode_rule, moment_of
from treadle.storage.row_rules import first_moment

Words: TypeAlias = Sequence[bytes]
Group: TypeAlias = tuple[str, str, Kind]


async def kept(db: Reader) -> Sizes:
    """Read the kept counts, the first queued jobs, workers and limits with one script, or up to three where limits
    block jobs or have a rate."""
    *numbers, counts = await db.call("glance", "stats")
    groups = {group_of(counts[k]): int(counts[k + 1]) for k in range(0, len(counts), 2)}
    return replace(await _sizes_and_uses(db, *numbers), groups=groups)


def group_of(field: bytes) -> Group:
    """The queue, task and kind of a kept count: "<kind>:<queue>", U+0000 and the task."""
    names, _, task = field.partition(b"\0")
    kind, _, queue = names.partition(b":")
    return queue.decode(), task.decode(), cast("Kind", kind.decode())


def stats_of(parts: Sequence[Sizes]) -> Stats:
    """The `stats` of all shards, from what `kept` has read of each."""
    groups, firsts = Counter[Group](), dict[str, float]()
    for part in parts:
        groups.update(part.groups)
        for queue, position in part.firsts.items():
            firsts[queue] = min(position, firsts.get(queue, position))
    counts = queries.kept_counts(groups, firsts, parts[0].now)
    return Stats(counts=counts, workers=parts[0].workers, limits=used([part.limits for part in parts]))


def glance_of(parts: Sequence[Sizes], most: int) -> Glance:
    """The `glance` of all shards, from what `glance` has read of each."""
    names, capped = queries.merged_glances([(part.queues, ()) for part in parts], most)
    limits = used([part.limits for part in parts])
    return Glance(at=parts[0].now, queues=names, workers=parts[0].workers, limits=limits, capped=capped)


def _workers(entries: Words, now: float) -> tuple[Presence, ...]:
    return queries.workers((decode_presence(presence) for presence in entries[1::2]), now)


class Sizes(Struct, frozen=True):
    """The numbers of one storage, read without its rows.

    kinds   (kind, queue) -> jobs; kind: queued, running, scheduled, blocked, waiting or failed
    firsts  queue -> the position of its first queued job
    groups  (queue, task, kind) -> the kept count; only `kept` reads these
    """

    now: float
    kinds: dict[tuple[str, str], int]
    firsts: dict[str, float]
    workers: tuple[Presence, ...] = ()
    limits: tuple[LimitUse, ...] = ()
    groups: dict[Group, int] = {}

    @property
    def queues(self) -> tuple[QueueGlance, ...]:
        """The queues that have such a job, by name."""
        numbers_by_queue = dict[str, dict[str, Any]]()
        for (kind, queue), jobs in self.kinds.items():
            numbers_by_queue.setdefault(queue, {})[kind] = jobs
        for queue, position in self.firsts.items():
            numbers_by_queue[queue]["oldest"] = max(0.0, self.now - position)
        return tuple(QueueGlance(name=name, **numbers) for name, numbers in sorted(numbers_by_queue.items()))


async def glance(db: Reader) -> Sizes:
    """Read all numbers with one script, or up to three where limits block jobs or have a rate."""
    return await _sizes_and_uses(db, *await db.call("glance", "all"))


async def _sizes_and_uses(db: Reader, now: bytes, counts: Words, rest: Words, uses: Sequence[Words]) -> Sizes:
    sizes = await _sizes(db, now, counts, rest)
    return replace(sizes, workers=_workers(uses[-1], sizes.now), limits=await _limits(db, *uses[:-1]))


async def sizes(db: Reader, names: Sequence[str] = ()) -> Sizes:
    """Read the numbers of jobs by kind and queue. `names`: only these, as "<kind>:<queue>"; default: all."""
    if not names:
        return await _sizes(db, *await db.call("glance", "counts"))
    return await _sizes(db, *await db.call("glance", "names", *names))


async def _sizes(db: Reader, now: bytes, counts: Words, rest: Words) -> Sizes:
    kinds, firsts = dict[tuple[str, str], int](), dict[str, float]()
    moment = moment_of(now)
    while True:
        for n in range(0, len(counts), 4):
            kind, queue, jobs, first = counts[n : n + 4]
            kinds[kind.decode(), queue.decode()] = int(jobs)
            if first:
                firsts[queue.decode()] = float(first)
        if not rest:
            return Sizes(moment, kinds, firsts)
        _, counts, rest = await db.call("glance", "names", *rest)


async def limit_facts(db: Reader) -> dict[str, LimitFacts]:
    """The stored facts of each limit."""
    return _facts(await db.read("HGETALL", "facts"))


def _facts(entries: Words) -> dict[str, LimitFacts]:
    facts = list[Fact]()
    for k in range(0, len(entries), 2):
        kind, _, name = entries[k].decode().partition(":")
        value = entries[k + 1]
        is_rule = kind in ("set", "declared")
        until = float(value) if value and not is_rule else None
        facts.append((name, kind, decode_rule(value) if is_rule else None, until))
    return gathered(facts)


async def limits(db: Reader, use: bool = True) -> tuple[LimitUse, ...]:
    if not use:
        return queries.limit_uses(await limit_facts(db))
    return (await glance(db)).limits


async def _limits(
    db: Reader, stored: Words, live: Words, begun: Words, asides: Words, rated: Words
) -> tuple[LimitUse, ...]:
    facts = _facts(stored)
    rules = queries.acting_rules(facts)
    slots, ever = _numbers(live), _numbers(begun)
    used = {key: ever[key] if keeps_slots(rules, key) else slots.get(key, 0) for key in ever}
    blocked = dict[str, int]()
    for start in range(0, len(asides), STEP):
        batch = asides[start : start + STEP]
        jobs_blocked = await db.call("blocked", *batch)
        blocked |= {limit.decode(): jobs for limit, jobs in zip(batch, jobs_blocked, strict=True)}
    return queries.limit_uses(facts, used, blocked, await _rates(db, rules, rated))


async def _rates(db: Reader, rules: dict[str, Limit], keys: Words) -> dict[str, queries.RateUse]:
    rated = sorted(key for key in set(keys) if (rule := rule_for(rules, key.decode())) is not None and rule.rate)
    rates = dict[str, queries.RateUse]()
    for start in range(0, len(rated), STEP):
        answer = await db.call("read_rates", *rated[start : start + STEP])
        for n in range(0, len(answer), 4):
            key = answer[n].decode()
            rule = rule_for(rules, key)
            if rule is not None:
                next_start, opens = (float(answer[n + k]) if answer[n + k] else None for k in (2, 3))
                rates[key] = counted(rule, float(answer[n + 1])), next_start, opens
    return rates


def _numbers(pairs: Words) -> dict[str, int]:
    return {pairs[n].decode(): int(pairs[n + 1]) for n in range(0, len(pairs), 2)}


def used(shards: Sequence[Sequence[LimitUse]]) -> tuple[LimitUse, ...]:
    """Add up the use of each limit in several shards."""
    totals: dict[str, LimitUse] = {}
    for limit_use in (use for uses in shards for use in uses):
        old = totals.get(limit_use.key)
        if old is not None:
            limit_use = replace(
                limit_use,
                used=old.used + limit_use.used,
                blocked=old.blocked + limit_use.blocked,
                starts=old.starts + limit_use.starts,
                next_start=first_moment(old.next_start, limit_use.next_start),
                opens=first_moment(old.opens, limit_use.opens),
            )
        totals[limit_use.key] = limit_use
    return tuple(totals[key] for key in sorted(totals))
