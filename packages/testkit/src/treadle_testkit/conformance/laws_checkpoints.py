"""Checkpoints: a job may have thousands, each is stored once, and a restart deletes the steps. Laws 3 and 10."""

from __future__ import annotations

import pytest

from treadle.core.model import OURS, ROUND, Pairs
from treadle.core.query_model import Order, Query
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    READY,
    SUCCEEDED,
    back,
    beat,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    renewal,
    row,
    said,
    settle,
)
from treadle_testkit.conformance.moving_kit import carry, movable
from treadle_testkit.conformance.run import Another
from treadle_testkit.shows import shows

MANY = 1_000


def steps(first: int, last: int) -> Pairs:
    return tuple((f"s{n}", f'"value:{n}"') for n in range(first, last))


@shows("a job with a thousand steps gets them in order with each claim")
async def test_law03_a_thousand_checkpoints_are_returned_in_order(storage: Storage) -> None:
    """They come by renewals and outcomes, and each claim and look-up returns them as they were stored first."""
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    for n in range(10):
        assert await beat(storage, renewal(a, checkpoints=steps(90 * n, 90 * n + 90))) == frozenset()
    twice = ("s7", "new"), *steps(900, 950), ("s7", "newer")
    assert await beat(storage, renewal(a, checkpoints=twice)) == frozenset()
    outcome = back(a, checkpoints=steps(950, MANY))
    await settle(storage, outcome)
    assert await said(storage, outcome) == ["applied"]
    expected = tuple((name, "newer" if name == "s7" else text) for name, text in steps(0, MANY))
    assert (await row(storage, "a")).checkpoints == expected
    again = await claim_one(storage)
    assert again.checkpoints == expected
    assert (await storage.enqueue([again.job]))[0].checkpoints == expected
    await settle(storage, done(again, checkpoints=(("last", "1"),)))
    assert (await row(storage, "a")).checkpoints == (*expected, ("last", "1"))


async def test_law10_an_outcome_with_another_checkpoint_is_no_repetition(storage: Storage) -> None:
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    await settle(storage, back(a, delay=60.0, checkpoints=steps(0, 3)))
    assert await said(storage, back(a, delay=60.0, checkpoints=(("s1", "other"),))) == ["stale"]
    assert await said(storage, back(a, delay=60.0, checkpoints=steps(0, 2))) == ["applied"]


async def test_law09_a_pruned_job_leaves_no_checkpoints(storage: Storage, clock: HandClock) -> None:
    """A later job with its id has none."""
    await storage.enqueue([job("a", keep=0)])
    a = await claim_one(storage)
    await beat(storage, renewal(a, checkpoints=steps(0, 3)))
    await settle(storage, done(a))
    clock.advance(10_000)
    assert await storage.prune(10) == 1
    await storage.enqueue([job("a")])
    assert (await claim_one(storage)).checkpoints == ()


@shows("a restart deletes the steps of a job in the same change, and only these")
async def test_law03_a_restart_deletes_the_steps(storage: Storage) -> None:
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    await beat(storage, renewal(a, checkpoints=((f"{OURS}x", "1"), *steps(0, 5), (f"{OURS}y", "2"))))
    restart = back(a, checkpoints=((ROUND, '{"number":1}'),))
    await settle(storage, restart)
    kept = ((f"{OURS}x", "1"), (f"{OURS}y", "2"), (ROUND, '{"number":1}'))
    assert (await row(storage, "a")).checkpoints == kept
    assert await said(storage, restart) == ["applied"]
    a = await claim_one(storage)
    assert a.checkpoints == kept
    await beat(storage, renewal(a, checkpoints=steps(3, 5)))
    await settle(storage, back(a, checkpoints=((ROUND, '{"number":2}'), ("s9", "9"))))
    after = (*kept[:2], (ROUND, '{"number":2}'), ("s9", "9"))
    assert (await row(storage, "a")).checkpoints == after
    assert await said(storage, restart) == ["stale"]


async def test_more_a_retry_keeps_steps_and_round(storage: Storage) -> None:
    await storage.enqueue([job("a")])
    await settle(storage, back(await claim_one(storage), checkpoints=((ROUND, "r"), *steps(0, 2))))
    await settle(storage, failed(await claim_one(storage)))
    await settle(storage, back(await row(storage, "a")))
    a = await claim_one(storage)
    assert (a.checkpoints, a.reopenings) == (((ROUND, "r"), *steps(0, 2)), 1)
    await settle(storage, done(a))
    assert (await row(storage, "a")).state is SUCCEEDED


async def test_more_a_move_carries_checkpoints(storage: Storage, another: Another) -> None:
    """In both storages further ones follow in order."""
    movable(storage)
    await storage.enqueue([job("a"), job("b")])
    await settle(storage, back(await claim_one(storage), checkpoints=steps(0, MANY), delay=60.0))
    target = await another()
    await carry(storage, target)
    assert (await row(target, "a")).checkpoints == steps(0, MANY)
    assert (await row(target, "a")).state is READY
    assert await claim_ids(target, 9) == ["b"]
    b = await row(target, "b")
    await beat(target, renewal(b, checkpoints=steps(0, 2)))
    assert (await row(target, "b")).checkpoints == steps(0, 2)


@shows("a page of jobs has no steps unless the query wants them: a look at a list does not read 16 MiB a job")
@pytest.mark.parametrize("order", ["newest", "oldest", "queue", "started", "ended"])
async def test_more_a_page_has_the_steps_only_on_request(storage: Storage, order: Order) -> None:
    await storage.enqueue([job("a"), job("b")])
    both = (f"{OURS}x", "1"), *steps(0, 3), (f"{OURS}y", "2")
    for claimed in await claim(storage, 2):
        if order == "queue":
            await settle(storage, back(claimed, checkpoints=both))
        elif order == "ended":
            await settle(storage, done(claimed, checkpoints=both))
        else:
            assert await beat(storage, renewal(claimed, checkpoints=both)) == frozenset()
    own = both[0], both[-1]
    assert [shown.checkpoints for shown in (await storage.find(Query(order=order))).records] == [own, own]
    assert (await storage.find(Query(ids=("a",)))).records[0].checkpoints == own
    for query in (Query(order=order, whole=True), Query(order=order, whole=True, scan=10)):
        assert [shown.checkpoints for shown in (await storage.find(query)).records] == [both, both]
    assert (await storage.find(Query(order=order, scan=10))).records[0].checkpoints == own
    assert (await row(storage, "a")).checkpoints == both
