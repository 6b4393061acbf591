"""Limits that change while jobs run, and their use in statistics. Law 8."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    back,
    cancelled,
    claim,
    claim_ids,
    done,
    ids,
    job,
    jobs,
    names,
    run_out,
    settle,
    standing,
    use,
)
from treadle_testkit.shows import shows

# --- rules changed while jobs run


async def test_law08_a_rule_raised_acts_at_once(storage: Storage) -> None:
    """It admits as many blocked jobs as fit now."""
    await storage.set_limits([Limit("api", slots=1)])
    await storage.enqueue(jobs(names(0, 6), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00"]
    await storage.set_limits([Limit("api", slots=3)])
    assert await standing(storage) == (2, 3)
    assert await claim_ids(storage, 9) == ["j01", "j02"]


async def test_law08_a_rule_lowered_ends_nothing(storage: Storage) -> None:
    """Running jobs continue; new ones start when few enough run."""
    await storage.set_limits([Limit("api", slots=3)])
    await storage.enqueue(jobs(names(0, 6), limits=(("api", 1),)))
    assert await claim_ids(storage, 9) == ["j00", "j01", "j02"]
    await storage.set_limits([Limit("api", slots=1)])
    await run_out(storage, "j00", "j01")
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "j02")
    assert await claim_ids(storage, 9) == ["j03"]


async def test_law08_a_removed_rule_blocks_no_job(storage: Storage) -> None:
    """Without slots and rate the rule is removed, and no job waits for it."""
    await storage.set_limits([Limit("api", slots=1), Limit("other", slots=5)])
    await storage.enqueue(jobs(names(0, 4), limits=(("api", 1),)))
    assert len(await claim_ids(storage, 9)) == 1
    await storage.set_limits([Limit("api")])
    assert await claim_ids(storage, 9) == ["j01", "j02", "j03"]
    assert [limit_use.key for limit_use in (await storage.stats()).limits] == ["other"]


async def test_law08_the_last_rule_of_a_name_in_a_call_counts(storage: Storage) -> None:
    """Of two rules for one name in one call only the last counts, whichever of them removes the rule."""
    await storage.enqueue(jobs(names(0, 4), limits=(("api", 1), ("other", 1))))
    await storage.set_limits([Limit("api", slots=1), Limit("other"), Limit("api"), Limit("other", slots=2)])
    assert [limit_use.rule for limit_use in (await storage.stats()).limits] == [Limit("other", slots=2)]
    assert await claim_ids(storage, 9) == ["j00", "j01"]
    await storage.set_limits([Limit("other"), Limit("other", slots=3)])
    assert await claim_ids(storage, 9) == ["j02"]


async def test_law08_a_rule_set_late_counts_running_jobs(storage: Storage) -> None:
    """Slots are counted from the rows, including jobs claimed before the rule existed."""
    await storage.enqueue(jobs(names(0, 4), limits=(("api", 1),)))
    assert await claim_ids(storage, 2) == ["j00", "j01"]
    await storage.set_limits([Limit("api", slots=2)])
    assert await claim_ids(storage, 9) == []
    await run_out(storage, "j01")
    assert await claim_ids(storage, 9) == ["j02"]


async def test_law08_a_rule_of_its_own_for_a_partition_set_late(storage: Storage) -> None:
    """Jobs blocked on `tenant:a` follow its new rule."""
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


# --- limits in stats


async def test_law08_limits_in_use_are_shown(storage: Storage) -> None:
    """Each rule and each partition in use, with the slots taken (by cost) and the number of blocked jobs."""
    rule = Limit("tenant", slots=2)
    await storage.set_limits([rule, Limit("idle", rate=3, per=60)])
    await storage.enqueue([*jobs(names(0, 3, "a"), limits=(("tenant:a", 1),)), job("b", limits=(("tenant:b", 2),))])
    await claim_ids(storage, 9)
    shown = {limit_use.key: limit_use for limit_use in (await storage.stats()).limits}
    assert shown == {
        "idle": LimitUse(key="idle", rule=Limit("idle", rate=3, per=60)),
        "tenant": LimitUse(key="tenant", rule=rule),
        "tenant:a": LimitUse(key="tenant:a", rule=rule, used=2, blocked=1),
        "tenant:b": LimitUse(key="tenant:b", rule=rule, used=2),
    }


async def test_law08_queue_limits_are_shown_in_use(storage: Storage) -> None:
    """Under the queue's own key, with the common rule."""
    await storage.set_limits([Limit("queue", slots=5)])
    await storage.enqueue(jobs("a b", queue="mail"))
    await claim_ids(storage, 9, "mail")
    shown = await use(storage, "queue:mail")
    assert shown is not None
    assert (shown.rule.slots, shown.used, shown.blocked) == (5, 2, 0)


async def test_law08_a_use_ends_with_the_run(storage: Storage) -> None:
    """A limit without running jobs shows no use, whichever way they ended."""
    await storage.set_limits([Limit("api", slots=3)])
    await storage.enqueue(jobs("a b c", limits=(("api", 1),)))
    a, b, c = await claim(storage, 9)
    await settle(storage, done(a), back(b, 60), cancelled(c))
    shown = await use(storage, "api")
    assert shown is not None
    assert (shown.used, shown.blocked) == (0, 0)


async def rate_use(storage: Storage, key: str) -> tuple[int, float | None] | None:
    shown = await use(storage, key)
    assert shown in (None, {limit_use.key: limit_use for limit_use in await storage.limits()}.get(key))
    return None if shown is None else (shown.starts, shown.next_start)


async def test_law08_the_use_of_a_window_is_shown(storage: Storage, clock: HandClock) -> None:
    """The limit shows its starts by cost and the time of the next possible start, also after the runs have ended."""
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
    """A partly refilled token counts as used."""
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
    """It is shown as long as the rate counts its starts, also if no job of it runs or is blocked."""
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
    """Each by the rule that it follows, a window or a bucket."""
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
    """A rule under the name of a queue blocks no job: they stay queued."""
    await storage.set_limits([Limit(rule, rate=1, per=64)])
    await storage.enqueue(jobs("a b", queue="mail"))
    assert await claim_ids(storage, 9, "mail") == ["a"]
    await run_out(storage, "a")
    assert await claim_ids(storage, 9, "mail") == []
    assert await rate_use(storage, "queue:mail") == (1, clock() + 64)
    clock.advance(64)
    assert await claim_ids(storage, 9, "mail") == ["b"]


@shows("one claim finds the job behind 1,100 blocked ones")
async def test_law08_a_claim_finds_the_job_behind_very_many_blocked_ones(storage: Storage) -> None:
    """One claim passes any number of blocked jobs, in one step or in several."""
    await storage.set_limits([Limit("full", slots=1)])
    await storage.enqueue([job(f"b{n:04}", limits=(("full", 1),)) for n in range(1_101)])
    await storage.enqueue([job("open", priority=-1)])
    assert [row.job.id for row in await claim(storage, 1)] == ["b0000"]
    assert [row.job.id for row in await claim(storage, 5)] == ["open"]
    counts = (await storage.stats()).counts
    assert sum(count.blocked for count in counts) == 1_100


@shows("a claim that passes many blocked jobs lets other calls run in between")
async def test_law08_other_calls_run_during_a_claim_that_passes_very_many_jobs(storage: Storage) -> None:
    """It passes any number of jobs, but in steps: other calls are served between them."""
    for n in range(20):  # a network may delay the other call, so one try without an answer proves nothing
        if await _answers_while_claiming(storage, f"line{n:02}"):
            return
    raise AssertionError("in 20 tries no other call returned before the claim did")


async def _answers_while_claiming(storage: Storage, line: str) -> bool:
    """Is another call answered while a claim searches for the one job behind those that it blocks?

    Each try has a queue of its own, because blocked jobs are passed only once. All jobs have a limit: a sharded storage
    keeps such jobs on one shard."""
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
        await asyncio.sleep(0)  # the memory storage never suspends
    assert ids(await claiming) == [f"{line}-open"]
    return answered > 0


async def test_law08_a_claim_behind_many_blocked_jobs_takes_no_more_than_its_limit(storage: Storage) -> None:
    await storage.set_limits([Limit("full", slots=1)])
    await storage.enqueue([job(f"b{n:03}", limits=(("full", 1),)) for n in range(200)])
    await storage.enqueue([job(f"d{n:03}", priority=-1) for n in range(100)])
    taken: list[str] = []
    while len(taken) < 3:  # a storage that bounds the time of a claim may return some of them
        taken += (some := await claim_ids(storage, 3 - len(taken)))
        assert some
    assert taken == ["b000", "d000", "d001"]
    assert await claim_ids(storage, 2) == ["d002", "d003"]
