"""A failure that is retried late: the upstreams of the reopened jobs still exist. Law 9.

A job that was cancelled because of another one, or that failed because of a child, may be reopened for as long as its
row is kept. Until then the rows of the jobs that it names stay, although some of them are kept for a shorter time.
"""

from __future__ import annotations

from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    SUCCEEDED,
    WAITING,
    back,
    claim_ids,
    claim_one,
    done,
    job,
    out,
    row,
    run,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

LATER = 1_000.0  # when the children that succeeded, and are kept for a minute, could be gone
LONG = 5_000.0


async def begin_parent(storage: Storage) -> None:
    """`p` waits for its children `a` and `b`."""
    await storage.enqueue([job("p", keep_failed=LONG)])
    children = tuple(job(id, root="p", parent="p", keep=60, keep_failed=LONG) for id in "ab")
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=children, after=("a", "b"))
    )


async def fail_parent(storage: Storage) -> None:
    """The child `a` of `p` has succeeded, `b` has failed, and so has `p`."""
    await begin_parent(storage)
    await run(storage, "a", result="1")
    await run(storage, "b", to=FAILED)
    await run(storage, "p", to=FAILED, reason="children")


@shows("a failed child can be retried for as long as its parent is kept: the results of its siblings are there")
async def test_law09_the_children_of_a_failed_parent_stay(storage: Storage, clock: HandClock) -> None:
    await fail_parent(storage)
    clock.advance(LATER)
    assert await storage.prune(9) == 0
    await settle(storage, back(await row(storage, "b")))
    assert await claim_ids(storage, 9) == ["b"]
    await settle(storage, done(await row(storage, "b")))
    parent = await claim_one(storage)
    assert (parent.job.id, [record and record.result for record in await storage.get(["a"])]) == ("p", ["1"])
    await settle(storage, done(parent))


async def test_law09_the_children_of_a_failed_parent_go_with_it(storage: Storage, clock: HandClock) -> None:
    """Once its own retention is over, such a row stays as long as the parent. It is set once, by a prune."""
    await fail_parent(storage)
    until = (await row(storage, "p")).expires_at
    clock.advance(LATER)
    assert await storage.prune(9) == 0
    assert (await row(storage, "a")).expires_at == until
    clock.advance(LONG - LATER - 1)
    assert await storage.prune(9) == 0
    clock.advance(1)
    assert await storage.prune(9) == 3


async def test_law09_the_children_of_a_parent_that_failed_by_itself_go(storage: Storage, clock: HandClock) -> None:
    """Retrying a child does not reopen it."""
    await begin_parent(storage)
    await run(storage, "a", "b")
    await run(storage, "p", to=FAILED, reason="error")
    clock.advance(LATER)
    assert await storage.prune(9) == 2


@shows("a job that a failure has cancelled can wait again for all that it waited for")
async def test_law09_upstreams_of_a_cancelled_job_stay(storage: Storage, clock: HandClock) -> None:
    """The upstreams of a job that was cancelled because of it stay too."""
    await storage.enqueue(
        [
            *(job(id, keep=60, keep_failed=LONG) for id in "abcz"),
            job("j", after=("a", "b"), keep=LONG),
            job("k", after=("j", "c"), keep=LONG),
        ]
    )
    await run(storage, "a", "c", "z", result="1")
    await run(storage, "b", to=FAILED)
    assert await states(storage, "j k") == [CANCELLED, CANCELLED]
    clock.advance(LATER)
    assert await storage.prune(9) == 1
    assert await states(storage, "a c z") == [SUCCEEDED, SUCCEEDED, None]
    await settle(storage, back(await row(storage, "b")))
    for id in "bjk":
        assert await claim_ids(storage, 9) == [id]
        await settle(storage, done(await row(storage, id)))


async def test_law09_upstreams_of_a_job_that_an_operator_has_cancelled_go(storage: Storage, clock: HandClock) -> None:
    """It is not reopened."""
    await storage.enqueue([job("a", keep=60), job("b"), job("j", after=("a", "b"), keep=LONG)])
    await run(storage, "a")
    await settle(storage, out(await row(storage, "j"), CANCELLED))
    clock.advance(LATER)
    assert await storage.prune(9) == 1
    assert await state(storage, "j") is CANCELLED


async def test_law09_a_kept_upstream_takes_no_room_from_the_limit(storage: Storage, clock: HandClock) -> None:
    """A prune of few rows comes past many that stay."""
    await storage.enqueue([*(job(f"a{n}", keep=60) for n in range(5)), job("b", keep_failed=LONG), job("z", keep=100)])
    await storage.enqueue([job("j", after=(*(f"a{n}" for n in range(5)), "b"), keep=LONG)])
    await run(storage, *(f"a{n}" for n in range(5)), "z")
    await run(storage, "b", to=FAILED)
    clock.advance(LATER)
    assert await storage.prune(1) == 1
    assert await states(storage, "a0 a4 z") == [SUCCEEDED, SUCCEEDED, None]


@shows("a reopened job does not wait for a job without a row")
async def test_law05_reopening_without_the_row_of_an_upstream(storage: Storage, clock: HandClock) -> None:
    """The retention of `j` is over, but it stays, because `k` waits and names it: `a` goes, and `j` may be reopened."""
    await storage.enqueue([job("a", keep=60), job("b", keep_failed=LONG), job("x", delay=LONG)])
    await storage.enqueue([job("j", after=("a", "b"), keep=60)])
    await storage.enqueue([job("k", after=("j", "x"), required=1, failures_allowed=1)])
    await run(storage, "a")
    await run(storage, "b", to=FAILED)
    assert await states(storage, "j k") == [CANCELLED, WAITING]
    clock.advance(LATER)
    assert await storage.prune(9) == 1
    assert await states(storage, "a j") == [None, CANCELLED]
    await settle(storage, back(await row(storage, "b")))
    assert await states(storage, "b j") == [READY, WAITING]
    await run(storage, "b")
    assert await state(storage, "j") is READY
