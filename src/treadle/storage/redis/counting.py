"""Counts jobs, and reads workers, limits and their use; changes nothing.

The counts of a glance are the sizes of sets that the scripts maintain: no row is read. For `stats` the server counts
the rows, 1,000 at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.limit_model import Limit, LimitFacts, LimitUse
from treadle.core.model import Presence, State
from treadle.core.query_model import Count, QueueGlance
from treadle.storage import queries
from treadle.storage.admission import counted, rule_for
from treadle.storage.limit_facts import Fact, gathered
from treadle.storage.redis.reading import STEP, Reader
from treadle.storage.redis.rows import STATES, decode_presence, decode_rule, moment_of

TALLY: Final = 1_000  # rows counted in one trip: 2-3 ms of the server's time

Words: TypeAlias = Sequence[bytes]


async def counts(db: Reader, now: float) -> tuple[Count, ...]:
    """Counts by queue, task and state. The server counts all rows, in steps."""
    found: dict[tuple[str, str, State], tuple[int, int, int, float]] = {}
    at, id = b"", b""
    while True:
        at, id, *told = await db.call("tally", TALLY, at, id)
        for n in range(0, len(told), 7):
            queue, task, state, jobs, line, blocked, first = told[n : n + 7]
            key = queue.decode(), task.decode(), STATES[state]
            before = found.get(key, (0, 0, 0, now))
            position = float(first) if first else now
            found[key] = before[0] + jobs, before[1] + line, before[2] + blocked, min(before[3], position)
        if not at:
            break
    return tuple(
        Count(
            queue=key[0],
            task=key[1],
            state=key[2],
            jobs=jobs,
            queued=line,
            blocked=blocked,
            oldest=max(0.0, now - first) if line else None,
        )
        for key, (jobs, line, blocked, first) in sorted(found.items())
    )


async def workers(db: Reader, now: float) -> tuple[Presence, ...]:
    return _workers(await db.read("HGETALL", "workers"), now)


def _workers(words: Words, now: float) -> tuple[Presence, ...]:
    return queries.workers((decode_presence(each) for each in words[1::2]), now)


class Sizes(Struct, frozen=True):
    """The numbers of one storage, found without reading rows.

    kinds   (kind, queue) -> jobs; kind: queued, running, scheduled, blocked, waiting or failed
    firsts  queue -> the position of its first queued job
    """

    now: float
    kinds: dict[tuple[str, str], int]
    firsts: dict[str, float]
    workers: tuple[Presence, ...] = ()
    limits: tuple[LimitUse, ...] = ()

    @property
    def queues(self) -> tuple[QueueGlance, ...]:
        """The queues that have such a job, by name."""
        found = dict[str, dict[str, Any]]()
        for (kind, queue), jobs in self.kinds.items():
            found.setdefault(queue, {})[kind] = jobs
        for queue, position in self.firsts.items():
            found[queue]["oldest"] = max(0.0, self.now - position)
        return tuple(QueueGlance(name=name, **numbers) for name, numbers in sorted(found.items()))


async def glance(db: Reader) -> Sizes:
    """All numbers, in one script; with limits that block jobs or have a rate, in two or three."""
    now, counts, rest, facts, live, begun, asides, rated, seen = await db.call("glance", "all")
    sizes = await _sizes(db, now, counts, rest)
    return replace(
        sizes,
        workers=_workers(seen, sizes.now),
        limits=await _limits(db, _facts(facts), live, begun, asides, rated),
    )


async def sizes(db: Reader, names: Sequence[str] = ()) -> Sizes:
    """The numbers of jobs by kind and queue. `names`: only of these, "<kind>:<queue>"; default: all."""
    if not names:
        return await _sizes(db, *await db.call("glance", "counts"))
    return await _sizes(db, *await db.call("glance", "names", *names))


async def _sizes(db: Reader, now: bytes, counts: Words, rest: Words) -> Sizes:
    kinds, firsts = dict[tuple[str, str], int](), dict[str, float]()
    at = moment_of(now)
    while True:
        for n in range(0, len(counts), 4):
            kind, queue, jobs, first = counts[n : n + 4]
            kinds[kind.decode(), queue.decode()] = int(jobs)
            if first:
                firsts[queue.decode()] = float(first)
        if not rest:
            return Sizes(at, kinds, firsts)
        _, counts, rest = await db.call("glance", "names", *rest)


async def limit_facts(db: Reader) -> dict[str, LimitFacts]:
    """The stored facts of each limit."""
    return _facts(await db.read("HGETALL", "facts"))


def _facts(words: Words) -> dict[str, LimitFacts]:
    found = list[Fact]()
    for at in range(0, len(words), 2):
        kind, _, name = words[at].decode().partition(":")
        value = words[at + 1]
        is_rule = kind in ("set", "declared")
        until = float(value) if value and not is_rule else None
        found.append((name, kind, decode_rule(value) if is_rule else None, until))
    return gathered(found)


async def limits(db: Reader, use: bool = True) -> tuple[LimitUse, ...]:
    if not use:
        return queries.limit_uses(await limit_facts(db))
    return (await glance(db)).limits


async def _limits(
    db: Reader, facts: dict[str, LimitFacts], live: Words, begun: Words, asides: Words, rated: Words
) -> tuple[LimitUse, ...]:
    rules = queries.acting_rules(facts)
    slots, ever = _numbers(live), _numbers(begun)
    used = {key: ever[key] if _keeps(rules, key) else slots.get(key, 0) for key in ever}
    blocked = dict[str, int]()
    for at in range(0, len(asides), STEP):
        some = asides[at : at + STEP]
        told = await db.call("blocked", *some)
        blocked |= {limit.decode(): jobs for limit, jobs in zip(some, told, strict=True)}
    return queries.limit_uses(facts, used, blocked, await _rates(db, rules, rated))


async def _rates(db: Reader, rules: dict[str, Limit], keys: Words) -> dict[str, queries.RateUse]:
    rated = sorted(key for key in set(keys) if (rule := rule_for(rules, key.decode())) is not None and rule.rate)
    found = dict[str, queries.RateUse]()
    for at in range(0, len(rated), STEP):
        told = await db.call("rates", *rated[at : at + STEP])
        for n in range(0, len(told), 3):
            key = told[n].decode()
            rule = rule_for(rules, key)
            if rule is not None:
                opens = float(told[n + 2]) if told[n + 2] else None
                found[key] = counted(rule, float(told[n + 1])), opens
    return found


def _keeps(rules: dict[str, Limit], key: str) -> bool:
    rule = rule_for(rules, key)
    return rule is not None and rule.hold == "ended"


def _numbers(pairs: Words) -> dict[str, int]:
    return {pairs[n].decode(): int(pairs[n + 1]) for n in range(0, len(pairs), 2)}


def summed(told: Sequence[Sequence[Count]]) -> tuple[Count, ...]:
    """The sums of the counts of several shards."""
    found: dict[tuple[str, str, str], Count] = {}
    for each in (count for counts in told for count in counts):
        key = each.queue, each.task, each.state.value
        old = found.get(key)
        if old is not None:
            waits = [wait for wait in (old.oldest, each.oldest) if wait is not None]
            each = replace(
                each,
                jobs=old.jobs + each.jobs,
                queued=old.queued + each.queued,
                blocked=old.blocked + each.blocked,
                oldest=max(waits) if waits else None,
            )
        found[key] = each
    return tuple(sorted(found.values(), key=lambda each: (each.queue, each.task, each.state)))


def used(told: Sequence[Sequence[LimitUse]]) -> tuple[LimitUse, ...]:
    """The sums of the limit use of several shards."""
    found: dict[str, LimitUse] = {}
    for each in (use for uses in told for use in uses):
        old = found.get(each.key)
        if old is not None:
            opens = [at for at in (old.next_start, each.next_start) if at is not None]
            each = replace(
                each,
                used=old.used + each.used,
                blocked=old.blocked + each.blocked,
                starts=old.starts + each.starts,
                next_start=min(opens) if opens else None,
            )
        found[each.key] = each
    return tuple(found[key] for key in sorted(found))
