"""Several connections to the same data: the effects of concurrent calls. Laws 1, 2, 3, 5, 8 and 10."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from msgspec.structs import replace

from treadle.core.errors import KeyHeld
from treadle.core.limit_model import Limit
from treadle.core.model import HeartbeatResult, Outcome, Presence
from treadle.core.query_model import Query
from treadle.storage.capabilities import fused
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    READY,
    RUNNING,
    WAITING,
    ask,
    back,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    ids,
    job,
    jobs,
    renewal,
    row,
    said,
    settle,
    states,
)
from treadle_testkit.conformance.run import Connect
from treadle_testkit.shows import shows

PEERS = 8


async def peers(storage: Storage, connect: Connect) -> list[Storage]:
    return [storage, *[await connect() for _ in range(PEERS - 1)]]


async def unfinished(storage: Storage) -> list[tuple[str, str]]:
    rows = (await storage.find(Query(state=(WAITING, READY, RUNNING), limit=1_000))).records
    return [(record.job.id, record.state.value) for record in rows]


@shows("eight concurrent claims take disjoint jobs", area="Queue order and claims")
async def test_law02_claims_of_many_are_disjoint(storage: Storage, connect: Connect) -> None:
    """Eight concurrent claims: each job is claimed exactly once."""
    await storage.enqueue([job(f"j{n:03}") for n in range(100)])
    taken = await asyncio.gather(*(claim_ids(peer, 20) for peer in await peers(storage, connect)))
    counts = Counter(id for some in taken for id in some)
    assert len(counts) == 100
    assert set(counts.values()) == {1}


async def test_law01_one_row_is_stored_for_a_key_that_many_enqueue_at_once(storage: Storage, connect: Connect) -> None:
    """One row is stored and returned to all callers."""
    storages = await peers(storage, connect)
    rows = await asyncio.gather(*(peer.enqueue([job(f"j{n}", key="k")]) for n, peer in enumerate(storages)))
    assert len({row.job.id for [row] in rows}) == 1
    assert len((await storage.find(Query())).records) == 1


async def test_law01_one_job_gets_a_key_that_must_be_free_for_many_at_once(storage: Storage, connect: Connect) -> None:
    """One job gets it; the other calls are refused with its id."""
    storages = await peers(storage, connect)
    calls = (peer.enqueue([job(f"j{n}", key="k", key_conflict="raise")]) for n, peer in enumerate(storages))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    [[winner]] = [answer for answer in answers if isinstance(answer, list)]
    refused = [answer for answer in answers if isinstance(answer, KeyHeld)]
    assert [error.id for error in refused] == [winner.job.id] * (PEERS - 1)


async def test_law01_a_key_replaced_by_many_at_once(storage: Storage, connect: Connect) -> None:
    """One job is left, the others are superseded."""
    storages = await peers(storage, connect)
    calls = (peer.enqueue([job(f"j{n}", key="k", key_conflict="replace")]) for n, peer in enumerate(storages))
    await asyncio.gather(*calls)
    assert len(await claim_ids(storage, 99)) == 1
    rows = (await storage.find(Query(state=(CANCELLED,)))).records
    assert [record.reason for record in rows] == ["superseded"] * (PEERS - 1)


async def test_law01_one_id_sent_by_many_at_once(storage: Storage, connect: Connect) -> None:
    """The options of the first one, for all callers."""
    storages = await peers(storage, connect)
    rows = await asyncio.gather(*(peer.enqueue([job("a", payload=str(n))]) for n, peer in enumerate(storages)))
    assert len({row.job.payload for [row] in rows}) == 1
    assert await claim_ids(storage, 9) == ["a"]


async def test_law01_overlapping_calls_do_not_deadlock_and_store_each_job_once(
    storage: Storage, connect: Connect
) -> None:
    """Calls that share ids in opposite orders cause no deadlock and store nothing twice."""
    names = [f"j{n:02}" for n in range(30)]
    storages = await peers(storage, connect)
    calls = (peer.enqueue([job(id) for id in (names if n % 2 else names[::-1])]) for n, peer in enumerate(storages))
    await asyncio.gather(*calls)
    assert sorted(await claim_ids(storage, 99)) == names


@shows("of concurrent outcomes for one job, exactly one is applied")
async def test_law03_one_of_two_concurrent_outcomes_is_applied(storage: Storage, connect: Connect) -> None:
    """Exactly one is applied."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    calls = [peer.settle([done(a, result=str(n))]) for n, peer in enumerate(await peers(storage, connect))]
    answers = [settled.status for [settled] in await asyncio.gather(*calls)]
    assert sorted(answers) == ["applied"] + ["stale"] * (PEERS - 1)


async def test_law10_two_concurrent_claims_of_one_id_return_the_same_jobs(storage: Storage, connect: Connect) -> None:
    """The same claim id over two connections, as after a lost answer, gets the same jobs."""
    await storage.enqueue([job(f"j{n}") for n in range(20)])
    other, request = await connect(), ask(5)
    one, two = await asyncio.gather(storage.claim(request), other.claim(request))
    assert sorted(ids(one.records)) == sorted(ids(two.records))
    assert await state_counts(storage) == {"running": 5, "ready": 15}


async def state_counts(storage: Storage) -> dict[str, int]:
    return {count.state.value: count.jobs for count in (await storage.stats()).counts}


@pytest.mark.parametrize("seed", range(3))
async def test_law05_upstreams_that_end_at_once(storage: Storage, connect: Connect, seed: int) -> None:
    """Concurrent connections settle one upstream each: every join is queued, and only once."""
    storages, rng = await peers(storage, connect), random.Random(seed)
    for turn in range(5):
        parents = [f"{turn}-p{n}" for n in range(PEERS)]
        joins = [job(f"{turn}-j{n}", after=tuple(rng.sample(parents, 4)), queue="join") for n in range(6)]
        await storage.enqueue([job(id) for id in parents])
        rows = await claim(storage, 99)
        await storage.enqueue(joins)
        rng.shuffle(rows)
        await asyncio.gather(*(peer.settle([done(row)]) for peer, row in zip(storages, rows, strict=True)))
        assert sorted(await claim_ids(storage, 99, "join")) == sorted(waiting.id for waiting in joins)


@shows("a job that is stored at the moment its upstreams end is queued all the same", area="Dependencies and promises")
@pytest.mark.parametrize("seed", range(3))
async def test_law05_joins_stored_while_their_upstreams_end(storage: Storage, connect: Connect, seed: int) -> None:
    """They wait for jobs that are being settled concurrently; whichever call is first, no join waits forever."""
    storages, rng = await peers(storage, connect), random.Random(seed)
    for turn in range(5):
        parents = [f"{turn}-p{n}" for n in range(4)]
        await storage.enqueue([job(id) for id in parents])
        rows = await claim(storage, 99)
        batches = [[job(f"{turn}-{n}", after=tuple(rng.sample(parents, 3)), queue="join")] for n in range(4)]
        calls = [peer.settle([done(row)]) for peer, row in zip(storages, rows, strict=False)]
        calls += [peer.enqueue(batch) for peer, batch in zip(storages[4:], batches, strict=True)]  # type: ignore[misc]
        rng.shuffle(calls)
        await asyncio.gather(*calls)
        assert len(await claim_ids(storage, 99, "join")) == 4


async def test_law05_failures_and_successes_at_once(storage: Storage, connect: Connect) -> None:
    """In any order, a join that allows no failure is doomed, and one that allows any is queued."""
    await storage.enqueue([job(f"p{n}") for n in range(PEERS)])
    rows, after = await claim(storage, 99), tuple(f"p{n}" for n in range(PEERS))
    await storage.enqueue(
        [job("all", after=after), job("any", after=after, failures_allowed=None), job("down", after=("all",))]
    )
    outcomes = [done(row) if n % 2 else failed(row) for n, row in enumerate(rows)]
    storages = await peers(storage, connect)
    await asyncio.gather(*(peer.settle([outcome]) for peer, outcome in zip(storages, outcomes, strict=True)))
    assert await states(storage, "all any down") == [CANCELLED, READY, CANCELLED]


async def test_law05_crossing_settles_do_not_block_each_other(storage: Storage, connect: Connect) -> None:
    """Calls that count down the same joins in opposite orders do not deadlock."""
    names = [f"p{n:02}" for n in range(40)]
    await storage.enqueue([job(id) for id in names])
    rows = {record.job.id: record for record in await claim(storage, 99)}
    await storage.enqueue([job(f"j{n}", after=tuple(names[n::5]), queue="join") for n in range(5)])
    storages = await peers(storage, connect)
    parts = [names[n::PEERS] if n % 2 else names[n::PEERS][::-1] for n in range(PEERS)]
    calls = (peer.settle([done(rows[id]) for id in part]) for peer, part in zip(storages, parts, strict=True))
    assert all(settled.status == "applied" for answer in await asyncio.gather(*calls) for settled in answer)
    assert len(await claim_ids(storage, 99, "join")) == 5


async def test_law08_slots_hold_against_many(storage: Storage, connect: Connect) -> None:
    """Eight concurrent claims start no more jobs than the rule allows."""
    await storage.set_limits([Limit("api", slots=5), Limit("mail", rate=7, per=60)])
    await storage.enqueue([job(f"a{n:02}", limits=(("api", 1),)) for n in range(40)])
    await storage.enqueue([job(f"m{n:02}", limits=(("mail", 1),)) for n in range(40)])
    storages = await peers(storage, connect)
    taken = [id for some in await asyncio.gather(*(claim_ids(peer, 5) for peer in storages)) for id in some]
    taken += [id for some in await asyncio.gather(*(claim_ids(peer, 5) for peer in storages)) for id in some]
    assert Counter(id[0] for id in taken) == {"a": 5, "m": 7}


@shows("a late outcome and a concurrent claim never both get the job")
async def test_law04_settled_or_lost_but_not_both(storage: Storage, connect: Connect, clock: HandClock) -> None:
    """If a late outcome and a claim are concurrent, exactly one of them succeeds."""
    other = await connect()
    for n in range(10):
        await storage.enqueue([job(f"j{n}")])
        late = await claim_one(storage, lease=10)
        clock.advance(11)
        [settled], taken = await asyncio.gather(storage.settle([done(late)]), claim_ids(other))
        assert (settled.status == "applied") == (taken == [])
        if taken:
            await settle(storage, done(await row(storage, f"j{n}")))


@shows("eight concurrent clients that claim, enqueue and settle run each job once")
async def test_more_concurrent_workers_run_each_job_once(storage: Storage, connect: Connect) -> None:
    """Eight workers claim, enqueue joins on running jobs, and settle: each job runs once, and none is left."""
    storages, rng = await peers(storage, connect), random.Random(7)
    total, seen, numbers = 120, Counter[str](), iter(range(60))
    await storage.enqueue([job(f"j{n:03}") for n in range(total)])

    async def work(own: Storage) -> None:
        idle = 0
        while idle < 10:
            rows = await claim(own, 5)
            idle = 0 if rows else idle + 1
            seen.update(record.job.id for record in rows)
            if rows and (n := next(numbers, None)) is not None:
                after = {f"j{rng.randrange(total):03}", *ids(rows[:2])}
                await own.enqueue([job(f"join{n:03}", after=tuple(after), failures_allowed=None)])
            await own.settle([failed(record) if rng.random() < 0.1 else done(record) for record in rows])

    await asyncio.gather(*(work(peer) for peer in storages))
    assert await unfinished(storage) == []
    assert len(seen) == total + 60
    assert set(seen.values()) == {1}


@shows("a call that is repeated over another connection has the effect of one call", area="Crashes and outages")
async def test_law10_a_call_repeated_over_another_connection_acts_once(storage: Storage, connect: Connect) -> None:
    """Each call is made twice, the second time over another connection, with the effect of one call."""
    other, rng = await connect(), random.Random(3)
    specs = [
        job(f"j{n:02}", limits=(("api", 1),) if n % 3 else (), key=f"k{n % 7}" if n % 5 == 0 else None)
        for n in range(40)
    ]
    await storage.set_limits([Limit("api", slots=4)])
    first = await storage.enqueue(specs)
    assert ids(await other.enqueue(specs)) == ids(first)
    runs: Counter[str] = Counter()
    while True:
        request = ask(6)
        taken = (await storage.claim(request)).records
        again = (await other.claim(request)).records
        assert sorted((record.job.id, record.version) for record in taken) == sorted(
            (record.job.id, record.version) for record in again
        )
        if not taken:
            break
        runs.update(record.job.id for record in taken)
        outcomes = [
            back(record, attempt=1)
            if record.attempt == 0 and rng.random() < 0.3
            else done(record, attempt=1, followups=(job(f"{record.job.id}-then"),) if len(record.job.id) == 3 else ())
            for record in taken
        ]
        await settle(storage, *outcomes)
        await settle(other, *outcomes)
    assert await unfinished(storage) == []
    retried = [record for record in (await storage.find(Query(limit=500))).records if runs[record.job.id] > 2]
    assert retried == []
    assert sum(id.endswith("-then") for id in runs) == len(set(ids(first)))


async def test_law03_a_checkpoint_is_stored_unless_the_heartbeat_returns_it_as_unsaved(
    storage: Storage, connect: Connect
) -> None:
    """Other calls use the row meanwhile. If a result were reported as stored and then lost, its step would run
    again."""
    others = (await peers(storage, connect))[1:]
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    late = replace(back(a), version=a.version + 9)
    for n in range(10):
        step, held = (f"s{n}", f'"{n}"'), HeartbeatResult(unsaved=frozenset("a"))
        while held.unsaved:
            beating = storage.heartbeat(Presence(worker="w"), [renewal(a, checkpoints=(step,))], 30)
            held, answers = await asyncio.gather(beating, asyncio.gather(*(said(peer, late) for peer in others)))
            assert answers == [["stale"]] * len(others)
            assert (step in (await row(storage, "a")).checkpoints) is (not held.unsaved), f"step {n} and {held}"
        assert not held.lost


@pytest.mark.parametrize("what", ["limit", "queue"])
async def test_law08_a_rule_holds_for_what_is_sent_after_it(storage: Storage, connect: Connect, what: str) -> None:
    """A job that is enqueued after the rule obeys it, also if a claim is in flight."""
    storages, going = await peers(storage, connect), True
    taken: Counter[str] = Counter()

    async def take(own: Storage, n: int) -> None:
        while going:
            for record in await claim(own, 9, *(f"q{round_}" for round_ in range(20)), worker=f"w{n}"):
                taken[record.job.queue] += 1
            await asyncio.sleep(0)

    workers = [asyncio.create_task(take(peer, n)) for n, peer in enumerate(storages[1:])]
    try:
        for n in range(20):
            name = f"l{n}" if what == "limit" else f"queue:q{n}"
            limits = ((f"l{n}", 1),) if what == "limit" else ()
            await storage.set_limits([Limit(name, slots=1)])
            await storage.enqueue([job(f"j{n}-{number}", queue=f"q{n}", limits=limits) for number in range(6)])
    finally:
        going = False
        await asyncio.gather(*workers)
    assert set(taken.values()) <= {1}


async def test_law08_slots_of_queues_with_several_workers(storage: Storage, connect: Connect) -> None:
    """A queue never runs more jobs than it has slots, and all jobs run in the end."""
    storages, slots = await peers(storage, connect), {"one": 3, "two": 11, "three": 200}
    await storage.set_limits([Limit(f"queue:{queue}", slots=count) for queue, count in slots.items()])
    for queue in slots:
        await storage.enqueue([job(f"{queue}{n:03}", queue=queue) for n in range(80)])
    running, most, unfinished_jobs = Counter[str](), Counter[str](), 240

    async def work(own: Storage) -> None:
        nonlocal unfinished_jobs
        async with asyncio.timeout(60):
            while unfinished_jobs:
                rows = await claim(own, 9, *slots)
                for record in rows:
                    running[record.job.queue] += 1
                    most[record.job.queue] = max(most[record.job.queue], running[record.job.queue])
                await asyncio.sleep(0)
                for record in rows:
                    running[record.job.queue] -= 1
                unfinished_jobs -= len(rows)
                await own.settle([done(record) for record in rows])

    await asyncio.gather(*(work(peer) for peer in storages))
    assert most["one"] <= 3
    assert most["two"] <= 11
    assert await unfinished(storage) == []


@pytest.mark.parametrize("many", [1, 8])
async def test_law08_strict_order_with_several_workers(storage: Storage, connect: Connect, many: int) -> None:
    """One slot held until the ending: no job starts before an earlier job of its account has started."""
    storages, accounts, total = (await peers(storage, connect))[:many], 12, 240
    await storage.set_limits([Limit("account", slots=1, hold="ended")])
    await storage.enqueue([job(f"{n:04}", limits=((f"account:{n % accounts}", 1),)) for n in range(total)])
    started, early = [list[int]() for _ in range(accounts)], list[str]()

    async def work(own: Storage) -> None:
        outcomes: list[Outcome] = []
        async with asyncio.timeout(60):
            while outcomes or sum(map(len, started)) < total:
                if both := fused(own):
                    _, claimed = await both.settle_claim(outcomes, ask(8))
                else:
                    await own.settle(outcomes)
                    claimed = await own.claim(ask(8))
                for record in claimed.records:
                    number = int(record.job.id)
                    before = started[number % accounts]
                    if len(before) * accounts + number % accounts != number:
                        early.append(record.job.id)
                    before.append(number)
                outcomes = [done(record) for record in claimed.records]

    await asyncio.gather(*(work(peer) for peer in storages))
    assert early == []
    assert await unfinished(storage) == []
