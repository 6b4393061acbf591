"""Slots, rates, pauses: how many run and start, and who waits aside meanwhile. Laws 7 and 8."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Literal

import pytest

from treadle.core.model import Claim, Limit, LimitUse, Pause, Query, Record
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    READY,
    RUNNING,
    WAITING,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    failed,
    hold,
    ids,
    job,
    jobs,
    out,
    row,
    run,
    settle,
    tend,
)


def names(start: int, end: int, letter: str = "j") -> str:
    return " ".join(f"{letter}{n:02}" for n in range(start, end))


async def standing(storage: Storage, queue: str = "default") -> tuple[int, int]:
    """How many stand in line, and how many aside."""
    counts = [each for each in (await storage.stats()).counts if each.queue == queue and each.state is READY]
    return sum(each.in_line for each in counts), sum(each.parked for each in counts)


async def use(storage: Storage, key: str) -> LimitUse | None:
    return {each.key: each for each in (await storage.stats()).limits}.get(key)


# --- slots


async def test_law08_slots_bound_what_runs(storage: Storage) -> None:
    """Never more at once than the rule says; each that ends lets the next one in, in order."""
    await storage.set_limits([Limit("api", slots=2)])
    await storage.enqueue(jobs(names(0, 5), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00", "j01"]
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(await row(storage, "j01")))
    assert await claim_ids(storage, 9) == ["j02"]
    await settle(storage, failed(await row(storage, "j00")), done(await row(storage, "j02")))
    assert await claim_ids(storage, 9) == ["j03", "j04"]


async def test_law08_a_shut_limit_starves_nobody_else(storage: Storage, clock: HandClock) -> None:
    """A hundred of one tenant at the head of the line: the others come in the same claim."""
    await storage.set_limits([Limit("tenant", slots=2)])
    await storage.enqueue(jobs(names(0, 100, "a"), limits=(("tenant:a", 1),)))
    clock.advance(1)
    await storage.enqueue([job("b", limits=(("tenant:b", 1),)), job("free")])
    assert await claim_ids(storage, 10) == ["a00", "a01", "b", "free"]


async def test_law08_partitions_count_apart(storage: Storage) -> None:
    """`name:partition` obeys the rule of `name`, each partition by itself; its own rule comes first."""
    await storage.set_limits([Limit("tenant", slots=1), Limit("tenant:b", slots=2)])
    for tenant in "abc":
        await storage.enqueue(jobs(names(0, 3, tenant), limits=((f"tenant:{tenant}", 1),)))
    assert await claim_ids(storage, 9) == ["a00", "b00", "b01", "c00"]


async def test_law08_a_limit_without_a_rule_is_open(storage: Storage) -> None:
    """Naming a limit that nobody has set holds nobody back."""
    await storage.enqueue(jobs(names(0, 5), limits=(("api", 1), ("tenant:x", 3))))
    assert len(await claim_ids(storage, 9)) == 5


async def test_law08_queues_share_a_limit(storage: Storage) -> None:
    """A limit knows no queue."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue([job("a", limits=(("api", 1),), queue="x"), job("b", limits=(("api", 1),), queue="y")])
    assert await claim_ids(storage, 9, "x", "y") == ["a"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9, "x", "y") == ["b"]


async def run_out(storage: Storage, *ids: str) -> None:
    """End what runs."""
    await settle(storage, *[done(await row(storage, id)) for id in ids])


async def test_law08_a_cost_takes_so_many_slots(storage: Storage) -> None:
    """A job of cost 2 needs room for two."""
    await storage.set_limits([Limit("gpu", slots=3)])
    await storage.enqueue(
        [job("a", limits=(("gpu", 2),)), job("b", limits=(("gpu", 2),)), job("c", limits=(("gpu", 1),))]
    )
    assert await claim_ids(storage, 9) == ["a", "c"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_a_cost_beyond_the_rule_runs_alone(storage: Storage) -> None:
    """It counts as all of it: it starts when nothing else runs, and nothing starts beside it."""
    await storage.set_limits([Limit("gpu", slots=3)])
    await storage.enqueue([job("a", limits=(("gpu", 1),)), job("big", limits=(("gpu", 50),))])
    assert await claim_ids(storage, 9) == ["a"]
    await run_out(storage, "a")
    await storage.enqueue([job("c", limits=(("gpu", 1),), priority=-1)])
    assert await claim_ids(storage, 9) == ["big"]
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "big")
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_lost_lease_gives_its_slot_back(storage: Storage, clock: HandClock) -> None:
    """The slot of a dead worker is not lost with it."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("a b", limits=(("one", 1),)))
    assert await claim_ids(storage, 9, lease=30) == ["a"]
    assert await claim_ids(storage, 9) == []
    clock.advance(31)
    assert len(await claim_ids(storage, 9, lease=30)) == 1
    assert await claim_ids(storage, 9) == []


@pytest.mark.parametrize("ending", ["done", "failed", "cancelled", "back", "later"])
async def test_law08_however_a_run_ends_its_slot_is_free(storage: Storage, ending: str) -> None:
    """Success, failure, cancellation, handed back, or put off."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("a b", limits=(("one", 1),)))
    a = await claim_one(storage)
    assert await claim_ids(storage) == []
    outcomes = {"done": done(a), "failed": failed(a), "cancelled": cancelled(a), "back": back(a), "later": back(a, 60)}
    await settle(storage, outcomes[ending])
    assert len(await claim_ids(storage, 9)) == 1


async def test_law08_several_limits_at_once(storage: Storage) -> None:
    """A job starts when all of them let it."""
    await storage.set_limits([Limit("x", slots=1), Limit("y", slots=1)])
    await storage.enqueue(
        [job("a", limits=(("x", 1),)), job("b", limits=(("x", 1), ("y", 1))), job("c", limits=(("y", 1),))]
    )
    assert await claim_ids(storage, 9) == ["a", "c"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "c")
    assert await claim_ids(storage, 9) == ["b"]


# --- stepping aside and coming back


async def test_law08_who_is_held_back_steps_aside(storage: Storage) -> None:
    """Out of line, with the limit's name, so that claims stay short; its turn is kept."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs(names(0, 4), limits=(("one", 1),)))
    await claim_ids(storage, 1)
    assert await standing(storage) == (3, 0)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 3)
    aside = await row(storage, "j01")
    assert (aside.state, aside.place, aside.parked, aside.due_at) == (READY, None, "one", None)
    assert aside.joined_at is not None


async def test_law08_only_those_met_step_aside(storage: Storage) -> None:
    """A claim moves whom it meets on its way to what it takes, and nobody behind."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([*jobs(names(0, 3), limits=(("one", 1),)), job("k"), *jobs("x y", limits=(("one", 1),))])
    assert await claim_ids(storage, 2) == ["j00", "k"]
    assert await standing(storage) == (2, 2)


async def test_law08_as_many_come_back_as_slots_are_free(storage: Storage) -> None:
    """Two slots freed: two come back in line, in their order, and no more."""
    await storage.set_limits([Limit("two", slots=2)])
    await storage.enqueue(jobs(names(0, 10), limits=(("two", 1),)))
    first = await claim(storage, 9)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 8)
    await settle(storage, done(first[0]))
    assert await standing(storage) == (1, 7)
    await settle(storage, done(first[1]))
    assert await standing(storage) == (2, 6)
    assert await claim_ids(storage, 9) == ["j02", "j03"]
    assert await standing(storage) == (0, 6)


async def test_law08_slots_freed_together_let_so_many_back(storage: Storage, clock: HandClock) -> None:
    """Endings of one call, of two limits: as many come back as each has room for, in their order, by their cost."""
    await storage.set_limits([Limit("two", slots=2), Limit("three", slots=3)])
    await storage.enqueue([*jobs(names(0, 2), limits=(("two", 1), ("three", 1))), job("free")])
    clock.advance(1)
    await storage.enqueue(jobs("a b c d", limits=(("two", 1),)))
    await storage.enqueue(jobs("p q", limits=(("three", 2),)))
    first = await claim(storage, 3)
    assert await claim_ids(storage, 9) == []
    await settle(storage, *(done(each) for each in first))
    assert await standing(storage) == (3, 3)
    assert await claim_ids(storage, 9) == ["a", "b", "p"]
    assert await standing(storage) == (0, 3)


async def test_law08_in_one_call_who_comes_back_does_so_in_turn(storage: Storage, clock: HandClock) -> None:
    """A job that joins a lane before a slot is freed does not stand behind the one whom that lets back."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("held", limits=(("one", 1),)), job("other")])
    held, other = await claim(storage, 2)
    await storage.enqueue([job("aside", limits=(("one", 1),), lane="l")])
    assert await claim_ids(storage, 9) == []
    clock.advance(10)
    await settle(storage, done(other, then=(job("new", lane="l"),)), done(held))
    assert (await row(storage, "new")).place == clock()
    assert await claim_ids(storage, 9) == ["aside", "new"]


async def test_law08_a_freed_slot_is_given_once(storage: Storage) -> None:
    """Another slot's ending does not call back a second one for the slot that is promised already."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs(names(0, 5), limits=(("one", 1),)))
    await claim_ids(storage, 1)
    await claim_ids(storage, 9)
    await settle(storage, done(await row(storage, "j00")))
    await settle(storage, cancelled(await row(storage, "j03")))
    assert await standing(storage) == (1, 2)


async def test_law08_back_in_line_it_has_its_old_turn(storage: Storage, clock: HandClock) -> None:
    """Before all who came later, limits or not."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs("z y", limits=(("one", 1),)))
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["y"]
    await storage.enqueue(jobs("a"))
    await run_out(storage, "y")
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law08_they_come_back_by_priority(storage: Storage) -> None:
    """The most urgent of those aside first."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),), priority=9), *jobs("b c", limits=(("one", 1),))])
    await storage.enqueue([job("d", limits=(("one", 1),), priority=3)])
    assert await claim_ids(storage, 9) == ["a"]
    for id in ("d", "b", "c"):
        await run_out(storage, *[each.job.id for each in (await storage.find(Query(state=(RUNNING,)))).records])
        assert await claim_ids(storage, 9) == [id]


async def test_law08_back_in_a_paused_line_it_keeps_no_other_line_waiting(storage: Storage) -> None:
    """Of two queues that share a limit one is paused after its job was let back: the other's has the slot."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue(
        [job(id, queue=queue, limits=(("api", 1),)) for id, queue in (("a", "x"), ("b", "x"), ("d", "y"))]
    )
    assert await claim_ids(storage, 9, "x", "y") == ["a"]
    await storage.set_limits([Limit("queue:x", slots=0)])
    await settle(storage, done(await row(storage, "a")))
    assert await claim_ids(storage, 9, "x", "y") == ["d"]
    await storage.set_limits([Limit("queue:x")])
    await settle(storage, done(await row(storage, "d")))
    assert await claim_ids(storage, 9, "x", "y") == ["b"]


async def test_law08_cancelled_after_coming_back_it_strands_nobody(storage: Storage) -> None:
    """The slot it was let in for goes to the next one aside."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue(jobs(names(0, 4), limits=(("one", 1),)))
    await claim_ids(storage, 1)
    await claim_ids(storage, 9)
    await run_out(storage, "j00")
    assert await standing(storage) == (1, 2)
    await settle(storage, cancelled(await row(storage, "j01")))
    assert await claim_ids(storage, 9) == ["j02"]


async def test_law08_gone_after_coming_back_it_strands_nobody(storage: Storage, clock: HandClock) -> None:
    """Expired, superseded, put off or told to wait: the next one comes all the same."""
    await storage.set_limits([Limit("one", slots=1)])
    one = (("one", 1),)
    await storage.enqueue([job("j0", limits=one, priority=9), job("p", task="")])
    await storage.enqueue(
        [job("j1", limits=one, deadline=10), job("j2", limits=one, key="k"), *jobs("j3 j4 j5", limits=one)]
    )
    assert await claim_ids(storage, 9) == ["j0"]
    await run_out(storage, "j0")
    clock.advance(10)
    await tend(storage)
    assert (await row(storage, "j1")).reason == "expired"
    assert (await standing(storage))[0] == 1
    await storage.enqueue([job("new", key="k", key_conflict="replace", delay=99)])
    assert (await standing(storage))[0] == 1
    await settle(storage, back(await row(storage, "j3"), 99))
    assert (await standing(storage))[0] == 1
    await settle(storage, out(await row(storage, "j4"), WAITING, after=("p",)))
    assert await claim_ids(storage, 9) == ["j5"]


async def test_law08_blocked_by_another_limit_after_coming_back(storage: Storage) -> None:
    """It steps aside for that one, and the slot it came for goes to the next."""
    await storage.set_limits([Limit("x", slots=1), Limit("y", slots=1)])
    await storage.enqueue([job("a", limits=(("x", 1),), priority=9), job("b", limits=(("y", 1),), priority=9)])
    await storage.enqueue([job("both", limits=(("x", 1), ("y", 1)), priority=1), job("c", limits=(("x", 1),))])
    assert await claim_ids(storage, 9) == ["a", "b"]
    assert (await row(storage, "both")).parked == "x"
    await run_out(storage, "a")
    while not (taken := await claim_ids(storage, 9)):
        assert (await row(storage, "both")).parked == "y"
        assert await standing(storage) == (1, 1)
    assert taken == ["c"]
    await run_out(storage, "b", "c")
    assert await claim_ids(storage, 9) == ["both"]


async def test_law08_cancelled_aside_it_is_gone(storage: Storage, clock: HandClock) -> None:
    """And nothing wakes for it: no next moment is left of a rate that nobody waits for."""
    await storage.set_limits([Limit("api", rate=1, per=60)])
    await storage.enqueue(jobs("a b", limits=(("api", 1),)))
    assert await claim_ids(storage, 9, lease=9000) == ["a"]
    await run_out(storage, "a")
    await settle(storage, cancelled(await row(storage, "b")))
    clock.advance(100)
    for _ in range(2):
        found = await claimed(storage, 9)
        assert (found.records, found.next_in) == ((), None)


async def test_law08_many_aside(storage: Storage) -> None:
    """Two thousand held back by one slot all run, one after the other, in order, whatever ends between."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job(f"j{n:04}", limits=(("one", 1),)) for n in range(2_000)])
    for n in range(30):
        [each] = await claim(storage, 9)
        assert each.job.id == f"j{n:04}"
        await settle(storage, done(each))


# --- pauses


async def test_law08_no_slots_is_a_pause(storage: Storage) -> None:
    """Nothing starts, what runs goes on, and it goes on where it was when the rule is removed."""
    await storage.enqueue(jobs("a b c", limits=(("mail", 1),)))
    a = await claim_one(storage)
    await storage.set_limits([Limit("mail", slots=0)])
    assert await claim_ids(storage, 9) == []
    assert await beat(storage, hold(a)) == set()
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == []
    await storage.set_limits([Limit("mail")])
    assert await claim_ids(storage, 9) == ["b", "c"]


async def test_law08_no_rate_is_a_pause_too(storage: Storage) -> None:
    """rate=0: nothing starts, and no moment is promised."""
    await storage.set_limits([Limit("mail", rate=0)])
    await storage.enqueue(jobs("a", limits=(("mail", 1),)))
    found = await claimed(storage, 9)
    assert (found.records, found.next_in) == ((), None)
    await storage.set_limits([Limit("mail", rate=1)])
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_many_limits_freed_at_once_let_in_as_many_as_each_has_room_for(storage: Storage) -> None:
    """Slots alone and with a rate, kept to the end or not, with a costly job among them."""
    rules = (
        Limit("dear", slots=2),
        Limit("kept", slots=2, hold="ended"),
        Limit("paced", slots=2, rate=100, per=1.0),
        Limit("plain", slots=2),
    )
    await storage.set_limits(rules)
    await storage.enqueue([job(f"{rule.name}{n}", limits=((rule.name, 1),)) for rule in rules for n in range(2)])
    running = await claim(storage, 20)
    assert len(running) == 8
    await storage.enqueue(
        [
            job(f"{rule.name}{n}", limits=((rule.name, 2 if rule.name == "dear" and n == 2 else 1),))
            for rule in rules
            for n in range(2, 6)
        ]
    )
    assert await claim(storage, 20) == []  # they step aside
    let_in = (
        ["dear2", "kept2", "kept3", "paced2", "paced3", "plain2", "plain3"],
        ["dear3", "dear4", "kept4", "kept5", "paced4", "paced5", "plain4", "plain5"],
        ["dear5"],
    )
    for expected in let_in:
        await storage.settle([done(each) for each in running])
        running = await claim(storage, 20)
        assert sorted(each.id for each in running) == expected


async def test_law08_a_paused_queue_moves_nobody(storage: Storage) -> None:
    """Its own limit is checked before its line: nobody steps aside, nobody loses a place."""
    await storage.enqueue([*jobs("a b", queue="mail"), job("c", queue="other")])
    await storage.set_limits([Limit("queue:mail", slots=0)])
    before = await storage.get(["a", "b"])
    assert await claim_ids(storage, 9, "mail", "other") == ["c"]
    assert await storage.get(["a", "b"]) == before
    await storage.set_limits([Limit("queue:mail")])
    assert await claim_ids(storage, 9, "mail") == ["a", "b"]


async def test_law08_a_queue_of_so_many_slots(storage: Storage) -> None:
    """A queue's limit counts all of its jobs; the rest stays in line."""
    await storage.set_limits([Limit("queue:mail", slots=2)])
    await storage.enqueue(jobs(names(0, 5), queue="mail"))
    assert await claim_ids(storage, 9, "mail") == ["j00", "j01"]
    assert await standing(storage, "mail") == (3, 0)
    await run_out(storage, "j00")
    assert await claim_ids(storage, 9, "mail") == ["j02"]


async def test_law08_every_queue_obeys_the_common_rule(storage: Storage) -> None:
    """ "queue" is the rule of each queue that has none of its own, counted apart."""
    await storage.set_limits([Limit("queue", slots=1), Limit("queue:c", slots=2)])
    for queue in "abc":
        await storage.enqueue(jobs(names(0, 3, queue), queue=queue))
    assert await claim_ids(storage, 9, "a", "b", "c") == ["a00", "b00", "c00", "c01"]


async def test_law08_queues_with_much_little_and_no_room_side_by_side(storage: Storage) -> None:
    """Each gives what it has room for, up to its share, then the others give more; who ran asks nobody."""
    await storage.set_limits([Limit("queue", slots=50), Limit("queue:few", slots=2), Limit("queue:none", slots=0)])
    for queue in ("much", "few", "none"):
        await storage.enqueue(jobs(names(0, 8, queue), queue=queue))
    shares = (("much", 3), ("few", 3), ("none", 3))
    first = await storage.claim(Claim(worker="side#1", queues=shares, limit=9, lease=30.0))
    assert Counter(each.job.queue for each in first.records) == {"much": 7, "few": 2}
    second = await storage.claim(Claim(worker="side#2", queues=shares, limit=9, lease=30.0))
    assert ids(second.records) == ["much07"]
    few = next(each for each in first.records if each.job.queue == "few")
    await settle(storage, back(few, ran=True))
    assert await claim_ids(storage, 9, "few") == [few.id, "few02"]


async def test_law08_a_queue_of_a_pace(storage: Storage, clock: HandClock) -> None:
    """Rates hold for queues as well; nobody steps aside."""
    await storage.set_limits([Limit("queue:mail", rate=2, per=10)])
    await storage.enqueue(jobs(names(0, 5), queue="mail"))
    assert await claim_ids(storage, 9, "mail") == ["j00", "j01"]
    clock.advance(9)
    assert await claim_ids(storage, 9, "mail") == []
    assert await standing(storage, "mail") == (3, 0)
    clock.advance(1)
    assert await claim_ids(storage, 9, "mail") == ["j02", "j03"]


async def test_law08_a_shut_queue_spends_nothing(storage: Storage, clock: HandClock) -> None:
    """Its jobs' own limits are not touched while it is paused."""
    await storage.set_limits([Limit("queue:mail", slots=0), Limit("api", rate=1, per=60)])
    await storage.enqueue([job("a", queue="mail", limits=(("api", 1),)), job("b", limits=(("api", 1),))])
    assert await claim_ids(storage, 9, "mail", "default") == ["b"]


async def test_law08_the_moment_the_pace_of_a_queue_allows_is_told(storage: Storage, clock: HandClock) -> None:
    """To those who ask for that queue, for as long as somebody stands in it."""
    await storage.set_limits([Limit("queue:mail", rate=1, per=10), Limit("queue:drip", rate=1, per=4, how="bucket")])
    await storage.enqueue([*jobs("a b", queue="mail"), *jobs("c d", queue="drip")])
    first = await claimed(storage, 1, "mail")
    assert first.next_in == pytest.approx(10)
    clock.advance(6)
    second = await claimed(storage, 1, "drip")
    assert ids(second.records) == ["c"]
    assert second.next_in == pytest.approx(4)
    both = await claimed(storage, 9, "drip", "mail", lease=100)
    assert ids(both.records) == []
    assert both.next_in == pytest.approx(4)
    clock.advance(4)
    assert await claim_ids(storage, 9, "drip", "mail", lease=100) == ["d", "b"]
    nobody_left = await claimed(storage, 9, "drip", "mail")
    assert nobody_left.next_in is not None
    assert nobody_left.next_in > 10  # their leases, and no rate


# --- what ran


async def test_law07_what_ran_passes_every_limit(storage: Storage) -> None:
    """Slots, rates, pauses: only its ending is left, and it must not wait for room."""
    rules = [Limit("slots", slots=0), Limit("rate", rate=0), Limit("queue:default", slots=0)]
    await storage.set_limits(rules)
    await storage.enqueue([job("a", ran=True, limits=(("slots", 1), ("rate", 1)))])
    a = await claim_one(storage)
    assert a.job.id == "a"
    await settle(storage, done(a))


async def test_law07_what_ran_uses_nothing(storage: Storage) -> None:
    """While it is being ended it takes no slot, and it spends no rate."""
    await storage.set_limits([Limit("one", slots=1), Limit("api", rate=1, per=60)])
    both = (("one", 1), ("api", 1))
    await storage.enqueue([job("a", ran=True, limits=both), job("b", ran=True, limits=both), job("c", limits=both)])
    assert await claim_ids(storage, 9) == ["a", "b", "c"]
    assert [each.used for each in [await use(storage, "one")] if each] == [1]


async def test_law08_what_ran_takes_the_slot_it_keeps(storage: Storage) -> None:
    """A limit that holds until the ending counts it in the very call that claims it."""
    await storage.set_limits([Limit("order", slots=1, hold="ended"), Limit("queue:mail", slots=2, hold="ended")])
    both = (("order", 1),)
    await storage.enqueue([job("a", limits=(("order", 2),)), job("b", ran=True, limits=both), job("c", limits=both)])
    await run(storage, "a")
    assert await claim_ids(storage, 9) == ["b"]
    await storage.enqueue([job("d", queue="mail", ran=True), *jobs("e f", queue="mail")])
    assert await claim_ids(storage, 9, "mail") == ["d", "e"]
    await settle(storage, done(await row(storage, "b")))
    assert await claim_ids(storage, 9) == ["c"]


async def test_law07_a_parent_in_line_for_its_ending_passes_a_pause(storage: Storage) -> None:
    """Paused while its children ran: it is ended all the same."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("p", task="")])
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, after=("p",)))
    await storage.set_limits([Limit("one", slots=0), Limit("queue", slots=0)])
    await settle(storage, done(await row(storage, "p")))
    assert await claim_ids(storage) == ["a"]


# --- rates


async def test_law08_a_window_lets_so_many_start(storage: Storage, clock: HandClock) -> None:
    """`rate` starts in `per` seconds, and the next when the first of them is that long ago."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue(jobs(names(0, 6), limits=(("api", 1),)))
    assert await claim_ids(storage, 1) == ["j00"]
    clock.advance(4)
    assert await claim_ids(storage, 9) == ["j01"]
    clock.advance(5.5)
    assert await claim_ids(storage, 9) == []
    clock.advance(0.5)
    assert await claim_ids(storage, 9) == ["j02"]
    clock.advance(3)
    assert await claim_ids(storage, 9) == []
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["j03"]


@pytest.mark.parametrize("seed", range(4))
async def test_law08_no_window_however_placed_has_more(storage: Storage, clock: HandClock, seed: int) -> None:
    """Starts at random moments, of random costs: any half-open window of `per` seconds stays within the rate."""
    chance, rate, per = random.Random(seed), 5, 7.0
    await storage.set_limits([Limit("api", rate=rate, per=per)])
    cost = {f"j{n:03}": chance.choice([1, 1, 1, 2, 3]) for n in range(120)}
    await storage.enqueue([job(id, limits=(("api", spent),)) for id, spent in cost.items()])
    starts: list[tuple[float, int]] = []
    while len(starts) < 120:
        taken = await claim(storage, chance.randint(1, 6))
        starts += [(clock(), cost[each.job.id]) for each in taken]
        await settle(storage, *(done(each) for each in taken if chance.random() < 0.9))
        clock.advance(chance.choice([0.0, 0.25, 0.5, 1.0, 2.0, 3.5, 7.0]))
    for begin, _ in starts:
        assert sum(spent for at, spent in starts if begin <= at < begin + per) <= rate
    assert starts[-1][0] - starts[0][0] < sum(cost.values()) / rate * per * 3, "slower than the rate allows"


async def test_law08_a_rate_counts_starts_not_runs(storage: Storage) -> None:
    """Ending early gives nothing back."""
    await storage.set_limits([Limit("api", rate=1, per=10)])
    await storage.enqueue(jobs("a b", limits=(("api", 1),)))
    await settle(storage, done(await claim_one(storage)))
    assert await claim_ids(storage, 9) == []


async def test_law08_a_retry_is_a_start(storage: Storage, clock: HandClock) -> None:
    """Each claim of a job that runs its function spends."""
    await storage.set_limits([Limit("api", rate=1, per=10)])
    await storage.enqueue(jobs("a", limits=(("api", 1),)))
    await settle(storage, back(await claim_one(storage)))
    assert await claim_ids(storage, 9) == []
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_the_moment_a_rate_opens_is_told(storage: Storage, clock: HandClock) -> None:
    """Whoever found nothing knows when to look again."""
    await storage.set_limits([Limit("api", rate=1, per=60)])
    await storage.enqueue(jobs("a b c", limits=(("api", 1),)))
    await settle(storage, done(await claim_one(storage)))
    clock.advance(20)
    assert (await claimed(storage, 9)).next_in == pytest.approx(40)
    clock.advance(40)
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_as_many_come_back_as_the_rate_lets_in(storage: Storage, clock: HandClock) -> None:
    """Not the whole crowd each time it opens."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue(jobs(names(0, 10), limits=(("api", 1),)))
    assert len(await claim_ids(storage, 9)) == 2
    assert await standing(storage) == (0, 8)
    clock.advance(10)
    await tend(storage)
    assert await standing(storage) == (2, 6)
    await tend(storage)
    assert await standing(storage) == (2, 6)
    assert await claim_ids(storage, 9) == ["j02", "j03"]


async def test_law08_a_rate_that_opens_again_lets_in_who_was_blocked_first(storage: Storage, clock: HandClock) -> None:
    """Also while whoever it let in before is not claimed yet: a job that comes then waits behind those it blocked."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue(jobs("a b c d", limits=(("api", 1),)))
    await claim_one(storage)
    clock.advance(1)
    await claim_one(storage)
    assert await claim(storage, 4) == []  # c and d step aside
    clock.advance(9)
    await tend(storage)  # the first start is ten seconds ago: c is back in line
    clock.advance(1)
    await storage.enqueue(jobs("later", limits=(("api", 1),)))
    assert await claim_ids(storage, 2) == ["c", "d"]


async def test_law08_a_cost_beyond_the_rate_takes_all_of_it(storage: Storage, clock: HandClock) -> None:
    """It starts when a whole window is free, and fills it."""
    await storage.set_limits([Limit("api", rate=2, per=10)])
    await storage.enqueue([job("a", limits=(("api", 1),)), job("big", limits=(("api", 9),))])
    assert await claim_ids(storage, 9) == ["a"]
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["big"]
    await storage.enqueue(jobs("c", limits=(("api", 1),)))
    clock.advance(9)
    assert await claim_ids(storage, 9) == []
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_bucket_lets_a_burst_then_the_pace(storage: Storage, clock: HandClock) -> None:
    """`burst` at once, then one whenever a token has come in."""
    await storage.set_limits([Limit("api", rate=1, per=10, how="bucket", burst=3)])
    await storage.enqueue(jobs(names(0, 9), limits=(("api", 1),)))
    taken = []
    for _ in range(6):
        taken.append(len(await claim_ids(storage, 9)))
        clock.advance(5)
    assert taken == [3, 0, 1, 0, 1, 0]


async def test_law08_a_bucket_fills_no_higher_than_its_burst(storage: Storage, clock: HandClock) -> None:
    """A night's silence saves up one burst, not a night's worth; without `burst` it is the rate."""
    await storage.set_limits([Limit("api", rate=2, per=10, how="bucket", burst=4), Limit("web", rate=2, how="bucket")])
    await storage.enqueue([*jobs(names(0, 20), limits=(("api", 1),)), *jobs(names(0, 9, "w"), limits=(("web", 1),))])
    assert len(await claim_ids(storage, 99)) == 6
    clock.advance(100_000)
    assert len(await claim_ids(storage, 99)) == 6


async def test_law08_a_bucket_tells_its_next_moment(storage: Storage, clock: HandClock) -> None:
    """When the token for the first one aside will be there."""
    await storage.set_limits([Limit("api", rate=1, per=10, how="bucket")])
    await storage.enqueue([job("a", limits=(("api", 1),)), job("b", limits=(("api", 1),))])
    await settle(storage, done(await claim_one(storage)))
    clock.advance(4)
    assert (await claimed(storage, 9)).next_in == pytest.approx(6)
    clock.advance(6)
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_prune_forgets_no_start_that_counts(storage: Storage, clock: HandClock) -> None:
    """It drops what a rate remembers of a partition only once that changes no answer."""
    await storage.set_limits([Limit("w", rate=2, per=60.0), Limit("b", rate=2, per=60.0, how="bucket")])
    new = [job(f"{key}{n}", limits=((f"{key}:1", 1),)) for n in range(5) for key in "wb"]
    await storage.enqueue(new)
    assert await claim_ids(storage, 9, lease=900) == ["b0", "b1", "w0", "w1"]
    for _ in range(3):
        await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == []
    clock.advance(59)
    await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == ["b2"]
    clock.advance(1)
    await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == ["b3", "w2", "w3"]
    await storage.prune(9)
    assert await claim_ids(storage, 9, lease=900) == []


async def test_law08_a_denied_check_spends_nothing(storage: Storage) -> None:
    """All of a job's limits are checked before any is spent."""
    await storage.set_limits([Limit("tenant", rate=1, per=60), Limit("global", slots=0)])
    await storage.enqueue([job("a", limits=(("tenant:x", 1), ("global", 1))), job("b", limits=(("tenant:x", 1),))])
    assert await claim_ids(storage, 9) == ["b"]
    assert (await row(storage, "a")).parked == "global"


async def test_law08_slots_and_rate_together(storage: Storage, clock: HandClock) -> None:
    """Both hold."""
    await storage.set_limits([Limit("api", slots=2, rate=3, per=10)])
    await storage.enqueue(jobs(names(0, 9), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00", "j01"]
    await run_out(storage, "j00", "j01")
    assert await claim_ids(storage, 9) == ["j02"]
    await run_out(storage, "j02")
    assert await claim_ids(storage, 9) == []
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["j03", "j04"]


# --- a slot held until the ending


async def test_law08_a_slot_held_until_the_ending(storage: Storage, clock: HandClock) -> None:
    """Through retries, lost leases and waits, from the first claim on; and its own retry passes."""
    await storage.set_limits([Limit("order", slots=1, hold="ended")])
    await storage.enqueue([*jobs("a b", limits=(("order:7", 1),)), job("p", task="")])
    a = await claim_one(storage)
    await settle(storage, back(a, 60, attempt=1))
    assert await claim_ids(storage, 9) == []
    clock.advance(60)
    assert await claim_ids(storage, 9, lease=10) == ["a"]
    clock.advance(11)
    assert await claim_ids(storage, 9) == ["a"]
    await settle(storage, out(await row(storage, "a"), WAITING, ran=True, after=("p",)))
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(await row(storage, "p")))
    a = await claim_one(storage)
    assert (a.job.id, a.ran) == ("a", True)
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == ["b"]


async def test_law08_a_held_slot_is_freed_by_any_ending(storage: Storage, clock: HandClock) -> None:
    """Expired or cancelled between two tries: the next one comes."""
    await storage.set_limits([Limit("order", slots=1, hold="ended")])
    await storage.enqueue([job("a", limits=(("order", 1),), deadline=20), *jobs("b c", limits=(("order", 1),))])
    await settle(storage, back(await claim_one(storage), 60))
    assert await claim_ids(storage, 9) == []
    clock.advance(20)
    assert await claim_ids(storage, 9) == ["b"]
    await settle(storage, back(await row(storage, "b"), 60))
    await settle(storage, cancelled(await row(storage, "b")))
    assert await claim_ids(storage, 9) == ["c"]


async def test_law08_a_held_slot_still_pays_the_rate(storage: Storage, clock: HandClock) -> None:
    """The slot is kept, the start is not: each start is counted."""
    await storage.set_limits([Limit("order", slots=1, rate=1, per=30, hold="ended")])
    await storage.enqueue(jobs("a", limits=(("order", 1),)))
    await settle(storage, back(await claim_one(storage)))
    assert await claim_ids(storage, 9) == []
    clock.advance(30)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_who_keeps_its_slot_comes_back_before_who_needs_one(storage: Storage, clock: HandClock) -> None:
    """Held back by the rate, it is not barred by one in front that waits for the very slot it keeps."""
    await storage.set_limits([Limit("order", slots=1, rate=1, per=30, hold="ended")])
    await storage.enqueue(jobs("a b", limits=(("order", 1),)))
    await settle(storage, back(await claim_one(storage), 5, attempt=1))
    assert await claim_ids(storage, 9) == []
    clock.advance(5)
    assert await claim_ids(storage, 9) == []
    assert await standing(storage) == (0, 2)
    clock.advance(25)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_strict_order(storage: Storage, clock: HandClock) -> None:
    """A lane with one slot held until the ending: nobody overtakes a retry."""
    await storage.set_limits([Limit("order", slots=1, hold="ended")])
    await storage.enqueue(jobs("a b c", lane="order:7", limits=(("order:7", 1),)))
    seen = []
    for _ in range(3):
        first = await claim_one(storage)
        await settle(storage, back(first, 5, attempt=1))
        assert await claim_ids(storage, 9) == []
        clock.advance(5)
        again = await claim_one(storage)
        assert again.job.id == first.job.id
        await settle(storage, done(again))
        seen.append(first.job.id)
    assert seen == ["a", "b", "c"]


# --- back in line, and not reached there


LOW, HIGH = -1, 5  # priorities behind and in front of a backlog of plain jobs


async def unreached(storage: Storage, limits: tuple[tuple[str, int], ...], **options: Any) -> Record:
    """`low` came back in line, where plain jobs stand before it; `mid` runs in its place, `high` stands aside."""
    await storage.enqueue([job("first", limits=limits)])
    first = await claim_one(storage)
    await storage.enqueue([job("low", limits=limits, priority=LOW)])
    assert await claim_ids(storage) == []
    await storage.enqueue([job("mid", limits=limits)])
    await settle(storage, done(first))
    assert (await row(storage, "low")).place is not None
    mid = await claim_one(storage)
    assert mid.job.id == "mid"
    await storage.enqueue([*jobs(names(0, 8, "plain")), job("high", limits=limits, priority=HIGH, **options)])
    assert await claim_ids(storage) == ["plain00"]
    assert (await row(storage, "high")).parked is not None
    return mid


@pytest.mark.parametrize(
    ("rules", "limits"),
    [
        ([Limit("one", slots=1)], (("one", 1),)),
        ([Limit("one", slots=1, hold="ended")], (("one", 1),)),
        ([Limit("tenant", slots=1)], (("tenant:a", 1),)),
        ([Limit("x", slots=1), Limit("y", slots=1)], (("x", 1), ("y", 1))),
        ([Limit("gpu", slots=3)], (("gpu", 2),)),
    ],
    ids=["slots", "held until the ending", "partition", "two limits", "cost"],
)
async def test_law08_no_job_waits_for_one_back_in_line_behind_it(
    storage: Storage, rules: list[Limit], limits: tuple[tuple[str, int], ...]
) -> None:
    """A job of low priority that came back and is not reached keeps no free slot from one in front of it."""
    await storage.set_limits(rules)
    mid = await unreached(storage, limits)
    await settle(storage, done(mid))
    assert await claim_ids(storage) == ["high"]


async def test_law08_one_back_in_line_keeps_its_room_from_those_behind_it(storage: Storage) -> None:
    """Of two aside for the slot, the one in front of the returned job comes back, the one behind it does not."""
    await storage.set_limits([Limit("one", slots=1)])
    mid = await unreached(storage, (("one", 1),))
    await storage.enqueue([job("high-too", limits=(("one", 1),), priority=HIGH)])
    assert await claim_ids(storage) == ["plain01"]
    await settle(storage, done(mid))
    assert await standing(storage) == (6 + 2, 1)
    high = await claim_one(storage)
    assert high.job.id == "high"
    await settle(storage, done(high))
    assert await claim_ids(storage, 9) == ["high-too", *names(2, 8, "plain").split()]
    await run_out(storage, "high-too")
    assert await claim_ids(storage, 9) == ["low"]


async def test_law08_several_slots_and_several_back_in_line(storage: Storage) -> None:
    """As many come back as there are slots, by turn, whatever stands behind them in line for the same slots."""
    two = (("two", 1),)
    await storage.set_limits([Limit("two", slots=2)])
    await storage.enqueue([*jobs("a b", limits=two), *jobs("low0 low1", limits=two, priority=LOW)])
    assert await claim_ids(storage, 9) == ["a", "b"]
    await storage.enqueue(jobs("c d", limits=two))
    await run_out(storage, "a", "b")
    assert await claim_ids(storage, 2) == ["c", "d"]
    await storage.enqueue([*jobs(names(0, 9, "plain")), *jobs("x y z", limits=two, priority=HIGH)])
    assert await claim_ids(storage) == ["plain00"]
    await run_out(storage, "c")
    assert await claim_ids(storage, 2) == ["x", "plain01"]
    await run_out(storage, "d", "x")
    assert await claim_ids(storage, 3) == ["y", "z", "plain02"]


async def test_law08_a_costly_job_does_not_wait_for_a_cheap_one_behind_it(storage: Storage) -> None:
    """What fits beside it comes back with it; what does not stays aside."""
    await storage.set_limits([Limit("gpu", slots=3)])
    await storage.enqueue([job("all", limits=(("gpu", 3),)), job("low", limits=(("gpu", 2),), priority=LOW)])
    first = await claim_one(storage)
    assert await claim_ids(storage) == []
    await settle(storage, done(first))
    await storage.enqueue([job("mid", limits=(("gpu", 3),))])
    mid = await claim_one(storage)
    await storage.enqueue([*jobs(names(0, 5, "plain")), job("high", limits=(("gpu", 2),), priority=HIGH)])
    await storage.enqueue([job(f"more{n}", limits=(("gpu", 1),), priority=HIGH - 1) for n in range(2)])
    assert await claim_ids(storage) == ["plain00"]
    await settle(storage, done(mid))
    assert await claim_ids(storage, 3) == ["high", "more0", "plain01"]
    assert (await row(storage, "more1")).place is None


@pytest.mark.parametrize("how", ["window", "bucket"])
async def test_law08_nor_for_a_start_that_one_behind_it_may_make(
    storage: Storage, clock: HandClock, how: Literal["window", "bucket"]
) -> None:
    """The same of a rate."""
    await storage.set_limits([Limit("api", rate=1, per=10, how=how)])
    await storage.enqueue([job("first", limits=(("api", 1),)), job("low", limits=(("api", 1),), priority=LOW)])
    assert await claim_ids(storage, 9) == ["first"]
    clock.advance(10)
    await tend(storage)
    assert (await row(storage, "low")).place is not None
    await storage.enqueue([job("mid", limits=(("api", 1),))])
    assert await claim_ids(storage) == ["mid"]
    await storage.enqueue([*jobs(names(0, 5, "plain")), job("high", limits=(("api", 1),), priority=HIGH)])
    assert await claim_ids(storage) == ["plain00"]
    clock.advance(10)
    assert await claim_ids(storage) == ["high"]


async def test_law08_nor_for_one_that_has_kept_its_slot(storage: Storage, clock: HandClock) -> None:
    """A job that keeps its slot over its tries came back for a start, behind those in front of it."""
    order = (("order", 1),)
    await storage.set_limits([Limit("order", slots=2, rate=1, per=10, hold="ended")])
    await storage.enqueue([job("low", limits=order, priority=LOW)])
    await settle(storage, back(await claim_one(storage), 5, attempt=1))
    clock.advance(5)
    assert await claim_ids(storage) == []
    clock.advance(5)
    await tend(storage)
    assert (await row(storage, "low")).place is not None
    await storage.enqueue([job("mid", limits=order)])
    mid = await claim_one(storage)
    await storage.enqueue([*jobs(names(0, 5, "plain")), job("high", limits=order, priority=HIGH)])
    assert await claim_ids(storage) == ["plain00"]
    await settle(storage, done(mid))
    clock.advance(10)
    assert await claim_ids(storage) == ["high"]


# --- a clock that was ahead


@pytest.mark.parametrize(
    "rule", [Limit("api", rate=1, per=60.0), Limit("api", rate=1, per=60.0, how="bucket")], ids=["window", "bucket"]
)
@pytest.mark.parametrize("after", ["w", "new"], ids=["the same worker", "a new worker"])
async def test_law12_a_rate_opens_after_the_clock_was_ahead(
    storage: Storage, clock: HandClock, rule: Limit, after: str
) -> None:
    """What started then counts as started when the clock was set right, for those aside and for those in line."""
    await storage.set_limits([rule])
    await beat(storage)
    clock.advance(7_200)
    await beat(storage)
    await storage.enqueue(jobs("a b", limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["a"]
    clock.moment -= 7_200
    await beat(storage, worker=after)
    await storage.enqueue([job("c", limits=(("api", 1),))])
    assert await claim_ids(storage, 9) == []
    clock.advance(60)
    await beat(storage, worker=after)
    assert len(await claim_ids(storage, 9)) == 1
    assert await claim_ids(storage, 9) == []
    clock.advance(60)
    await beat(storage, worker=after)
    assert len(await claim_ids(storage, 9)) == 1


async def test_law12_what_is_due_later_keeps_the_time_it_had_left(storage: Storage, clock: HandClock) -> None:
    """A delay, a retry and a lease of a day that was none end as if the clock had been right."""
    await storage.enqueue(jobs("a-retry b-lost c-before"))
    await beat(storage)
    clock.advance(86_400)
    await beat(storage)
    retry = await claim_one(storage)
    await settle(storage, back(retry, 30))
    assert await claim_ids(storage, lease=30) == ["b-lost"]
    await storage.enqueue([job("delayed", delay=30)])
    clock.moment -= 86_400
    await beat(storage)
    before = await claim_one(storage)
    assert (before.job.id, await claim_ids(storage)) == ("c-before", [])
    await settle(storage, done(before))
    clock.advance(31)
    await beat(storage)
    assert sorted(await claim_ids(storage, 9)) == ["a-retry", "b-lost", "delayed"]


# --- rules changed while jobs run


async def test_law08_a_rule_raised_acts_at_once(storage: Storage) -> None:
    """Those aside come back with it, as many as now fit."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue(jobs(names(0, 6), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00"]
    await storage.set_limits([Limit("api", slots=3)])
    assert await standing(storage) == (2, 3)
    assert await claim_ids(storage, 9) == ["j01", "j02"]


async def test_law08_a_rule_lowered_ends_nothing(storage: Storage) -> None:
    """What runs goes on; new ones start when there are few enough."""
    await storage.set_limits([Limit("api", slots=3)])
    await storage.enqueue(jobs(names(0, 6), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00", "j01", "j02"]
    await storage.set_limits([Limit("api", slots=1)])
    await run_out(storage, "j00", "j01")
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "j02")
    assert await claim_ids(storage, 9) == ["j03"]


async def test_law08_a_rule_removed_holds_nobody(storage: Storage) -> None:
    """Neither slots nor rate: the rule is gone, and so is everybody's waiting."""
    await storage.set_limits([Limit("api", slots=1), Limit("other", slots=5)])
    await storage.enqueue(jobs(names(0, 4), limits=(("api", 1),)))
    assert len(await claim_ids(storage, 9)) == 1
    await storage.set_limits([Limit("api")])
    assert await claim_ids(storage, 9) == ["j01", "j02", "j03"]
    assert [each.key for each in (await storage.stats()).limits] == ["other"]


async def test_law08_the_last_rule_of_a_name_is_the_one(storage: Storage) -> None:
    """Two rules of one name in one call: as if the first had not been said, whichever of them removes it."""
    await storage.enqueue(jobs(names(0, 4), limits=(("api", 1), ("other", 1))))
    await storage.set_limits([Limit("api", slots=1), Limit("other"), Limit("api"), Limit("other", slots=2)])
    assert [each.rule for each in (await storage.stats()).limits] == [Limit("other", slots=2)]
    assert await claim_ids(storage, 9) == ["j00", "j01"]
    await storage.set_limits([Limit("other"), Limit("other", slots=3)])
    assert await claim_ids(storage, 9) == ["j02"]


async def test_law08_a_rule_set_late_counts_what_runs(storage: Storage) -> None:
    """Slots are counted from the rows, so jobs claimed before the rule are in it."""
    await storage.enqueue(jobs(names(0, 4), limits=(("api", 1),)))
    assert await claim_ids(storage, 2) == ["j00", "j01"]
    await storage.set_limits([Limit("api", slots=2)])
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "j01")
    assert await claim_ids(storage, 9) == ["j02"]


async def test_law08_a_rule_of_its_own_for_a_partition_set_late(storage: Storage) -> None:
    """Those aside for `tenant:a` follow the rule it gets."""
    await storage.set_limits([Limit("tenant", slots=1)])
    await storage.enqueue(jobs(names(0, 5), limits=(("tenant:a", 1),)))
    assert len(await claim_ids(storage, 9)) == 1
    await storage.set_limits([Limit("tenant:a", slots=3)])
    assert await claim_ids(storage, 9) == ["j01", "j02"]
    await storage.set_limits([Limit("tenant:a")])
    await run_out(storage, "j00", "j01")
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "j02")
    assert await claim_ids(storage, 9) == ["j03"]


# --- what stats say of them


async def test_law08_limits_in_use_are_shown(storage: Storage) -> None:
    """Each rule, and each partition in use: slots taken in cost, and how many stand aside."""
    rule = Limit("tenant", slots=2)
    await storage.set_limits([rule, Limit("idle", rate=3, per=60)])
    await storage.enqueue([*jobs(names(0, 3, "a"), limits=(("tenant:a", 1),)), job("b", limits=(("tenant:b", 2),))])
    await claim_ids(storage, 9)
    shown = {each.key: each for each in (await storage.stats()).limits}
    assert shown == {
        "idle": LimitUse(key="idle", rule=Limit("idle", rate=3, per=60)),
        "tenant": LimitUse(key="tenant", rule=rule),
        "tenant:a": LimitUse(key="tenant:a", rule=rule, used=2, parked=1),
        "tenant:b": LimitUse(key="tenant:b", rule=rule, used=2),
    }


async def test_law08_queue_limits_are_shown_in_use(storage: Storage) -> None:
    """A queue's own key, by the common rule."""
    await storage.set_limits([Limit("queue", slots=5)])
    await storage.enqueue(jobs("a b", queue="mail"))
    await claim_ids(storage, 9, "mail")
    shown = await use(storage, "queue:mail")
    assert shown is not None
    assert (shown.rule.slots, shown.used, shown.parked) == (5, 2, 0)


async def test_law08_a_use_ends_with_the_run(storage: Storage) -> None:
    """Nothing runs: nothing is used, however it ended."""
    await storage.set_limits([Limit("api", slots=3)])
    await storage.enqueue(jobs("a b c", limits=(("api", 1),)))
    a, b, c = await claim(storage, 9)
    await settle(storage, done(a), back(b, 60), cancelled(c))
    shown = await use(storage, "api")
    assert shown is not None
    assert (shown.used, shown.parked) == (0, 0)


async def rate_use(storage: Storage, key: str) -> tuple[int, float | None] | None:
    shown = await use(storage, key)
    assert shown in (None, {each.key: each for each in await storage.limits()}.get(key))
    return None if shown is None else (shown.starts, shown.next_start)


async def test_law08_the_use_of_a_window_is_shown(storage: Storage, clock: HandClock) -> None:
    """How many starts it counts, in cost, and when the next one is possible; also once their runs have ended."""
    await storage.set_limits([Limit("api", rate=3, per=64)])
    await storage.enqueue([job("a", limits=(("api", 2),)), *jobs("b c", limits=(("api", 1),))])
    assert await rate_use(storage, "api") == (0, None)
    first = clock()
    assert await claim_ids(storage, 1) == ["a"]
    assert await rate_use(storage, "api") == (2, None)
    clock.advance(8)
    assert await claim_ids(storage, 9) == ["b"]
    await run_out(storage, "a", "b")
    assert await rate_use(storage, "api") == (3, first + 64)
    await storage.set_limits([Limit("api", rate=1, per=64)])
    assert await rate_use(storage, "api") == (3, first + 72)
    await storage.set_limits([Pause("api")])
    assert await rate_use(storage, "api") == (3, first + 72)
    clock.advance(60)
    assert await rate_use(storage, "api") == (1, first + 72)
    clock.advance(64)
    assert await rate_use(storage, "api") == (0, None)


async def test_law08_the_use_of_a_bucket_is_shown(storage: Storage, clock: HandClock) -> None:
    """A token that is refilled in part counts as used."""
    await storage.set_limits([Limit("api", rate=2, per=64, how="bucket", burst=3)])
    await storage.enqueue(jobs(names(0, 9), limits=(("api", 1),)))
    assert await rate_use(storage, "api") == (0, None)
    first = clock()
    assert len(await claim_ids(storage, 9)) == 3
    assert await rate_use(storage, "api") == (3, first + 32)
    clock.advance(16)
    assert await rate_use(storage, "api") == (3, first + 32)
    clock.advance(32)
    assert await rate_use(storage, "api") == (2, None)


async def test_law08_a_partition_whose_rate_is_in_use_is_shown(storage: Storage, clock: HandClock) -> None:
    """Also when none of its jobs runs and none is blocked, and no longer than the rate counts its starts."""
    await storage.set_limits([Limit("tenant", rate=1, per=64)])
    await storage.enqueue([job("a", limits=(("tenant:a", 1),))])
    assert await claim_ids(storage, 9) == ["a"]
    await run_out(storage, "a")
    assert await rate_use(storage, "tenant:a") == (1, clock() + 64)
    assert await rate_use(storage, "tenant") == (0, None)
    clock.advance(65)
    assert await rate_use(storage, "tenant:a") is None


async def test_law08_partitions_with_and_without_a_rule_of_their_own_are_shown(
    storage: Storage, clock: HandClock
) -> None:
    """Each by the rule it follows, a window or a bucket."""
    first = clock()
    await storage.set_limits(
        [
            Limit("tenant", rate=2, per=64),
            Limit("tenant:b", rate=1, per=64, how="bucket", burst=2),
            Limit("tenant:c", slots=9),
            Limit("tenant:d", rate=1, per=32),
        ]
    )
    await storage.enqueue([job(f"{name}{n}", limits=((f"tenant:{name}", 1),)) for name in "abcd" for n in range(2)])
    assert await claim_ids(storage, 9) == ["a0", "a1", "b0", "b1", "c0", "c1", "d0"]
    clock.advance(16)
    assert await rate_use(storage, "tenant:a") == (2, first + 64)
    assert await rate_use(storage, "tenant:b") == (2, first + 64)
    assert await rate_use(storage, "tenant:c") == (0, None)
    assert await rate_use(storage, "tenant:d") == (1, first + 32)


@pytest.mark.parametrize("rule", ["queue", "queue:mail"])
async def test_law08_the_use_of_the_rate_of_a_queue_is_shown(storage: Storage, clock: HandClock, rule: str) -> None:
    """Under the name of the queue, whose jobs stay in line."""
    await storage.set_limits([Limit(rule, rate=1, per=64)])
    await storage.enqueue(jobs("a b", queue="mail"))
    assert await claim_ids(storage, 9, "mail") == ["a"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9, "mail") == []
    assert await rate_use(storage, "queue:mail") == (1, clock() + 64)
    clock.advance(64)
    assert await claim_ids(storage, 9, "mail") == ["b"]


async def test_law08_very_many_blocked_at_the_head_hide_nobody(storage: Storage) -> None:
    """One claim looks past as many as there are, in one step or in several."""
    await storage.set_limits([Limit("full", slots=1)])
    await storage.enqueue([job(f"b{n:04}", limits=(("full", 1),)) for n in range(1_101)])
    await storage.enqueue([job("open", priority=-1)])
    assert [row.job.id for row in await claim(storage, 1)] == ["b0000"]
    assert [row.job.id for row in await claim(storage, 5)] == ["open"]
    counts = (await storage.stats()).counts
    assert sum(each.parked for each in counts) == 1_100


async def test_law08_a_claim_that_passes_very_many_lets_others_in_between(storage: Storage) -> None:
    """It looks past as many as there are, but in steps: whoever else asks is not kept until it is through."""
    for n in range(20):  # a network may bring a question late: that nobody was answered once says nothing
        if await _answers_while_claiming(storage, f"line{n:02}"):
            return
    raise AssertionError("20 times nobody was answered before the claim was through")


async def _answers_while_claiming(storage: Storage, line: str) -> bool:
    """Is another question answered while a claim looks for the one job behind those that step aside?

    In a line of its own each time: who has stepped aside is not passed once more. All have a limit: where workflows are
    spread, those stand in one line."""
    await storage.set_limits([Limit(line, slots=1), Limit("free", slots=100_000)])
    await storage.enqueue([job(f"{line}-{n:04}", queue=line, limits=((line, 1),)) for n in range(3_001)])
    await claim(storage, 1, line)
    await storage.enqueue([job(f"{line}-open", queue=line, priority=-1, limits=(("free", 1),))])
    claiming = asyncio.create_task(claim(storage, 1, line))
    await asyncio.sleep(0)
    answered = 0
    while not claiming.done():
        await storage.enqueue([job(f"{line}-late{answered}", queue=line, priority=-2, limits=(("free", 1),))])
        answered += not claiming.done()
        await asyncio.sleep(0)  # the memory storage answers without
    assert ids(await claiming) == [f"{line}-open"]
    return answered > 0


async def test_law08_a_claim_of_few_behind_many_takes_no_more_than_asked(storage: Storage) -> None:
    await storage.set_limits([Limit("full", slots=1)])
    await storage.enqueue([job(f"b{n:03}", limits=(("full", 1),)) for n in range(200)])
    await storage.enqueue([job(f"d{n:03}", priority=-1) for n in range(100)])
    assert [row.job.id for row in await claim(storage, 3)] == ["b000", "d000", "d001"]
    assert [row.job.id for row in await claim(storage, 2)] == ["d002", "d003"]
