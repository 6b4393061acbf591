"""Jobs that wait for jobs: counting down endings, thresholds, timeouts, promises. Law 5."""

from __future__ import annotations

import pytest

from treadle.core.errors import UnknownUpstream
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    SUCCEEDED,
    WAITING,
    advance_due,
    back,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    jobs,
    out,
    row,
    run,
    said,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

# --- the count-down


async def test_law05_each_job_of_a_chain_starts_after_the_one_before(storage: Storage) -> None:
    """Each job starts when the previous one has succeeded."""
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", after=("b",))])
    for id in "abc":
        [record] = await claim(storage, 9)
        assert record.job.id == id
        await settle(storage, done(record))
    assert await claim_ids(storage, 9) == []


async def test_law05_the_last_ending_of_a_fan_in_unblocks_the_job(storage: Storage) -> None:
    """The last ending unblocks it, in the same step; `pending` shows how many endings are missing."""
    await storage.enqueue([*jobs("a b c"), job("join", after=("a", "b", "c"), queue="join")])
    for n, record in enumerate(await claim(storage, 3)):
        assert (await row(storage, "join")).pending == 3 - n
        assert await claim_ids(storage, 9, "join") == []
        await settle(storage, done(record))
    join = await row(storage, "join")
    assert (join.state, join.pending, join.after) == (READY, 0, ("a", "b", "c"))
    assert await claim_ids(storage, 9, "join") == ["join"]


async def test_law05_one_settle_may_end_all_upstreams_of_a_job(storage: Storage) -> None:
    """Twenty endings in one call count as twenty."""
    names = [f"m{n:02}" for n in range(20)]
    await storage.enqueue([*(job(name) for name in names), job("join", after=tuple(names), queue="join")])
    await settle(storage, *(done(record) for record in await claim(storage, 20)))
    assert await claim_ids(storage, 9, "join") == ["join"]


async def test_law05_the_last_job_of_a_diamond_waits_for_both(storage: Storage) -> None:
    """One job waits for two that wait for one."""
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", after=("a",)), job("d", after=("b", "c"))])
    await run(storage, "a")
    await run(storage, "b", "c")
    assert await claim_ids(storage, 9) == ["d"]


async def test_law05_one_ending_frees_many(storage: Storage) -> None:
    """A fan-out: it unblocks all jobs that wait for it alone."""
    await storage.enqueue([job("a"), *(job(f"d{n:02}", after=("a",)) for n in range(50))])
    await run(storage, "a")
    assert len(await claim_ids(storage, 99)) == 50


async def test_law05_an_upstream_named_twice_counts_once(storage: Storage) -> None:
    """An upstream that is named twice has one ending."""
    await storage.enqueue([job("a"), job("b"), job("c", after=("a", "b", "a"), queue="c")])
    c = await row(storage, "c")
    assert (c.pending, c.after) == (2, ("a", "b", "a"))
    await run(storage, "a")
    assert await claim_ids(storage, 1, "c") == []
    await run(storage, "b")
    assert await claim_ids(storage, 1, "c") == ["c"]


@shows("a job whose upstreams have all ended is queued at once")
async def test_law05_an_upstream_that_has_ended_counts_at_once(storage: Storage) -> None:
    """A job whose upstreams have all ended does not wait."""
    await storage.enqueue(jobs("a b"))
    await run(storage, "a", "b")
    [c] = await storage.enqueue([job("c", after=("a", "b"))])
    assert (c.state, c.pending, c.after) == (READY, 0, ("a", "b"))
    assert await claim_ids(storage) == ["c"]


async def test_law05_upstreams_of_the_same_call_in_any_order(storage: Storage) -> None:
    """A job may name one that comes after it in the call."""
    await storage.enqueue([job("c", after=("b",)), job("b", after=("a",)), job("a")])
    for id in "abc":
        assert await claim_ids(storage, 9) == [id]
        await settle(storage, done(await row(storage, id)))


@shows("a repeated settle of an upstream counts once")
async def test_law05_an_ending_counts_once(storage: Storage) -> None:
    """A repeated settle does not count again."""
    await storage.enqueue([*jobs("a b"), job("c", after=("a", "b"), queue="c")])
    a, b = await claim(storage, 2)
    await settle(storage, done(a))
    await settle(storage, done(a))
    await settle(storage, out(await row(storage, "a"), SUCCEEDED, keep=500))
    assert (await row(storage, "c")).pending == 1
    await settle(storage, done(b))
    assert await claim_ids(storage, 1, "c") == ["c"]


async def test_law05_only_an_ending_counts(storage: Storage, clock: HandClock) -> None:
    """Retries, lost leases and waits of an upstream are not endings."""
    await storage.enqueue([job("a"), job("b", after=("a",), queue="b"), job("p", task="")])
    await settle(storage, back(await claim_one(storage), attempt=1))
    await claim_one(storage, lease=10)
    clock.advance(11)
    await settle(storage, out(await claim_one(storage), WAITING, after=("p",)))
    assert (await row(storage, "b")).pending == 1
    assert await state(storage, "b") is WAITING


# --- required and failures_allowed


async def test_law05_a_failure_cancels_the_jobs_that_need_it(storage: Storage, clock: HandClock) -> None:
    """Without allowed failures the first one cancels the job in the same step, with the reason."""
    await storage.enqueue([*jobs("a b"), job("c", after=("a", "b"))])
    clock.advance(1)
    await run(storage, "a", to=FAILED)
    c = await row(storage, "c")
    assert (c.state, c.reason, c.ended_at, c.attempt, c.due_at) == (CANCELLED, "upstream", clock(), 0, None)
    assert c.error
    await run(storage, "b")
    assert await state(storage, "c") is CANCELLED


async def test_law05_a_cancellation_is_a_failure(storage: Storage) -> None:
    """A job that waits for a cancelled job is doomed."""
    await storage.enqueue([job("a"), job("b", after=("a",))])
    await settle(storage, cancelled(await row(storage, "a")))
    assert (await row(storage, "b")).reason == "upstream"


@shows("a job whose upstream fails is cancelled, also where no worker serves its queue")
async def test_law05_a_cancellation_by_a_failure_needs_no_worker(storage: Storage) -> None:
    """The job is cancelled even if no worker serves its queue."""
    await storage.enqueue([job("a"), job("b", after=("a",), queue="nobody-serves-this")])
    await run(storage, "a", to=FAILED)
    assert await state(storage, "b") is CANCELLED


async def test_law05_a_failure_before_the_enqueue_cancels_at_once(storage: Storage) -> None:
    """A job that waits for a failed one is cancelled when it is stored."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", to=FAILED)
    b, c = await storage.enqueue([job("b", after=("a",)), job("c", after=("b",))])
    assert [(record.state, record.reason) for record in (b, c)] == [(CANCELLED, "upstream")] * 2


async def test_law05_a_failure_cancels_a_chain_of_two_thousand(storage: Storage) -> None:
    """The whole chain is cancelled in the step of the first failure, to any depth."""
    await storage.enqueue([job("j0000"), *(job(f"j{n:04}", after=(f"j{n - 1:04}",)) for n in range(1, 2_000))])
    await run(storage, "j0000", to=FAILED)
    last = await row(storage, "j1999")
    assert (last.state, last.reason) == (CANCELLED, "upstream")
    assert await claim_ids(storage, 9) == []


async def test_law05_every_ending_counts_if_all_failures_are_allowed(storage: Storage) -> None:
    """With failures_allowed None every ending counts."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), failures_allowed=None, queue="z")])
    await run(storage, "a", to=FAILED)
    await run(storage, "b", to=CANCELLED)
    assert ((await row(storage, "z")).pending, await state(storage, "z")) == (1, WAITING)
    await run(storage, "c")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_at_least_so_many_done(storage: Storage) -> None:
    """Required k, any number of failures allowed: the first k endings of any kind."""
    await storage.enqueue(
        [*jobs("a b c"), job("z", after=("a", "b", "c"), required=2, failures_allowed=None, queue="z")]
    )
    await run(storage, "b", to=FAILED)
    assert await claim_ids(storage, 1, "z") == []
    await run(storage, "a")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_at_least_so_many_succeeded(storage: Storage) -> None:
    """Required k, n - k failures allowed: failures lower `failures_allowed`, successes `pending`."""
    await storage.enqueue(
        [*jobs("a b c d"), job("z", after=("a", "b", "c", "d"), required=2, failures_allowed=2, queue="z")]
    )
    await run(storage, "a", "b", to=FAILED)
    assert ((await row(storage, "z")).pending, (await row(storage, "z")).failures_allowed) == (2, 0)
    await run(storage, "c")
    assert await claim_ids(storage, 1, "z") == []
    await run(storage, "d")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_one_failure_too_many_cancels_the_job(storage: Storage) -> None:
    """Below zero the required endings can no longer come."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), required=2, failures_allowed=1, queue="z")])
    await run(storage, "a", to=FAILED)
    assert await state(storage, "z") is WAITING
    await run(storage, "c", to=CANCELLED)
    assert (await row(storage, "z")).reason == "upstream"


async def test_law05_a_failure_after_the_threshold_is_met_changes_nothing(storage: Storage) -> None:
    """Once the job is queued, later failures of the others do not affect it."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), required=1, failures_allowed=1, queue="z")])
    await run(storage, "a")
    z = await claim_one(storage, "z")
    await run(storage, "b", "c", to=FAILED)
    assert await row(storage, "z") == z
    await settle(storage, done(z))


async def test_law05_a_threshold_met_before_a_failure_of_the_same_call(storage: Storage) -> None:
    """Enough have succeeded; failures of the others in the same call do not affect the job."""
    after = ("a", "b", "c")
    await storage.enqueue([*jobs("a b c"), *jobs("x y", after=after, required=1, failures_allowed=0, queue="z")])
    a, b, c = await claim(storage, 3)
    await settle(storage, done(b), failed(a), failed(c))
    assert await states(storage, "x y") == [READY, READY]


async def test_law05_a_threshold_above_the_number_of_upstreams_means_all(storage: Storage) -> None:
    """A `required` above the number of upstreams means all of them; 0 means no wait."""
    await storage.enqueue([job("a"), *(job(f"b{n}", after=("a",), required=n, queue="z") for n in (0, 5))])
    assert await claim_ids(storage, 9, "z") == ["b0"]
    await run(storage, "a")
    assert await claim_ids(storage, 9, "z") == ["b5"]


async def test_law05_after_names_the_upstreams_in_their_order(storage: Storage) -> None:
    """`after` of the record names them in the given order, for `get`, also while the job runs."""
    await storage.enqueue([*jobs("a b"), job("c", after=("b", "a"))])
    await run(storage, "a", result="1")
    await run(storage, "b", result="2")
    c = await claim_one(storage)
    assert [record and record.result for record in await storage.get(c.after)] == ["2", "1"]


async def test_law05_old_upstreams_do_not_count_for_a_new_wait(storage: Storage) -> None:
    """A job is queued by hand and then waits for a child: its former upstream does not count for this wait."""
    await storage.enqueue([job("p", task=""), job("a", after=("p",))])
    await settle(storage, back(await row(storage, "a")))
    await settle(storage, out(await claim_one(storage), WAITING, after=("child",), followups=(job("child", delay=99),)))
    await settle(storage, done(await row(storage, "p")))
    a = await row(storage, "a")
    assert (a.state, a.pending, a.after) == (WAITING, 1, ("child",))


# --- unknown upstreams, and waits with a timeout


async def test_law05_an_unknown_upstream_is_an_error(storage: Storage) -> None:
    """UnknownUpstream names it, and nothing of the call is stored."""
    with pytest.raises(UnknownUpstream) as caught:
        await storage.enqueue([job("a"), job("b", after=("a", "nobody"))])
    assert (caught.value.id, caught.value.waiting) == ("nobody", "b")
    assert await storage.get(["a", "b"]) == [None, None]


async def test_law05_an_upstream_may_be_stored_later_if_the_wait_has_a_timeout(
    storage: Storage, clock: HandClock
) -> None:
    """The upstream may be enqueued later, and its ending counts then."""
    await storage.enqueue([job("a", after=("x", "y"), wait_timeout=100, queue="a")])
    assert (await row(storage, "a")).due_at == clock() + 100
    await storage.enqueue(jobs("x y"))
    await run(storage, "x")
    assert await claim_ids(storage, 1, "a") == []
    await run(storage, "y")
    assert await claim_ids(storage, 1, "a") == ["a"]
    clock.advance(101)
    await advance_due(storage)
    assert (await row(storage, "a")).reason != "expired"


async def test_law05_a_job_expires_at_the_timeout_of_its_wait(storage: Storage, clock: HandClock) -> None:
    """A job that was never claimed fails as expired at that time, and dooms its dependents."""
    await storage.enqueue([job("a", after=("x",), wait_timeout=100), job("b", after=("a",))])
    clock.advance(99)
    await advance_due(storage)
    assert await state(storage, "a") is WAITING
    clock.advance(1)
    await advance_due(storage)
    assert [(record.state, record.reason) for record in await storage.get(["a", "b"]) if record] == [
        (FAILED, "expired"),
        (CANCELLED, "upstream"),
    ]
    await storage.enqueue([job("x")])
    await run(storage, "x")
    assert await states(storage, "a b") == [FAILED, CANCELLED]


async def test_law05_a_wait_that_is_over_has_no_timeout(storage: Storage, clock: HandClock) -> None:
    """A queued job has no timeout any more."""
    await storage.enqueue([job("x"), job("a", after=("x",), wait_timeout=100, queue="a")])
    await run(storage, "x")
    clock.advance(200)
    assert await claim_ids(storage, 1, "a") == ["a"]


async def test_law05_a_job_whose_function_is_done_is_queued_when_its_wait_times_out(
    storage: Storage, clock: HandClock
) -> None:
    """The storage only queues it; the engine ends it."""
    await storage.enqueue([job("a", function_done=True, after=("x",), wait_timeout=100)])
    clock.advance(100)
    a = await claim_one(storage)
    assert (a.job.id, a.function_done) == ("a", True)


async def test_law05_the_earlier_of_timeout_and_deadline(storage: Storage, clock: HandClock) -> None:
    """Either ends the wait; the record shows the earlier one."""
    await storage.enqueue([job("a", after=("x",), wait_timeout=50, deadline=80)])
    await storage.enqueue([job("b", after=("x",), wait_timeout=80, deadline=50)])
    assert [record and record.due_at for record in await storage.get(["a", "b"])] == [clock() + 50] * 2
    clock.advance(50)
    await advance_due(storage)
    assert await states(storage, "a b") == [FAILED, FAILED]


# --- promises


async def test_law05_no_claim_returns_a_promise(storage: Storage) -> None:
    """A row without a task is never queued: it is claimed for no task and by no id."""
    [p] = await storage.enqueue([job("p", task="")])
    assert (p.state, p.queue_position, p.pending) == (WAITING, None, 0)
    assert await claim_ids(storage, 9, tasks=None) == []
    assert await claim_ids(storage, 9, tasks={"": (None, None)}) == []
    assert await claim_ids(storage, 9, ids=("p",)) == []


@shows("a promise is settled once, and the jobs that wait for it are queued")
async def test_law05_a_caller_settles_a_promise_once(storage: Storage) -> None:
    """The jobs that wait for it are unblocked; a second settle is too late."""
    await storage.enqueue([job("p", task=""), job("a", after=("p",))])
    p = await row(storage, "p")
    await settle(storage, done(p, result='"yes"'))
    assert await said(storage, done(p, result='"no"')) == ["stale"]
    assert await claim_ids(storage, 9) == ["a"]
    assert (await row(storage, "p")).result == '"yes"'


async def test_law05_a_promise_that_waited_is_still_not_claimed(storage: Storage) -> None:
    """Once its upstreams have ended, it continues to wait for a settle."""
    await storage.enqueue([job("a"), job("p", task="", after=("a",)), job("q", task="", after=("a",), delay=5)])
    await run(storage, "a")
    assert await states(storage, "p q") == [WAITING, WAITING]
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(await row(storage, "p")))


@shows("of two callers that store the same mark, the first one wins")
async def test_law05_the_first_caller_wins_a_mark(storage: Storage) -> None:
    """A promise enqueued twice: the row that is returned has the first one's payload."""
    [first] = await storage.enqueue([job("mark", task="", payload='"me"')])
    [second] = await storage.enqueue([job("mark", task="", payload='"you"')])
    assert first.job.payload == second.job.payload == '"me"'


async def test_law05_a_promise_expires(storage: Storage, clock: HandClock) -> None:
    """Approvals do not stay open forever: both deadline and wait_timeout end them."""
    await storage.enqueue([job("p", task="", deadline=10), job("q", task="", wait_timeout=10)])
    clock.advance(10)
    await advance_due(storage)
    assert [one and (one.state, one.reason) for one in await storage.get(["p", "q"])] == [(FAILED, "expired")] * 2
