"""Jobs that wait for jobs: count-down, doom, children, promises. Laws 5, 6 and 7."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.model import Limit, NewJob, Outcome, State
from treadle.errors import UnknownUpstream
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    back,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    ids,
    job,
    jobs,
    out,
    refusal,
    row,
    run,
    said,
    settle,
    state,
    states,
    tend,
)

# --- the count-down


async def test_law05_a_chain(storage: Storage) -> None:
    """Each starts when the one before has succeeded."""
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", after=("b",))])
    for id in "abc":
        [each] = await claim(storage, 9)
        assert each.job.id == id
        await settle(storage, done(each))
    assert await claim_ids(storage, 9) == []


async def test_law05_a_fan_in(storage: Storage) -> None:
    """The last ending lets it in, in the same step, and `pending` shows how many are missing."""
    await storage.enqueue([*jobs("a b c"), job("join", after=("a", "b", "c"), queue="join")])
    for n, each in enumerate(await claim(storage, 3)):
        assert (await row(storage, "join")).pending == 3 - n
        assert await claim_ids(storage, 9, "join") == []
        await settle(storage, done(each))
    join = await row(storage, "join")
    assert (join.state, join.pending, join.after) == (READY, 0, ("a", "b", "c"))
    assert await claim_ids(storage, 9, "join") == ["join"]


async def test_law05_a_whole_fan_in_in_one_settle(storage: Storage) -> None:
    """Twenty endings in one call count twenty."""
    names = [f"m{n:02}" for n in range(20)]
    await storage.enqueue([*(job(name) for name in names), job("join", after=tuple(names), queue="join")])
    await settle(storage, *(done(each) for each in await claim(storage, 20)))
    assert await claim_ids(storage, 9, "join") == ["join"]


async def test_law05_a_diamond(storage: Storage) -> None:
    """One job waits for two that wait for one."""
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", after=("a",)), job("d", after=("b", "c"))])
    await run(storage, "a")
    await run(storage, "b", "c")
    assert await claim_ids(storage, 9) == ["d"]


async def test_law05_one_ending_frees_many(storage: Storage) -> None:
    """A fan-out: all that wait for it and for nothing else."""
    await storage.enqueue([job("a"), *(job(f"d{n:02}", after=("a",)) for n in range(50))])
    await run(storage, "a")
    assert len(await claim_ids(storage, 99)) == 50


async def test_law05_named_twice_counts_once(storage: Storage) -> None:
    """The same upstream given twice ends once."""
    await storage.enqueue([job("a"), job("b"), job("c", after=("a", "b", "a"), queue="c")])
    c = await row(storage, "c")
    assert (c.pending, c.after) == (2, ("a", "b", "a"))
    await run(storage, "a")
    assert await claim_ids(storage, 1, "c") == []
    await run(storage, "b")
    assert await claim_ids(storage, 1, "c") == ["c"]


async def test_law05_what_has_ended_counts_at_once(storage: Storage) -> None:
    """Waiting for jobs that are done is no wait."""
    await storage.enqueue(jobs("a b"))
    await run(storage, "a", "b")
    [c] = await storage.enqueue([job("c", after=("a", "b"))])
    assert (c.state, c.pending, c.after) == (READY, 0, ("a", "b"))
    assert await claim_ids(storage) == ["c"]


async def test_law05_upstreams_of_the_same_call_in_any_order(storage: Storage) -> None:
    """A job may name one that stands behind it in the call."""
    await storage.enqueue([job("c", after=("b",)), job("b", after=("a",)), job("a")])
    for id in "abc":
        assert await claim_ids(storage, 9) == [id]
        await settle(storage, done(await row(storage, id)))


async def test_law05_an_ending_counts_once(storage: Storage) -> None:
    """However often it is told: a repeated settle lets nobody in early."""
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


# --- need and slack


async def test_law05_a_failure_dooms_who_needs_it(storage: Storage, clock: HandClock) -> None:
    """With no slack the first failure cancels it in the same step, with the reason."""
    await storage.enqueue([*jobs("a b"), job("c", after=("a", "b"))])
    clock.advance(1)
    await run(storage, "a", to=FAILED)
    c = await row(storage, "c")
    assert (c.state, c.reason, c.ended_at, c.attempt, c.due_at) == (CANCELLED, "upstream", clock(), 0, None)
    assert c.error
    await run(storage, "b")
    assert await state(storage, "c") is CANCELLED


async def test_law05_a_cancellation_is_a_failure(storage: Storage) -> None:
    """Whoever waits for a cancelled job waits in vain."""
    await storage.enqueue([job("a"), job("b", after=("a",))])
    await settle(storage, cancelled(await row(storage, "a")))
    assert (await row(storage, "b")).reason == "upstream"


async def test_law05_doom_needs_no_worker(storage: Storage) -> None:
    """Nobody serves its queue, and still it is cancelled."""
    await storage.enqueue([job("a"), job("b", after=("a",), queue="nobody-serves-this")])
    await run(storage, "a", to=FAILED)
    assert await state(storage, "b") is CANCELLED


async def test_law05_a_failure_before_dooms_at_once(storage: Storage) -> None:
    """A job that waits for one that has failed is cancelled as it is stored."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", to=FAILED)
    b, c = await storage.enqueue([job("b", after=("a",)), job("c", after=("b",))])
    assert [(each.state, each.reason) for each in (b, c)] == [(CANCELLED, "upstream")] * 2


async def test_law05_doom_follows_a_chain_of_two_thousand(storage: Storage) -> None:
    """All of it in the step of the first failure, however deep."""
    await storage.enqueue([job("j0000"), *(job(f"j{n:04}", after=(f"j{n - 1:04}",)) for n in range(1, 2_000))])
    await run(storage, "j0000", to=FAILED)
    last = await row(storage, "j1999")
    assert (last.state, last.reason) == (CANCELLED, "upstream")
    assert await claim_ids(storage, 9) == []


async def test_law05_all_of_them_however_they_end(storage: Storage) -> None:
    """Slack None: every ending counts."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), slack=None, queue="z")])
    await run(storage, "a", to=FAILED)
    await run(storage, "b", to=CANCELLED)
    assert ((await row(storage, "z")).pending, await state(storage, "z")) == (1, WAITING)
    await run(storage, "c")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_at_least_so_many_done(storage: Storage) -> None:
    """Need k, any slack: the first k endings, whatever they are."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), need=2, slack=None, queue="z")])
    await run(storage, "b", to=FAILED)
    assert await claim_ids(storage, 1, "z") == []
    await run(storage, "a")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_at_least_so_many_succeeded(storage: Storage) -> None:
    """Need k, slack n - k: failures lower `slack`, successes `pending`."""
    await storage.enqueue([*jobs("a b c d"), job("z", after=("a", "b", "c", "d"), need=2, slack=2, queue="z")])
    await run(storage, "a", "b", to=FAILED)
    assert ((await row(storage, "z")).pending, (await row(storage, "z")).slack) == (2, 0)
    await run(storage, "c")
    assert await claim_ids(storage, 1, "z") == []
    await run(storage, "d")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law05_one_failure_too_many(storage: Storage) -> None:
    """Below zero the endings it needs can no longer come."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), need=2, slack=1, queue="z")])
    await run(storage, "a", to=FAILED)
    assert await state(storage, "z") is WAITING
    await run(storage, "c", to=CANCELLED)
    assert (await row(storage, "z")).reason == "upstream"


async def test_law05_a_threshold_met_stays_met(storage: Storage) -> None:
    """Once let in, later failures of the others do it no harm."""
    await storage.enqueue([*jobs("a b c"), job("z", after=("a", "b", "c"), need=1, slack=1, queue="z")])
    await run(storage, "a")
    z = await claim_one(storage, "z")
    await run(storage, "b", "c", to=FAILED)
    assert await row(storage, "z") == z
    await settle(storage, done(z))


async def test_law05_a_threshold_met_before_the_doom_of_the_same_call(storage: Storage) -> None:
    """Enough have succeeded; that the others fail in the very same call does it no harm."""
    after = ("a", "b", "c")
    await storage.enqueue([*jobs("a b c"), *jobs("x y", after=after, need=1, slack=0, queue="z")])
    a, b, c = await claim(storage, 3)
    await settle(storage, done(b), failed(a), failed(c))
    assert await states(storage, "x y") == [READY, READY]


async def test_law05_more_needed_than_there_are(storage: Storage) -> None:
    """Need beyond the upstreams is all of them; need 0 is no wait."""
    await storage.enqueue([job("a"), *(job(f"b{n}", after=("a",), need=n, queue="z") for n in (0, 5))])
    assert await claim_ids(storage, 9, "z") == ["b0"]
    await run(storage, "a")
    assert await claim_ids(storage, 9, "z") == ["b5"]


async def test_law05_the_results_of_upstreams_are_at_hand(storage: Storage) -> None:
    """`after` of the record names them in the order asked, for `get`, while it runs too."""
    await storage.enqueue([*jobs("a b"), job("c", after=("b", "a"))])
    await run(storage, "a", result="1")
    await run(storage, "b", result="2")
    c = await claim_one(storage)
    assert [found and found.result for found in await storage.get(c.after)] == ["2", "1"]


async def test_law05_old_upstreams_do_not_count_for_a_new_wait(storage: Storage) -> None:
    """Brought into line by hand, then waiting for a child: the ending it once waited for is none of these."""
    await storage.enqueue([job("p", task=""), job("a", after=("p",))])
    await settle(storage, back(await row(storage, "a")))
    await settle(storage, out(await claim_one(storage), WAITING, after=("child",), then=(job("child", delay=99),)))
    await settle(storage, done(await row(storage, "p")))
    a = await row(storage, "a")
    assert (a.state, a.pending, a.after) == (WAITING, 1, ("child",))


# --- unknown upstreams, and waiting with an end


async def test_law05_an_unknown_upstream_is_an_error(storage: Storage) -> None:
    """UnknownUpstream says which, and nothing of the call is stored."""
    with pytest.raises(UnknownUpstream) as caught:
        await storage.enqueue([job("a"), job("b", after=("a", "nobody"))])
    assert (caught.value.id, caught.value.waiting) == ("nobody", "b")
    assert await storage.get(["a", "b"]) == [None, None]


async def test_law05_with_a_timeout_it_may_come_later(storage: Storage, clock: HandClock) -> None:
    """Somebody will enqueue it, and its ending counts then."""
    await storage.enqueue([job("a", after=("x", "y"), wait_timeout=100, queue="a")])
    assert (await row(storage, "a")).due_at == clock() + 100
    await storage.enqueue(jobs("x y"))
    await run(storage, "x")
    assert await claim_ids(storage, 1, "a") == []
    await run(storage, "y")
    assert await claim_ids(storage, 1, "a") == ["a"]
    clock.advance(101)
    await tend(storage)
    assert (await row(storage, "a")).reason != "expired"


async def test_law05_a_wait_that_lasts_too_long(storage: Storage, clock: HandClock) -> None:
    """Never claimed, it fails as expired at that moment, and dooms its own."""
    await storage.enqueue([job("a", after=("x",), wait_timeout=100), job("b", after=("a",))])
    clock.advance(99)
    await tend(storage)
    assert await state(storage, "a") is WAITING
    clock.advance(1)
    await tend(storage)
    assert [(each.state, each.reason) for each in await storage.get(["a", "b"]) if each] == [
        (FAILED, "expired"),
        (CANCELLED, "upstream"),
    ]
    await storage.enqueue([job("x")])
    await run(storage, "x")
    assert await states(storage, "a b") == [FAILED, CANCELLED]


async def test_law05_a_wait_that_is_over_has_no_timeout(storage: Storage, clock: HandClock) -> None:
    """In line the timeout is forgotten."""
    await storage.enqueue([job("x"), job("a", after=("x",), wait_timeout=100, queue="a")])
    await run(storage, "x")
    clock.advance(200)
    assert await claim_ids(storage, 1, "a") == ["a"]


async def test_law05_what_ran_joins_the_line_when_its_wait_times_out(storage: Storage, clock: HandClock) -> None:
    """The engine ends it; the storage only brings it there."""
    await storage.enqueue([job("a", ran=True, after=("x",), wait_timeout=100)])
    clock.advance(100)
    a = await claim_one(storage)
    assert (a.job.id, a.ran) == ("a", True)


async def test_law05_the_earlier_of_timeout_and_deadline(storage: Storage, clock: HandClock) -> None:
    """Both end a wait; the record shows when the storage must act next."""
    await storage.enqueue([job("a", after=("x",), wait_timeout=50, deadline=80)])
    await storage.enqueue([job("b", after=("x",), wait_timeout=80, deadline=50)])
    assert [each and each.due_at for each in await storage.get(["a", "b"])] == [clock() + 50] * 2
    clock.advance(50)
    await tend(storage)
    assert await states(storage, "a b") == [FAILED, FAILED]


# --- promises


async def test_law05_nobody_runs_a_promise(storage: Storage) -> None:
    """A row with no task is not in line, not for any task, not by id."""
    [p] = await storage.enqueue([job("p", task="")])
    assert (p.state, p.place, p.pending) == (WAITING, None, 0)
    assert await claim_ids(storage, 9, tasks=None) == []
    assert await claim_ids(storage, 9, tasks={"": (None, None)}) == []
    assert await claim_ids(storage, 9, ids=("p",)) == []


async def test_law05_a_promise_is_settled_by_somebody(storage: Storage) -> None:
    """And whoever waits for it goes on; the second one to answer is too late."""
    await storage.enqueue([job("p", task=""), job("a", after=("p",))])
    p = await row(storage, "p")
    await settle(storage, done(p, result='"yes"'))
    assert await said(storage, done(p, result='"no"')) == ["stale"]
    assert await claim_ids(storage, 9) == ["a"]
    assert (await row(storage, "p")).result == '"yes"'


async def test_law05_a_promise_that_waits_is_still_nobodys_to_run(storage: Storage) -> None:
    """When what it waits for has ended it goes on waiting for its settlement."""
    await storage.enqueue([job("a"), job("p", task="", after=("a",)), job("q", task="", after=("a",), delay=5)])
    await run(storage, "a")
    assert await states(storage, "p q") == [WAITING, WAITING]
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(await row(storage, "p")))


async def test_law05_a_mark_is_won_by_the_first(storage: Storage) -> None:
    """Enqueueing the same promise twice: the row that answers carries the winner's payload."""
    [first] = await storage.enqueue([job("mark", task="", payload='"me"')])
    [second] = await storage.enqueue([job("mark", task="", payload='"you"')])
    assert first.job.payload == second.job.payload == '"me"'


async def test_law05_a_promise_expires(storage: Storage, clock: HandClock) -> None:
    """Approvals do not stay open for ever: deadline and wait_timeout end them alike."""
    await storage.enqueue([job("p", task="", deadline=10), job("q", task="", wait_timeout=10)])
    clock.advance(10)
    await tend(storage)
    assert [each and (each.state, each.reason) for each in await storage.get(["p", "q"])] == [(FAILED, "expired")] * 2


# --- jobs born of an outcome


async def test_law05_the_end_of_a_promise_brings_back_who_waits_in_its_run(storage: Storage, clock: HandClock) -> None:
    """Whether it is kept or its time runs out: the one or the other, and both are told."""
    await storage.enqueue([job("a"), job("b", queue="other")])
    for id, queue in (("a", "default"), ("b", "other")):
        promise = job(f"{id}-promise", task="", root=id, parent=id, deadline=10)
        waits = out(await claim_one(storage, queue), WAITING, then=(promise,), after=(promise.id,), slack=None)
        assert await said(storage, waits) == ["applied"]
    promised = await row(storage, "a-promise")
    await settle(storage, done(promised, result="1"))
    assert await claim_ids(storage, 9, "default", "other") == ["a"]
    clock.advance(11)
    assert await claim_ids(storage, 9, "default", "other") == ["b"]
    kept, broken = await row(storage, "a-promise"), await row(storage, "b-promise")
    assert (kept.state, kept.result) == (SUCCEEDED, "1")
    assert (broken.state, broken.reason) == (FAILED, "expired")
    assert await said(storage, done(broken, result="late")) == ["stale"]


async def test_law01_a_mark_is_free_when_it_is_given_back_or_over(storage: Storage, clock: HandClock) -> None:
    """A row nobody runs holds its key while it is unfinished."""

    def mark(id: str) -> NewJob:
        return job(id, task="", key="once", deadline=10)

    assert ids(await storage.enqueue([mark("a")])) == ["a"]
    [held] = await storage.enqueue([mark("b")])
    assert held.id == "a"
    await settle(storage, cancelled(held))
    assert ids(await storage.enqueue([mark("c")])) == ["c"]
    assert ids(await storage.enqueue([mark("d")])) == ["c"]
    clock.advance(11)
    await tend(storage)
    assert ids(await storage.enqueue([mark("e")])) == ["e"]


async def test_law06_then_comes_with_its_outcome(storage: Storage) -> None:
    """The jobs an outcome brings are stored in its step, with their edges."""
    await storage.enqueue(jobs("a"))
    await settle(storage, done(await claim_one(storage), then=(job("x", root="a"), job("y", after=("x",), root="a"))))
    assert await claim_ids(storage, 9) == ["x"]
    assert ((await row(storage, "y")).pending, (await row(storage, "y")).job.root) == (1, "a")


@pytest.mark.parametrize("to", [READY, WAITING, FAILED, CANCELLED])
async def test_law06_then_comes_with_any_outcome(storage: Storage, to: State) -> None:
    """Not only a success has children: a schedule's tick comes with a READY."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    after = ("p",) if to is WAITING else ()
    await settle(storage, out(await claim_one(storage), to, delay=60.0, then=(job("x"),), after=after))
    assert await claim_ids(storage, 9) == ["x"]


async def test_law06_then_may_wait_for_the_job_itself(storage: Storage) -> None:
    """Its ending is counted in the same step."""
    await storage.enqueue(jobs("a"))
    await settle(storage, done(await claim_one(storage), then=(job("x", after=("a",)),)))
    assert await claim_ids(storage, 9) == ["x"]


async def test_law06_a_refused_outcome_stores_nothing(storage: Storage) -> None:
    """`then` with an upstream nobody knows: the outcome fails alone, and the row is as it was."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2)
    before = await row(storage, "a")
    bad, good = await storage.settle([done(a, then=(job("x"), job("y", after=("nobody",)))), done(b)])
    assert (bad.status, good.status) == ("refused", "applied")
    assert bad.reason
    assert "nobody" in bad.reason
    assert await row(storage, "a") == before
    assert await storage.get(["x", "y"]) == [None, None]
    await settle(storage, done(a))


async def test_law14_waiting_for_nobody_is_refused(storage: Storage) -> None:
    """An outcome that waits for an unknown job fails alone, and what follows in the call is applied."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2)
    assert await said(storage, out(a, WAITING, after=("nobody",), then=(job("x"),)), done(b)) == ["refused", "applied"]
    assert await state(storage, "a") is RUNNING
    assert await storage.get(["x"]) == [None]


async def test_law14_a_key_in_then_that_is_held_is_refused(storage: Storage) -> None:
    """A child that insists on a key somebody holds: refused with the reason, and nothing stored."""
    await storage.enqueue([*jobs("a b"), job("holder", key="k", delay=99)])
    a, b = await claim(storage, 2)
    outcome = done(a, then=(job("x"), job("y", key="k", key_conflict="raise")))
    assert await said(storage, outcome, done(b)) == ["refused", "applied"]
    assert (await state(storage, "a"), await storage.get(["x", "y"])) == (RUNNING, [None, None])


async def test_law06_a_then_job_that_is_known_is_not_stored_again(storage: Storage) -> None:
    """A tick that was stored before is stored once."""
    await storage.enqueue([job("a"), job("tick", payload="1", delay=99)])
    await settle(storage, done(await claim_one(storage), then=(job("tick", payload="2"),)))
    assert (await row(storage, "tick")).job.payload == "1"


async def test_law06_a_child_whose_id_is_known_is_waited_for(storage: Storage) -> None:
    """Whoever stored it: it is not stored again, and the parent waits for the stored one."""
    await storage.enqueue([job("a"), job("known", delay=99)])
    children = (job("known"), job("y"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=children, after=("known", "y")))
    a = await row(storage, "a")
    assert (a.after, a.pending) == (("known", "y"), 2)
    await run(storage, "y")
    assert await claim_ids(storage) == []


async def test_law06_the_row_that_answers_a_child_is_waited_for(storage: Storage) -> None:
    """The parent waits for the holder of the key as it waits for its children, once for every child it answered."""
    await storage.enqueue([job("a"), job("holder", key="k", queue="h")])
    then = (job("x", key="k"), job("y"), job("z", key="k"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=then, after=("x", "y", "z")))
    a = await row(storage, "a")
    assert (a.state, a.pending, a.after) == (WAITING, 2, ("holder", "y", "holder"))
    await run(storage, "y")
    assert await claim_ids(storage) == []
    await run(storage, "holder", result="7")
    a = await claim_one(storage)
    assert (a.job.id, a.ran, a.after) == ("a", True, ("holder", "y", "holder"))


async def test_law06_a_key_asked_for_twice_by_the_children_is_one_child(storage: Storage) -> None:
    """The first of them gets it, and answers the second."""
    await storage.enqueue([job("a")])
    then = (job("x", key="k"), job("y", key="k"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=then, after=("x", "y")))
    a = await row(storage, "a")
    assert (a.pending, a.after) == (1, ("x", "x"))
    await run(storage, "x")
    assert await claim_ids(storage) == ["a"]


async def test_law06_a_holder_that_has_ended_answers_a_child_at_once(storage: Storage) -> None:
    """Within the window of its key: nothing to wait for."""
    await storage.enqueue([job("holder", key="k", key_window=100.0, queue="h"), job("a")])
    await run(storage, "holder")
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(job("x", key="k"),), after=("x",)))
    a = await claim_one(storage)
    assert (a.job.id, a.ran, a.after) == ("a", True, ("holder",))


async def test_law06_a_holder_that_waits_for_the_parent_is_not_waited_for(storage: Storage) -> None:
    """It is the parent's own parent, or waits for that: neither could end. The other children are waited for."""
    await storage.enqueue([job("a", key="a", queue="a"), job("far", key="far", after=("a",), queue="far")])
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, ran=True, then=(job("b", key="b"),), after=("b",)))
    then = (job("x", key="a"), job("y", key="far"), job("z", key="b"), job("own", queue="own"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=then, after=("x", "y", "z", "own")))
    b = await row(storage, "b")
    assert (b.state, b.pending, b.after) == (WAITING, 1, ("own",))
    await run(storage, "own")
    await run(storage, "b")
    assert [each.job.id for each in await claim(storage, 1, "a")] == ["a"]


async def test_law06_all_answered_by_rows_that_wait_for_it_it_is_in_line_at_once(storage: Storage) -> None:
    """Nothing to wait for."""
    await storage.enqueue([job("a", key="k")])
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(job("x", key="k"),), after=("x",)))
    a = await claim_one(storage)
    assert (a.job.id, a.ran, a.after) == ("a", True, ())


async def test_law06_a_child_that_would_wait_for_its_own_parent_is_refused(storage: Storage) -> None:
    """Behind a child that the grandparent answered: none of them could end. Nothing is stored, and it says why."""
    await storage.enqueue([job("a", key="k", queue="a")])
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, ran=True, then=(job("b"),), after=("b",)))
    then = (job("x", key="k"), job("y", after=("x",)))
    refused = await refusal(storage, out(await claim_one(storage), WAITING, ran=True, then=then, after=("x", "y")))
    assert not refused.again
    assert refused.reason is not None
    assert refused.reason.startswith("job y would wait for job a, which waits for job b")
    assert await storage.get(["x", "y"]) == [None, None]
    assert (await row(storage, "b")).state is RUNNING


@pytest.mark.parametrize("up", ["a", "b"])
@pytest.mark.parametrize("behind", ["itself", "another child"])
async def test_law06_a_child_that_names_an_ancestor_that_waits_for_it_is_refused(
    storage: Storage, up: str, behind: str
) -> None:
    """The parent of its parent, or the parent: none of them could end. Nothing is stored, and it says why."""
    await storage.enqueue([job("a", queue="a")])
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, ran=True, then=(job("b"),), after=("b",)))
    then = (job("x", after=(up,)), job("y", after=("x",)))
    waits = ("x", "y") if behind == "itself" else ("y",)
    refused = await refusal(storage, out(b := await claim_one(storage), WAITING, ran=True, then=then, after=waits))
    assert (refused.status, refused.again) == ("refused", False)
    assert refused.reason is not None
    assert refused.reason.startswith(f"job x would wait for job {up}")
    assert await storage.get(["x", "y"]) == [None, None]
    assert (await row(storage, "b")).state is RUNNING
    await settle(storage, done(b))
    assert [each.job.id for each in await claim(storage, 1, "a")] == ["a"]


async def test_law06_a_child_may_name_a_stored_job_that_waits_for_nobody_above_it(storage: Storage) -> None:
    """A job beside, and one that has ended; nor is a job refused that names an ancestor and that nobody waits for."""
    await storage.enqueue([job("a", queue="a"), job("beside", queue="far"), job("old", queue="far")])
    await run(storage, "old")
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, ran=True, then=(job("b"),), after=("b",)))
    then = (job("x", after=("beside", "old")), job("free", after=("a",)))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=then, after=("x",)))
    await run(storage, "beside")
    await run(storage, "x")
    await run(storage, "b")
    await run(storage, "a")
    await run(storage, "free")


async def test_law06_of_two_whose_children_name_the_other_one_is_refused(storage: Storage) -> None:
    """In the same moment, in calls of their own: both end."""
    for n in range(5):
        await storage.enqueue([job(f"a{n}"), job(f"b{n}")])
        a, b = await claim(storage, 2)
        outs = [
            out(a, WAITING, ran=True, then=(job(f"x{n}", after=(f"b{n}",)),), after=(f"x{n}",)),
            out(b, WAITING, ran=True, then=(job(f"y{n}", after=(f"a{n}",)),), after=(f"y{n}",)),
        ]
        answers = await asyncio.gather(*(storage.settle([each]) for each in outs))
        statuses = sorted(answer.status for [answer] in answers)
        assert statuses == ["applied", "refused"]
        [refused] = [each for each, [answer] in zip((a, b), answers, strict=True) if answer.status == "refused"]
        await settle(storage, done(refused))


async def test_law06_of_two_that_would_wait_for_each_other_one_does_not(storage: Storage) -> None:
    """Two jobs return a job with the key of the other, in the same moment: both end."""
    for n in range(5):
        await storage.enqueue([job(f"a{n}", key=f"a{n}"), job(f"b{n}", key=f"b{n}")])
        a, b = await claim(storage, 2)
        outs = [
            out(a, WAITING, ran=True, then=(job(f"x{n}", key=f"b{n}"),), after=(f"x{n}",)),
            out(b, WAITING, ran=True, then=(job(f"y{n}", key=f"a{n}"),), after=(f"y{n}",)),
        ]
        answers = await asyncio.gather(*(storage.settle([each]) for each in outs))
        for each, [answer] in zip(outs, answers, strict=True):
            while answer.again:
                [answer] = await storage.settle([each])
            assert answer.status == "applied"
        [first] = await claim(storage, 2)
        await settle(storage, done(first))
        [second] = await claim(storage, 2)
        await settle(storage, done(second))
        assert {first.job.id, second.job.id} == {f"a{n}", f"b{n}"}


async def test_law06_a_then_job_may_wait_for_what_another_row_answered(storage: Storage) -> None:
    """Edges among the jobs of one outcome follow the row that answered."""
    await storage.enqueue([job("a"), job("holder", key="k", queue="h")])
    await settle(storage, done(await claim_one(storage), then=(job("x", key="k"), job("y", after=("x",)))))
    assert (await row(storage, "y")).after == ("holder",)
    await run(storage, "holder")
    assert await claim_ids(storage) == ["y"]


# --- parents and children


async def test_law07_a_parent_ends_after_its_children(storage: Storage) -> None:
    """It waits, comes in line once more with `ran`, and whoever waits for it waits for all of that."""
    await storage.enqueue([job("a"), job("next", after=("a",), queue="next")])
    children = (job("x", parent="a", root="a"), job("y", parent="a", root="a"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=children, after=("x", "y")))
    a = await row(storage, "a")
    assert (a.state, a.pending, a.ran, a.slack) == (WAITING, 2, True, None)
    await run(storage, "x")
    assert await claim_ids(storage, 9) == ["y"]
    await settle(storage, done(await row(storage, "y")))
    a = await claim_one(storage)
    assert (a.job.id, a.ran, a.after) == ("a", True, ("x", "y"))
    assert await claim_ids(storage, 9, "next") == []
    await settle(storage, done(a, value="7"))
    assert await claim_ids(storage, 9, "next") == ["next"]


async def test_law07_grandchildren_too(storage: Storage) -> None:
    """A subtree ends from its leaves upwards."""
    await storage.enqueue([job("a"), job("next", after=("a",), queue="next")])
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(job("b"),), after=("b",)))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(job("c"),), after=("c",)))
    for id in "cba":
        assert await state(storage, "next") is WAITING
        [each] = await claim(storage, 9)
        assert each.job.id == id
        await settle(storage, done(each))
    assert await state(storage, "next") is READY


async def test_law07_failed_children_end_the_wait(storage: Storage) -> None:
    """With slack None every ending counts: the engine judges what the failures mean."""
    await storage.enqueue(jobs("a"))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(job("x"), job("y")), after=("x", "y")))
    await run(storage, "x", to=FAILED)
    assert await state(storage, "a") is WAITING
    await run(storage, "y")
    assert (await claim_one(storage)).job.id == "a"


@pytest.mark.parametrize("ran", [True, False])
async def test_law07_one_that_was_claimed_is_never_doomed(storage: Storage, ran: bool) -> None:
    """When the endings it needs can no longer come it joins the line, and the engine decides."""
    await storage.enqueue([*jobs("a"), job("p", task=""), job("q", task="")])
    await settle(storage, out(await claim_one(storage), WAITING, ran=ran, after=("p", "q"), slack=0))
    await settle(storage, failed(await row(storage, "p")))
    a = await claim_one(storage)
    assert (a.job.id, a.ran, a.reason) == ("a", ran, None)
    await settle(storage, done(await row(storage, "q")))
    assert await row(storage, "a") == a


async def test_law07_a_flow_born_ran(storage: Storage, clock: HandClock) -> None:
    """A root that has no function of its own waits for its parts, is never doomed by them, and any worker ends it."""
    parts = [job("x", root="f", parent="f"), job("y", root="f", parent="f")]
    await storage.enqueue([job("f", ran=True, after=("x", "y"), deadline=5), *parts])
    clock.advance(6)
    await run(storage, "x", to=FAILED)
    f = await claim_one(storage, ids=("f",))
    assert (f.ran, f.state) == (True, RUNNING)
    await settle(storage, failed(f, reason="children"))


async def test_law07_ran_stays(storage: Storage) -> None:
    """Once only the ending is left, a later outcome does not bring the function back."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, after=("p",)))
    await settle(storage, done(await row(storage, "p")))
    await settle(storage, back(await claim_one(storage), ran=False))
    assert (await claim_one(storage)).ran


async def test_law07_waiting_for_others_and_running_again(storage: Storage, clock: HandClock) -> None:
    """`wait_for`: the function is called again when they have ended, with its turn kept."""
    await storage.enqueue([job("z"), job("p", task="")])
    z = await claim_one(storage)
    await settle(storage, out(z, WAITING, after=("p",)))
    clock.advance(1)
    await storage.enqueue(jobs("a"))
    await settle(storage, done(await row(storage, "p"), result="1"))
    assert (await row(storage, "z")).place == z.joined_at
    again, _ = await claim(storage, 2)
    assert (again.job.id, again.ran, again.after) == ("z", False, ("p",))


async def test_law07_a_wait_with_a_delay_comes_back_all_the_same(storage: Storage, clock: HandClock) -> None:
    """Whatever comes first: the endings, or the moment; and only once."""
    await storage.enqueue([*jobs("a b"), job("p", task="")])
    a, b = await claim(storage, 2)
    await settle(storage, out(a, WAITING, after=("p",), delay=20), out(b, WAITING, after=("p",), delay=60))
    assert (await row(storage, "a")).due_at == clock() + 20
    clock.advance(20)
    a = await claim_one(storage)
    assert (a.job.id, a.pending) == ("a", 1)
    await settle(storage, done(await row(storage, "p")))
    assert await claim_ids(storage, 9) == ["b"]
    assert await state(storage, "a") is RUNNING


async def test_law07_waiting_for_what_has_ended(storage: Storage) -> None:
    """A parent whose child was quicker than its own settle is in line at once."""
    await storage.enqueue([*jobs("a x"), job("bad")])
    a, bad, x = await claim(storage, 3)
    await settle(storage, done(x), failed(bad))
    await settle(storage, out(a, WAITING, ran=True, after=("x", "bad")))
    assert await claim_ids(storage) == ["a"]


async def test_law07_parent_and_children_in_one_call(storage: Storage) -> None:
    """Outcomes of one call see each other, in order."""
    await storage.enqueue(jobs("a x y"))
    a, x, y = await claim(storage, 3)
    await settle(storage, done(x), out(a, WAITING, ran=True, after=("x", "y")), done(y))
    assert await claim_ids(storage, 9) == ["a"]


async def test_law07_a_waiting_parent_gives_its_slot_up(storage: Storage) -> None:
    """While it waits it does not run: its children may have the slot."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),))])
    child = job("x", limits=(("one", 1),))
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(child,), after=("x",)))
    assert await claim_ids(storage, 9) == ["x"]


async def test_law07_a_paused_job_waits_for_its_promise(storage: Storage) -> None:
    """A job in line that is told to wait leaves it, until the promise is kept."""
    await storage.enqueue([job("a"), job("go", task="")])
    await settle(storage, out(await row(storage, "a"), WAITING, after=("go",)))
    assert await claim_ids(storage) == []
    await settle(storage, done(await row(storage, "go")))
    assert await claim_ids(storage) == ["a"]


async def test_law07_two_thousand_children(storage: Storage) -> None:
    """A wide parent: all brought by one outcome, ended in one call."""
    await storage.enqueue(jobs("a"))
    children = tuple(job(f"c{n:04}", parent="a", root="a") for n in range(2_000))
    a = await claim_one(storage)
    await settle(storage, out(a, WAITING, ran=True, then=children, after=tuple(each.id for each in children)))
    rows = await claim(storage, 2_000)
    assert (await row(storage, "a")).pending == 2_000
    await settle(storage, *(done(each) for each in rows[1:]))
    assert (await row(storage, "a")).pending == 1
    await settle(storage, done(rows[0]))
    assert await claim_ids(storage) == ["a"]


async def test_law07_many_rounds_of_waiting(storage: Storage) -> None:
    """A job may wait again and again, each time for others."""
    await storage.enqueue(jobs("a"))
    for n in range(20):
        a = await claim_one(storage)
        assert a.job.id == "a"
        await settle(storage, out(a, WAITING, then=(job(f"x{n}"),), after=(f"x{n}",)))
        await run(storage, f"x{n}")
    await settle(storage, Outcome(id="a", version=(await claim_one(storage)).version, state=SUCCEEDED))
