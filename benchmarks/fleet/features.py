"""The features that `bench fleet` measures: one row each, with its jobs and the plain jobs it is compared with.

Features are compared by work: each run of a function, and each durable step, counts as one plain job. Users'
transactions and the outbox are other ways to enqueue: `bench within` and `bench outbox` measure them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.fleet.tasks import FAMILY, LARGE, QUEUES, STEPS, Kit
from treadle import Limit, flow

Specs = Sequence[Any]  # the arguments of one call of `app.enqueue`
Make = Callable[[Kit, int, random.Random], Specs]

FAN: Final = 9  # upstreams of a join
MANY: Final = 10_000  # jobs scheduled for later
FAR: Final = 1e6  # seconds: never due here
WIDE: Final = 1_000_000  # a limit that never blocks


@dataclass(frozen=True)
class Feature:
    """A feature in units: `make` creates one unit from its number."""

    make: Make
    says: str
    weight: float = 1.0  # plain jobs that a unit counts as
    ends: int = 1  # counted endings per unit
    against: str = "plain"
    rules: tuple[Limit, ...] = ()
    beside: int = 0  # further stored jobs that do not become due
    ways: tuple[str, ...] = ()  # differences of its workers, see `tasks.WAYS`


def _plain(**options: Any) -> Make:
    return lambda kit, _, __: [kit.job("plain", **options)]


def _each(of: Callable[[int, random.Random], dict[str, Any]]) -> Make:
    """Plain jobs with the options that `of` returns for a number."""
    return lambda kit, number, rng: [kit.job("plain", **of(number, rng))]


def _task(name: str) -> Make:
    return lambda kit, _, __: [kit.job(name)]


def _large(kit: Kit, _: int, __: random.Random) -> Specs:
    return [kit.job("large", LARGE)]


def tenant(rng: random.Random) -> int:
    """One of 300 tenants, some far more frequent than others."""
    return min(rng.randrange(300), rng.randrange(300))


def _signals(kit: Kit, _: int, __: random.Random) -> Specs:
    waiter = kit.job("waiter")
    return [waiter, kit.job("sender", waiter.id)]


def _pair(kit: Kit, _: int, __: random.Random) -> Specs:
    first = kit.job("value")
    return [first, kit.job("plain", after=first)]


def _fan_in(kit: Kit, _: int, __: random.Random) -> Specs:
    ups = [kit.job("child", number) for number in range(FAN)]
    return [*ups, kit.job("joined", after=ups)]


def _chain(kit: Kit, _: int, __: random.Random) -> Specs:
    first = kit.job("child", 1)
    return [first, kit.job("passed", after=first, pass_result=True)]


def _flow(kit: Kit, _: int, __: random.Random) -> Specs:
    return [flow(kit.job("child", 1), kit.job("child", 2)).then(kit.job("plain"))]


def _foreign(kit: Kit, _: int, __: random.Random) -> Specs:
    return [kit.foreign(), kit.job("plain")]


FEATURES: Final[dict[str, Feature]] = {
    "plain": Feature(_plain(), "a function without arguments of its own, no options"),
    # --- order and time
    "delays": Feature(_plain(delay=0.1), "due a tenth of a second after the enqueue"),
    "later": Feature(_plain(), f"plain jobs, with {MANY:,} more that are due in days", beside=MANY),
    "priorities": Feature(_each(lambda _, rng: {"priority": rng.randrange(10)}), "ten priorities"),
    "ageing": Feature(
        _each(lambda _, rng: {"priority": rng.randrange(10), "aging": 60}), "ten priorities that rise with time"
    ),
    "lanes": Feature(_each(lambda _, rng: {"lane": f"l{tenant(rng)}"}), "300 lanes"),
    "queues": Feature(_each(lambda number, _: {"queue": QUEUES[number % len(QUEUES)]}), "six queues"),
    "foreign": Feature(_foreign, "every other job is of a task that no worker has"),
    # --- stored data
    "keys": Feature(_each(lambda number, _: {"key": f"k{number}"}), "a key for each"),
    "labels": Feature(_each(lambda number, _: {"labels": [f"l{number % 100}", "all"]}), "two labels for each"),
    "headers": Feature(_plain(headers={"tenant": "42"}), "a header"),
    "timeouts": Feature(_plain(timeout=60, expires=3_600), "a timeout for each run, and a deadline"),
    "results": Feature(_task("value"), "return 100 characters"),
    "payloads": Feature(_large, "an argument and a result of 4 KB"),
    "offloaded": Feature(_large, "the same, in a folder of their own", against="payloads", ways=("offloaded",)),
    "encrypted": Feature(_large, "the same, encrypted", against="payloads", ways=("encrypted",)),
    "progress": Feature(_task("noted"), "report progress once"),
    # --- runs and endings
    "threads": Feature(_task("thread"), "a function that runs in a thread"),
    "batches": Feature(lambda kit, _, __: [kit.item()], "calls of up to 50 items"),
    "retries": Feature(_task("flaky"), "fail once", weight=2),
    "defers": Feature(_task("deferring"), "a run that defers itself, and the next one", weight=2),
    "resources": Feature(_task("using"), "a resource for each run, enough for all slots", ways=("resources",)),
    "failures": Feature(_task("doomed"), "fail for good"),
    "schedules": Feature(_plain(), "plain jobs, with 20 schedules that run each second", ways=("scheduled",)),
    # --- limits
    "slots": Feature(_plain(limits=["wide"]), "one limit that never blocks", rules=(Limit("wide", slots=WIDE),)),
    "rate": Feature(_plain(limits=["pace"]), "one rate that never blocks", rules=(Limit("pace", rate=WIDE, per=60.0),)),
    "bucket": Feature(
        _plain(limits=["pace"]),
        "one token bucket that never blocks",
        rules=(Limit("pace", rate=WIDE, per=60.0, how="bucket", burst=WIDE),),
    ),
    "tenants": Feature(
        _each(lambda _, rng: {"limits": [f"tenant:{tenant(rng)}"]}),
        "300 partitions of two slots",
        rules=(Limit("tenant", slots=2),),
    ),
    "rates": Feature(
        _each(lambda _, rng: {"limits": [f"user:{rng.randrange(5_000)}"]}),
        "5,000 partitions of a rate",
        rules=(Limit("user", rate=1_000, per=1.0),),
    ),
    "strict": Feature(
        _each(lambda _, rng: {"limits": [f"account:{tenant(rng)}"]}),
        "300 accounts, each in strict order",
        rules=(Limit("account", slots=1, hold="ended"),),
    ),
    "queue-rules": Feature(
        _each(lambda number, _: {"queue": QUEUES[number % len(QUEUES)]}),
        "six queues with a rule",
        against="queues",
        rules=(Limit("queue", slots=1_000),),
    ),
    "bounds": Feature(
        _plain(), "a queue with a bound that is never reached", rules=(Limit("queue", max_waiting=WIDE),)
    ),
    "two-limits": Feature(
        _each(lambda _, rng: {"limits": ["wide", f"twenty:{tenant(rng)}"]}),
        "a shared limit and a partition",
        rules=(Limit("wide", slots=1_000), Limit("twenty", slots=20)),
    ),
    # --- dependencies
    "after": Feature(_pair, "a job, and one that waits for it", weight=2, ends=2),
    "fan-in": Feature(_fan_in, f"{FAN} jobs, and one that reads their values", weight=FAN + 1, ends=FAN + 1),
    "pass-result": Feature(_chain, "a job that gets the result of the one before", weight=2, ends=2),
    "flows": Feature(_flow, "two jobs and a third, stored as one flow", weight=3, ends=3),
    "children": Feature(_task("parent"), f"a job that returns {FAMILY} and sums up", weight=FAMILY + 1, ends=FAMILY),
    "keyed-children": Feature(
        lambda kit, number, _: [kit.job("keyed_parent", number)],
        "the same, with a key for each child",
        weight=FAMILY + 1,
        ends=FAMILY,
        against="children",
    ),
    # --- durable code
    "steps": Feature(_task("steps"), f"{STEPS} steps", weight=STEPS + 1),
    "sleeps": Feature(_task("sleeper"), "a durable sleep of 10 ms", weight=2),
    "signals": Feature(_signals, "a job that waits for a signal, and one that sends it", weight=3, ends=2),
    "once": Feature(lambda kit, number, _: [kit.job("once", f"o{number}")], "a mark of its own in the whole fleet"),
}
