"""Pauses, rules of queues, and jobs that a limit no longer concerns. Laws 7 and 8."""

from __future__ import annotations

from collections import Counter

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import Claim
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    WAITING,
    back,
    beat,
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    ids,
    job,
    jobs,
    names,
    out,
    renewal,
    row,
    run,
    run_out,
    settle,
    standing,
    use,
)

# --- pauses


async def test_law08_a_rule_of_zero_slots_is_a_pause(storage: Storage) -> None:
    """No job starts, running jobs continue, and removing the rule resumes in the same order."""
    await storage.enqueue(jobs("a b c", limits=(("mail", 1),)))
    a = await claim_one(storage)
    await storage.set_limits([Limit("mail", slots=0)])
    assert await claim_ids(storage, 9) == []
    assert await beat(storage, renewal(a)) == set()
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == []
    await storage.set_limits([Limit("mail")])
    assert await claim_ids(storage, 9) == ["b", "c"]


async def test_law08_a_rule_of_rate_zero_is_a_pause(storage: Storage) -> None:
    """With rate=0 no job starts, and claims return no next time."""
    await storage.set_limits([Limit("mail", rate=0)])
    await storage.enqueue(jobs("a", limits=(("mail", 1),)))
    answer = await claimed(storage, 9)
    assert (answer.records, answer.next_in) == ((), None)
    await storage.set_limits([Limit("mail", rate=1)])
    assert await claim_ids(storage, 9) == ["a"]


async def test_law08_each_of_many_limits_freed_at_once_admits_what_fits(storage: Storage) -> None:
    """The rule has slots only or a rate too, holds them until the ending or not, and one of the jobs is expensive."""
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
    assert await claim(storage, 20) == []  # all are blocked now
    let_in = (
        ["dear2", "kept2", "kept3", "paced2", "paced3", "plain2", "plain3"],
        ["dear3", "dear4", "kept4", "kept5", "paced4", "paced5", "plain4", "plain5"],
        ["dear5"],
    )
    for expected in let_in:
        await storage.settle([done(record) for record in running])
        running = await claim(storage, 20)
        assert sorted(record.id for record in running) == expected


async def test_law08_a_paused_queue_moves_no_job(storage: Storage) -> None:
    """A claim checks the queue's own limit before its jobs, so it blocks no job, and all keep their positions."""
    await storage.enqueue([*jobs("a b", queue="mail"), job("c", queue="other")])
    await storage.set_limits([Limit("queue:mail", slots=0)])
    before = await storage.get(["a", "b"])
    assert await claim_ids(storage, 9, "mail", "other") == ["c"]
    assert await storage.get(["a", "b"]) == before
    await storage.set_limits([Limit("queue:mail")])
    assert await claim_ids(storage, 9, "mail") == ["a", "b"]


async def test_law08_a_queue_with_slots_runs_no_more_jobs(storage: Storage) -> None:
    """A queue's limit counts all its jobs; the others stay queued."""
    await storage.set_limits([Limit("queue:mail", slots=2)])
    await storage.enqueue(jobs(names(0, 5), queue="mail"))
    assert await claim_ids(storage, 9, "mail") == ["j00", "j01"]
    assert await standing(storage, "mail") == (3, 0)
    await run_out(storage, "j00")
    assert await claim_ids(storage, 9, "mail") == ["j02"]


async def test_law08_every_queue_obeys_the_common_rule(storage: Storage) -> None:
    """ "queue" is the rule of each queue without a rule of its own, counted separately."""
    await storage.set_limits([Limit("queue", slots=1), Limit("queue:c", slots=2)])
    for queue in "abc":
        await storage.enqueue(jobs(names(0, 3, queue), queue=queue))
    assert await claim_ids(storage, 9, "a", "b", "c") == ["a00", "b00", "c00", "c01"]


async def test_law08_queues_with_room_share_what_others_cannot_use(storage: Storage) -> None:
    """Each queue gives jobs if it has room, up to its share; then the others give more. A job that ran passes."""
    await storage.set_limits([Limit("queue", slots=50), Limit("queue:few", slots=2), Limit("queue:none", slots=0)])
    for queue in ("much", "few", "none"):
        await storage.enqueue(jobs(names(0, 8, queue), queue=queue))
    shares = (("much", 3), ("few", 3), ("none", 3))
    first = await storage.claim(Claim(worker="side#1", queues=shares, limit=9, lease=30.0))
    assert Counter(record.job.queue for record in first.records) == {"much": 7, "few": 2}
    second = await storage.claim(Claim(worker="side#2", queues=shares, limit=9, lease=30.0))
    assert ids(second.records) == ["much07"]
    few = next(record for record in first.records if record.job.queue == "few")
    await settle(storage, back(few, function_done=True))
    assert await claim_ids(storage, 9, "few") == [few.id, "few02"]


async def test_law08_a_queue_with_a_rate_blocks_no_job(storage: Storage, clock: HandClock) -> None:
    """The rule of a queue may have a rate; it holds up the queue and blocks no single job."""
    await storage.set_limits([Limit("queue:mail", rate=2, per=10)])
    await storage.enqueue(jobs(names(0, 5), queue="mail"))
    assert await claim_ids(storage, 9, "mail") == ["j00", "j01"]
    clock.advance(9)
    assert await claim_ids(storage, 9, "mail") == []
    assert await standing(storage, "mail") == (3, 0)
    clock.advance(1)
    assert await claim_ids(storage, 9, "mail") == ["j02", "j03"]


async def test_law08_a_paused_queue_charges_no_limit(storage: Storage, clock: HandClock) -> None:
    """The limits of its jobs are not charged while it is paused."""
    await storage.set_limits([Limit("queue:mail", slots=0), Limit("api", rate=1, per=60)])
    await storage.enqueue([job("a", queue="mail", limits=(("api", 1),)), job("b", limits=(("api", 1),))])
    assert await claim_ids(storage, 9, "mail", "default") == ["b"]


async def test_law08_a_claim_returns_when_the_rate_of_a_queue_opens(storage: Storage, clock: HandClock) -> None:
    """Claims of that queue return it as long as a job is queued there."""
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
    assert nobody_left.next_in > 10  # from their leases, not from a rate


# --- jobs that ran


async def test_law07_a_job_whose_function_is_done_passes_every_limit(storage: Storage) -> None:
    """Slots, rates, pauses: a job whose function is done only has to end and does not wait for room."""
    rules = [Limit("slots", slots=0), Limit("rate", rate=0), Limit("queue:default", slots=0)]
    await storage.set_limits(rules)
    await storage.enqueue([job("a", function_done=True, limits=(("slots", 1), ("rate", 1)))])
    a = await claim_one(storage)
    assert a.job.id == "a"
    await settle(storage, done(a))


async def test_law07_a_job_whose_function_is_done_uses_no_limit(storage: Storage) -> None:
    """A job whose function is done takes no slot and counts against no rate."""
    await storage.set_limits([Limit("one", slots=1), Limit("api", rate=1, per=60)])
    both = (("one", 1), ("api", 1))
    await storage.enqueue(
        [job("a", function_done=True, limits=both), job("b", function_done=True, limits=both), job("c", limits=both)]
    )
    assert await claim_ids(storage, 9) == ["a", "b", "c"]
    assert [one.used for one in [await use(storage, "one")] if one] == [1]


async def test_law08_a_job_whose_function_is_done_takes_the_slot_it_keeps(storage: Storage) -> None:
    """A limit with hold="ended" counts it from the call that claims it."""
    await storage.set_limits([Limit("order", slots=1, hold="ended"), Limit("queue:mail", slots=2, hold="ended")])
    both = (("order", 1),)
    await storage.enqueue(
        [job("a", limits=(("order", 2),)), job("b", function_done=True, limits=both), job("c", limits=both)]
    )
    await run(storage, "a")
    assert await claim_ids(storage, 9) == ["b"]
    await storage.enqueue([job("d", queue="mail", function_done=True), *jobs("e f", queue="mail")])
    assert await claim_ids(storage, 9, "mail") == ["d", "e"]
    await settle(storage, done(await row(storage, "b")))
    assert await claim_ids(storage, 9) == ["c"]


async def test_law07_a_parent_queued_for_its_ending_passes_a_pause(storage: Storage) -> None:
    """A pause that began while its children ran does not stop it from ending."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("p", task="")])
    await settle(storage, out(await claim_one(storage), WAITING, function_done=True, after=("p",)))
    await storage.set_limits([Limit("one", slots=0), Limit("queue", slots=0)])
    await settle(storage, done(await row(storage, "p")))
    assert await claim_ids(storage) == ["a"]
