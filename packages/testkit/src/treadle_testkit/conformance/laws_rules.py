"""Rules, declared rules and pauses are independent facts, so two callers never undo each other's change. Law 8."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from treadle.core.limit_model import Declare, Limit, LimitChange, LimitUse, Pause, Resume
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import claim, claim_ids, claim_one, claimed, done, job, jobs, settle
from treadle_testkit.conformance.run import Connect

API = (("api", 1),)


async def only(storage: Storage) -> LimitUse:
    """The only limit."""
    [use] = await storage.limits()
    assert (await storage.stats()).limits == (use,)
    return use


async def test_law08_a_pause_keeps_the_rule(storage: Storage) -> None:
    """While paused, the rule has 0 slots and keeps its rate; resuming restores it."""
    rule = Limit("api", slots=5, rate=100, per=60.0)
    await storage.set_limits([rule])
    await storage.set_limits([Pause("api")])
    paused = LimitUse(key="api", rule=Limit("api", slots=0, rate=100, per=60.0), pauses=(Pause("api"),), behind=rule)
    assert await only(storage) == paused
    await storage.set_limits([Pause("api")])
    assert await only(storage) == paused
    await storage.enqueue([job("a", limits=API)])
    assert await claim_ids(storage) == []
    await storage.set_limits([Resume("api")])
    assert await only(storage) == LimitUse(key="api", rule=rule)
    assert await claim_ids(storage) == ["a"]


async def test_law08_a_pause_of_a_limit_without_a_rule(storage: Storage) -> None:
    """It stops the jobs too, and resuming leaves no rule behind."""
    await storage.set_limits([Pause("api")])
    assert await only(storage) == LimitUse(key="api", rule=Limit("api", slots=0), pauses=(Pause("api"),))
    await storage.enqueue([job("a", limits=API)])
    assert await claim_ids(storage) == []
    await storage.set_limits([Resume("api")])
    assert await storage.limits() == ()
    assert await claim_ids(storage) == ["a"]


async def test_law08_a_rule_set_during_a_pause_does_not_resume(storage: Storage) -> None:
    """Removing a rule does not resume either. Resuming restores the latest rule."""
    await storage.set_limits([Limit("api", slots=5), Pause("api"), Limit("api", slots=2)])
    use = await only(storage)
    assert (use.rule.slots, use.behind) == (0, Limit("api", slots=2))
    await storage.set_limits([Limit("api")])
    use = await only(storage)
    assert (use.rule.slots, use.behind, use.pauses) == (0, None, (Pause("api"),))
    await storage.set_limits([Limit("api", slots=3), Resume("api")])
    assert await only(storage) == LimitUse(key="api", rule=Limit("api", slots=3))


async def test_law08_a_rule_of_no_slots_is_removed_by_resuming(storage: Storage) -> None:
    await storage.set_limits([Limit("api", slots=0)])
    await storage.set_limits([Resume("api")])
    assert await storage.limits() == ()


async def test_law08_a_pause_and_a_rest_end_each_by_itself(storage: Storage) -> None:
    """An operator's pause ("paused") and one that a job set ("held") end independently."""
    both = (Pause("api"), Pause("api", "held", 50.5))
    await storage.set_limits([both[1], both[0]])
    assert (await only(storage)).pauses == both
    await storage.set_limits([Resume("api", "held", 50.5)])
    assert (await only(storage)).pauses == both[:1]
    await storage.set_limits([both[1], Resume("api")])
    assert (await only(storage)).pauses == both[1:]
    await storage.enqueue([job("a", limits=API)])
    assert await claim_ids(storage) == []
    await storage.set_limits([Resume("api", "held")])
    assert await claim_ids(storage) == ["a"]


async def test_law08_a_late_end_of_a_rest_does_not_end_a_later_one(storage: Storage) -> None:
    """A Resume with `until` ends only a pause meant to end by then: a later one, set meanwhile, stays."""
    await storage.set_limits([Pause("api", "held", 10.0)])
    await storage.set_limits([Pause("api", "held", 20.25)])
    await storage.set_limits([Resume("api", "held", 10.0)])
    assert (await only(storage)).pauses == (Pause("api", "held", 20.25),)
    await storage.set_limits([Resume("api", "held", 20.25)])
    assert await storage.limits() == ()


async def test_law08_a_rule_of_an_operator_replaces_a_declared_one(storage: Storage) -> None:
    """In either order, whatever the code declares later. Removing a rule removes both."""
    await storage.set_limits([Declare(Limit("api", slots=2))])
    assert await only(storage) == LimitUse(key="api", rule=Limit("api", slots=2), declared=True)
    await storage.set_limits([Limit("api", slots=1)])
    await storage.set_limits([Declare(Limit("api", slots=9))])
    assert await only(storage) == LimitUse(key="api", rule=Limit("api", slots=1))
    await storage.enqueue(jobs("a b", limits=API))
    assert await claim_ids(storage, 9) == ["a"]
    await storage.set_limits([Limit("api")])
    assert await storage.limits() == ()
    await storage.set_limits([Declare(Limit("api", slots=2)), Pause("api")])
    use = await only(storage)
    assert (use.rule.slots, use.behind, use.declared) == (0, Limit("api", slots=2), True)


async def test_law08_setting_the_same_rules_again_changes_nothing(storage: Storage, clock: HandClock) -> None:
    """Every start of a worker declares the same rules again: blocked jobs are then not read."""
    changes: Sequence[LimitChange] = [Declare(Limit("api", slots=1, rate=3, per=60.0)), Pause("other", "held", 7.5)]
    await storage.set_limits(changes)
    before = await storage.limits()
    await storage.enqueue(jobs("a b", limits=API))
    first = await claim_one(storage)
    assert await claim_ids(storage) == []
    await storage.set_limits(changes)
    assert await storage.limits(use=False) == tuple(
        LimitUse(key=use.key, rule=use.rule, pauses=use.pauses, declared=use.declared) for use in before
    )
    await settle(storage, done(first))
    assert await claim_ids(storage) == ["b"]


async def test_law08_the_rules_alone_name_no_partition(storage: Storage) -> None:
    """Without `use` only stored rules are read."""
    await storage.set_limits([Limit("tenant", slots=1), Pause("tenant:b")])
    await storage.enqueue([job(f"{n}{tenant}", limits=((f"tenant:{tenant}", 1),)) for n in "12" for tenant in "ab"])
    assert await claim_ids(storage, 9) == ["1a"]
    uses = {use.key: (use.rule.slots, use.used, use.blocked) for use in await storage.limits()}
    assert uses == {"tenant": (1, 0, 0), "tenant:a": (1, 1, 1), "tenant:b": (0, 0, 2)}
    rules = {use.key: (use.rule.slots, use.used, use.blocked) for use in await storage.limits(use=False)}
    assert rules == {"tenant": (1, 0, 0), "tenant:b": (0, 0, 0)}


CHANGES: tuple[LimitChange, ...] = (
    Limit("api", slots=3),
    Pause("api"),
    Declare(Limit("api", slots=7)),
    Pause("api", "held", 100.0),
)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(CHANGES, 2)), ids=repr)
async def test_law08_changes_of_two_callers_at_once_are_both_kept(
    storage: Storage, connect: Connect, one: LimitChange, other: LimitChange
) -> None:
    """A rule and a pause, two pauses, a deploy and an operator: neither undoes the other, in any order."""
    peer = await connect()
    for number in range(6):
        await storage.set_limits([Limit("api"), Resume("api"), Resume("api", "held")])
        calls = [storage.set_limits([one]), peer.set_limits([other])]
        await asyncio.gather(*(calls if number % 2 else reversed(calls)))
        shown = await storage.limits(use=False)
        assert shown == await peer.limits(use=False)
        await storage.set_limits([Limit("api"), Resume("api"), Resume("api", "held")])
        await storage.set_limits([one, other])
        assert shown == await storage.limits(use=False)


async def test_law08_many_changes_at_once_are_all_kept(storage: Storage, connect: Connect) -> None:
    """Eight connections, each with its own limit and a pause of a common one."""
    storages = [storage, *[await connect() for _ in range(7)]]
    calls = [peer.set_limits([Limit(f"own{n}", slots=n + 1), Pause("all")]) for n, peer in enumerate(storages)]
    await asyncio.gather(*calls, storage.set_limits([Limit("all", slots=4)]), storages[1].set_limits([Pause("own3")]))
    rules = {use.key: (use.rule.slots, use.behind) for use in await storage.limits(use=False)}
    assert rules.pop("all") == (0, Limit("all", slots=4))
    assert rules.pop("own3") == (0, Limit("own3", slots=4))
    assert rules == {f"own{n}": (n + 1, None) for n in range(8) if n != 3}


NOTHING = {
    "no slots": Limit("api", slots=0),
    "no starts": Limit("api", rate=0, per=60.0),
    "an empty bucket": Limit("api", rate=0, per=60.0, how="bucket"),
    "no slots, and starts": Limit("api", slots=0, rate=5, per=60.0),
    "slots, and no starts": Limit("api", slots=5, rate=0, per=60.0),
}


@pytest.mark.parametrize("kind", NOTHING)
async def test_law08_a_rule_of_zero_counts_the_jobs_it_blocks(storage: Storage, clock: HandClock, kind: str) -> None:
    """However late it is, no job starts, claims return no next time, and the blocked jobs are counted."""
    rule = NOTHING[kind]
    await storage.set_limits([rule])
    await storage.enqueue([*jobs("a b", limits=API), job("free")])
    [free] = await claim(storage, 9)
    await settle(storage, done(free))
    for _ in range(2):
        answer = await claimed(storage, 9)
        assert (answer.records, answer.next_in) == ((), None)
        assert await only(storage) == LimitUse(key="api", rule=rule, blocked=2)
        clock.advance(100_000)
    assert [use.rule for use in await storage.limits(use=False)] == [rule]
    await storage.set_limits([Limit("api", slots=1)])
    assert await claim_ids(storage, 9) == ["a"]


@pytest.mark.parametrize("kind", NOTHING)
async def test_law08_a_rule_of_zero_stops_no_running_job(storage: Storage, kind: str) -> None:
    """A running job continues, counts as far as the rule counts slots, and ends."""
    await storage.enqueue(jobs("a b", limits=API))
    running = await claim_one(storage)
    await storage.set_limits([NOTHING[kind]])
    assert await claim_ids(storage, 9) == []
    use = await only(storage)
    assert (use.used, use.blocked, use.next_start) == (1, 1, None)
    await settle(storage, done(running))
    use = await only(storage)
    assert (use.used, use.blocked) == (0, 1)
    assert await claim_ids(storage, 9) == []


@pytest.mark.parametrize("rule", [Limit("queue:default", slots=0), Limit("queue:default", rate=0)])
async def test_law08_jobs_of_a_queue_with_a_rule_of_zero_stay_queued(storage: Storage, rule: Limit) -> None:
    """Its jobs stay queued."""
    await storage.set_limits([rule])
    await storage.enqueue(jobs("a b"))
    answer = await claimed(storage, 9)
    assert (answer.records, answer.next_in) == ((), None)
    assert await only(storage) == LimitUse(key=rule.name, rule=rule)
    [count] = (await storage.stats()).counts
    assert (count.queued, count.blocked) == (2, 0)
