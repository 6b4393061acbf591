"""Real costs in transactions, moves and races, and the promise of a budget. Law 8."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from treadle.core.model import Record
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import claim, claim_ids, claim_one, done, settle
from treadle_testkit.conformance.laws_spent import BOTH, ann, budget, call, counted
from treadle_testkit.conformance.laws_transaction import begin, commit
from treadle_testkit.conformance.moving_kit import carry, movable
from treadle_testkit.conformance.run import Another, Connect, UserTransaction
from treadle_testkit.shows import shows


@BOTH
async def test_more_the_transaction_of_a_run_replaces_its_cost(
    storage: Storage, user_transaction: UserTransaction, how: str
) -> None:
    """At its commit, and not if it is rolled back."""
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a", 90), call("b", 90)])
    first = await claim_one(storage)
    transaction = await begin(storage)
    await transaction.bound.settle([done(first, **ann(10))])
    await transaction.roll_back()
    await transaction.close()
    assert await counted(storage) == 90
    transaction = await begin(storage)
    assert [answer.status for answer in await transaction.bound.settle([done(first, **ann(10))])] == ["applied"]
    await commit(transaction)
    assert await claim_ids(storage, 9) == ["b"]
    assert await counted(storage) == 100


@BOTH
async def test_more_a_moved_start_is_replaced(storage: Storage, clock: HandClock, another: Another, how: str) -> None:
    """The target finds the starts of the source."""
    movable(storage)
    await storage.set_limits([budget(how)])
    await storage.enqueue([call("a"), call("b", 20)])
    early = await claim_one(storage)
    clock.advance(1)
    assert await claim_ids(storage, 1) == ["b"]
    target = await another()
    await carry(storage, target)
    await settle(target, done(early, **ann(10)))
    assert await counted(target) == (30 if how == "window" else 29)


async def test_law08_real_costs_of_concurrent_runs_add_up(storage: Storage, connect: Connect) -> None:
    """Four workers claim and settle at once; nothing is lost of what they have spent, and nothing is counted twice."""
    await storage.set_limits([budget(rate=100)])
    await storage.enqueue([call(f"j{n:02}", 10) for n in range(40)])
    spent = Counter[str]()

    async def work(peer: Storage, number: int) -> None:
        rng = random.Random(number)
        while True:
            [*records] = await claim(peer, 2, worker=f"w{number}")
            for record in records:
                spent[record.id] = rng.randint(0, 5)
            if not records:
                return
            await settle(peer, *(done(record, **ann(spent[record.id])) for record in records))

    await asyncio.gather(*[work(await connect(), number) for number in range(4)])
    while records := await claim(storage, 9):  # a worker ends while others still run the jobs before it
        spent.update({record.id: 1 for record in records})
        await settle(storage, *(done(record, **ann(1)) for record in records))
    assert await counted(storage) == sum(spent.values())
    assert len(spent) == 40 or sum(spent.values()) > 90


@shows("a claim starts a job only if its reservation fits into what the budget has left")
@pytest.mark.parametrize("seed", range(4))
async def test_law08_a_start_is_admitted_only_if_it_fits(storage: Storage, clock: HandClock, seed: int) -> None:
    """Random costs, reserved and real: what a claim admits fits into what is left of the window then."""
    rng, rate, per = random.Random(seed), 100, 60.0
    await storage.set_limits([budget(rate=rate, per=per)])
    jobs = {f"j{n:03}": rng.choice([5, 10, 20, 40]) for n in range(60)}
    await storage.enqueue([call(id, cost) for id, cost in jobs.items()])
    starts: dict[str, tuple[float, int]] = {}
    running: list[Record] = []
    while len(starts) < len(jobs) or running:
        for record in (taken := await claim(storage, rng.randint(1, 4), lease=9_000)):
            starts[record.id] = clock(), jobs[record.id]
        running += taken
        now = [cost for moment, cost in starts.values() if moment + per > clock()]
        assert not taken or sum(now) <= rate
        rng.shuffle(running)
        for record in running[: rng.randint(0, 3)]:
            real = round(jobs[record.id] * rng.choice([0, 0.5, 1, 1, 1.5]))
            await settle(storage, done(record, **ann(real)))
            starts[record.id] = starts[record.id][0], real
            running.remove(record)
        assert await counted(storage) == sum(cost for moment, cost in starts.values() if moment + per > clock())
        clock.advance(rng.choice([0.0, 0.5, 3.0, 15.0, 60.0]))


async def test_more_a_window_has_one_record_for_the_starts_of_a_claim(storage: Storage, clock: HandClock) -> None:
    """The cost of a start and the length of the window do not matter."""
    movable(storage)
    await storage.set_limits([budget(rate=100_000, per=30 * 86_400.0)])
    await storage.enqueue([call(f"j{n:02}", 2_000) for n in range(60)])
    for _ in range(25):
        first, second = await claim(storage, 2, lease=9_000)
        await settle(storage, done(first, **ann(1_900)), done(second, **ann(2_100)))
        clock.advance(1)
    assert await claim(storage, 2) == []
    [rate] = [rate for rate in (await movable(storage).unload(None, 1)).rates if rate.key == "tokens:ann"]
    assert [cost for _, cost in rate.starts] == [4_000] * 25
