"""Parents that wait for their children. Law 7."""

from __future__ import annotations

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import Outcome
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    back,
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
    settle,
    state,
)
from treadle_testkit.shows import shows

# --- parents and children


@shows("a parent ends after its children, and jobs after the parent wait for all of them")
async def test_law07_a_parent_ends_after_its_children(storage: Storage) -> None:
    """It waits and is queued again with `function_done`; its dependents wait until it has ended after that."""
    await storage.enqueue([job("a"), job("next", after=("a",), queue="next")])
    children = (job("x", parent="a", root="a"), job("y", parent="a", root="a"))
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=children, after=("x", "y"))
    )
    a = await row(storage, "a")
    assert (a.state, a.pending, a.function_done, a.failures_allowed) == (WAITING, 2, True, None)
    await run(storage, "x")
    assert await claim_ids(storage, 9) == ["y"]
    await settle(storage, done(await row(storage, "y")))
    a = await claim_one(storage)
    assert (a.job.id, a.function_done, a.after) == ("a", True, ("x", "y"))
    assert await claim_ids(storage, 9, "next") == []
    await settle(storage, done(a, value="7"))
    assert await claim_ids(storage, 9, "next") == ["next"]


async def test_law07_a_job_ends_after_its_grandchildren(storage: Storage) -> None:
    """A subtree ends from its leaves upwards."""
    await storage.enqueue([job("a"), job("next", after=("a",), queue="next")])
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=(job("b"),), after=("b",))
    )
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=(job("c"),), after=("c",))
    )
    for id in "cba":
        assert await state(storage, "next") is WAITING
        [record] = await claim(storage, 9)
        assert record.job.id == id
        await settle(storage, done(record))
    assert await state(storage, "next") is READY


async def test_law07_failed_children_end_the_wait(storage: Storage) -> None:
    """With failures_allowed None every ending counts: the engine decides what the failures mean."""
    await storage.enqueue(jobs("a"))
    await settle(
        storage,
        out(await claim_one(storage), WAITING, function_done=True, followups=(job("x"), job("y")), after=("x", "y")),
    )
    await run(storage, "x", to=FAILED)
    assert await state(storage, "a") is WAITING
    await run(storage, "y")
    assert (await claim_one(storage)).job.id == "a"


@pytest.mark.parametrize("function_done", [True, False])
async def test_law07_a_job_that_was_claimed_is_never_cancelled_by_a_failure(
    storage: Storage, function_done: bool
) -> None:
    """When the required endings can no longer come, it is queued, and the engine decides."""
    await storage.enqueue([*jobs("a"), job("p", task=""), job("q", task="")])
    await settle(
        storage,
        out(await claim_one(storage), WAITING, function_done=function_done, after=("p", "q"), failures_allowed=0),
    )
    await settle(storage, failed(await row(storage, "p")))
    a = await claim_one(storage)
    assert (a.job.id, a.function_done, a.reason) == ("a", function_done, None)
    await settle(storage, done(await row(storage, "q")))
    assert await row(storage, "a") == a


async def test_law07_a_root_without_a_function_ends_after_its_parts(storage: Storage, clock: HandClock) -> None:
    """A root without a function waits for its parts, is never doomed by them, and any worker ends it."""
    parts = [job("x", root="f", parent="f"), job("y", root="f", parent="f")]
    await storage.enqueue([job("f", function_done=True, after=("x", "y"), deadline=5), *parts])
    clock.advance(6)
    await run(storage, "x", to=FAILED)
    f = await claim_one(storage, ids=("f",))
    assert (f.function_done, f.state) == (True, RUNNING)
    await settle(storage, failed(f, reason="children"))


async def test_law07_a_later_outcome_does_not_unset_function_done(storage: Storage) -> None:
    """A later outcome cannot unset `function_done`."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    await settle(storage, out(await claim_one(storage), WAITING, function_done=True, after=("p",)))
    await settle(storage, done(await row(storage, "p")))
    await settle(storage, back(await claim_one(storage), function_done=False))
    assert (await claim_one(storage)).function_done


async def test_law07_a_job_that_waits_in_its_run_keeps_its_position(storage: Storage, clock: HandClock) -> None:
    """`wait_for`: when they have ended, the function is called again, and the job keeps its turn."""
    await storage.enqueue([job("z"), job("p", task="")])
    z = await claim_one(storage)
    await settle(storage, out(z, WAITING, after=("p",)))
    clock.advance(1)
    await storage.enqueue(jobs("a"))
    await settle(storage, done(await row(storage, "p"), result="1"))
    assert (await row(storage, "z")).queue_position == z.return_position
    again, _ = await claim(storage, 2)
    assert (again.job.id, again.function_done, again.after) == ("z", False, ("p",))


async def test_law07_a_wait_with_a_delay_ends_once(storage: Storage, clock: HandClock) -> None:
    """The endings or the end of the delay queue the job, whichever is first, and only once."""
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


async def test_law07_a_parent_whose_child_has_ended_is_queued_at_once(storage: Storage) -> None:
    """A parent whose child ended before its own settle is queued at once."""
    await storage.enqueue([*jobs("a x"), job("bad")])
    a, bad, x = await claim(storage, 3)
    await settle(storage, done(x), failed(bad))
    await settle(storage, out(a, WAITING, function_done=True, after=("x", "bad")))
    assert await claim_ids(storage) == ["a"]


async def test_law07_parent_and_children_in_one_call(storage: Storage) -> None:
    """Each outcome of a call sees the effects of the earlier ones."""
    await storage.enqueue(jobs("a x y"))
    a, x, y = await claim(storage, 3)
    await settle(storage, done(x), out(a, WAITING, function_done=True, after=("x", "y")), done(y))
    assert await claim_ids(storage, 9) == ["a"]


@shows("a parent that waits for its children holds no slot of a limit")
async def test_law07_a_waiting_parent_frees_its_slot(storage: Storage) -> None:
    """A waiting job does not run: its children may take the slot."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),))])
    child = job("x", limits=(("one", 1),))
    await settle(storage, out(await claim_one(storage), WAITING, function_done=True, followups=(child,), after=("x",)))
    assert await claim_ids(storage, 9) == ["x"]


async def test_law07_a_paused_job_waits_for_its_promise(storage: Storage) -> None:
    """A queued job that is settled as waiting leaves the queue until the promise is settled."""
    await storage.enqueue([job("a"), job("go", task="")])
    await settle(storage, out(await row(storage, "a"), WAITING, after=("go",)))
    assert await claim_ids(storage) == []
    await settle(storage, done(await row(storage, "go")))
    assert await claim_ids(storage) == ["a"]


async def test_law07_a_parent_ends_after_two_thousand_children(storage: Storage) -> None:
    """One outcome creates all of them, and one call ends nearly all."""
    await storage.enqueue(jobs("a"))
    children = tuple(job(f"c{n:04}", parent="a", root="a") for n in range(2_000))
    a = await claim_one(storage)
    await settle(
        storage, out(a, WAITING, function_done=True, followups=children, after=tuple(child.id for child in children))
    )
    rows = await claim(storage, 2_000)
    assert (await row(storage, "a")).pending == 2_000
    await settle(storage, *(done(record) for record in rows[1:]))
    assert (await row(storage, "a")).pending == 1
    await settle(storage, done(rows[0]))
    assert await claim_ids(storage) == ["a"]


async def test_law07_a_job_may_wait_many_times(storage: Storage) -> None:
    """A job may wait repeatedly, each time for other jobs."""
    await storage.enqueue(jobs("a"))
    for n in range(20):
        a = await claim_one(storage)
        assert a.job.id == "a"
        await settle(storage, out(a, WAITING, followups=(job(f"x{n}"),), after=(f"x{n}",)))
        await run(storage, f"x{n}")
    await settle(storage, Outcome(id="a", version=(await claim_one(storage)).version, state=SUCCEEDED))
