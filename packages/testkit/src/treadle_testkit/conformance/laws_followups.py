"""Follow-up jobs, which are stored together with an outcome. Laws 1, 5, 6 and 14."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.model import NewJob, State
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    advance_due,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
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
)
from treadle_testkit.shows import shows

# --- follow-up jobs of an outcome


@shows("a run that waits for a promise is queued when the promise is settled or expires")
async def test_law05_the_end_of_a_promise_queues_the_run_that_waits_for_it(storage: Storage, clock: HandClock) -> None:
    """Both when it is settled and when it expires."""
    await storage.enqueue([job("a"), job("b", queue="other")])
    for id, queue in (("a", "default"), ("b", "other")):
        promise = job(f"{id}-promise", task="", root=id, parent=id, deadline=10)
        waits = out(
            await claim_one(storage, queue), WAITING, followups=(promise,), after=(promise.id,), failures_allowed=None
        )
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


async def test_law01_a_mark_is_free_when_it_is_settled_or_has_expired(storage: Storage, clock: HandClock) -> None:
    """A row without a task holds its key while it is unfinished."""

    def mark(id: str) -> NewJob:
        return job(id, task="", key="once", deadline=10)

    assert ids(await storage.enqueue([mark("a")])) == ["a"]
    [held] = await storage.enqueue([mark("b")])
    assert held.id == "a"
    await settle(storage, cancelled(held))
    assert ids(await storage.enqueue([mark("c")])) == ["c"]
    assert ids(await storage.enqueue([mark("d")])) == ["c"]
    clock.advance(11)
    await advance_due(storage)
    assert ids(await storage.enqueue([mark("e")])) == ["e"]


@shows("follow-up jobs are stored in the same step as their outcome")
async def test_law06_followup_jobs_are_stored_with_their_outcome(storage: Storage) -> None:
    """The follow-up jobs of an outcome are stored in its step, with their edges."""
    await storage.enqueue(jobs("a"))
    await settle(
        storage, done(await claim_one(storage), followups=(job("x", root="a"), job("y", after=("x",), root="a")))
    )
    assert await claim_ids(storage, 9) == ["x"]
    assert ((await row(storage, "y")).pending, (await row(storage, "y")).job.root) == (1, "a")


@pytest.mark.parametrize("to", [READY, WAITING, FAILED, CANCELLED])
async def test_law06_any_outcome_may_have_followup_jobs(storage: Storage, to: State) -> None:
    """Every outcome may have follow-up jobs: a schedule's next tick comes with READY."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    after = ("p",) if to is WAITING else ()
    await settle(storage, out(await claim_one(storage), to, delay=60.0, followups=(job("x"),), after=after))
    assert await claim_ids(storage, 9) == ["x"]


async def test_law06_a_followup_job_may_wait_for_the_job_itself(storage: Storage) -> None:
    """The job's ending is counted in the same step."""
    await storage.enqueue(jobs("a"))
    await settle(storage, done(await claim_one(storage), followups=(job("x", after=("a",)),)))
    assert await claim_ids(storage, 9) == ["x"]


@shows("an outcome with a follow-up job that is refused stores nothing")
async def test_law06_a_refused_outcome_stores_nothing(storage: Storage) -> None:
    """`followups` with an unknown upstream: the outcome fails alone, and the row is unchanged."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2)
    before = await row(storage, "a")
    bad, good = await storage.settle([done(a, followups=(job("x"), job("y", after=("nobody",)))), done(b)])
    assert (bad.status, good.status) == ("refused", "applied")
    assert bad.reason
    assert "nobody" in bad.reason
    assert await row(storage, "a") == before
    assert await storage.get(["x", "y"]) == [None, None]
    await settle(storage, done(a))


async def test_law14_an_outcome_that_waits_for_an_unknown_job_is_refused(storage: Storage) -> None:
    """An outcome that waits for an unknown job fails alone, and the other outcomes of the call are applied."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2)
    assert await said(storage, out(a, WAITING, after=("nobody",), followups=(job("x"),)), done(b)) == [
        "refused",
        "applied",
    ]
    assert await state(storage, "a") is RUNNING
    assert await storage.get(["x"]) == [None]


async def test_law14_a_followup_job_whose_key_is_held_is_refused(storage: Storage) -> None:
    """A child with key_conflict="raise" and a held key: refused with the reason, and nothing is stored."""
    await storage.enqueue([*jobs("a b"), job("holder", key="k", delay=99)])
    a, b = await claim(storage, 2)
    outcome = done(a, followups=(job("x"), job("y", key="k", key_conflict="raise")))
    assert await said(storage, outcome, done(b)) == ["refused", "applied"]
    assert (await state(storage, "a"), await storage.get(["x", "y"])) == (RUNNING, [None, None])


@shows("a follow-up job that is stored already is not stored again")
async def test_law06_a_known_followup_job_is_not_stored_again(storage: Storage) -> None:
    """A tick that is stored already is not stored again."""
    await storage.enqueue([job("a"), job("tick", payload="1", delay=99)])
    await settle(storage, done(await claim_one(storage), followups=(job("tick", payload="2"),)))
    assert (await row(storage, "tick")).job.payload == "1"


async def test_law06_a_child_whose_id_is_known_is_waited_for(storage: Storage) -> None:
    """It is not stored again, and the parent waits for the stored one, whichever job created it."""
    await storage.enqueue([job("a"), job("known", delay=99)])
    children = (job("known"), job("y"))
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=children, after=("known", "y"))
    )
    a = await row(storage, "a")
    assert (a.after, a.pending) == (("known", "y"), 2)
    await run(storage, "y")
    assert await claim_ids(storage) == []


async def test_law06_a_parent_waits_for_the_holder_of_its_childs_key(storage: Storage) -> None:
    """The parent waits for the key's holder as for its children, and `after` names it once per child it replaces."""
    await storage.enqueue([job("a"), job("holder", key="k", queue="h")])
    followups = (job("x", key="k"), job("y"), job("z", key="k"))
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=followups, after=("x", "y", "z"))
    )
    a = await row(storage, "a")
    assert (a.state, a.pending, a.after) == (WAITING, 2, ("holder", "y", "holder"))
    await run(storage, "y")
    assert await claim_ids(storage) == []
    await run(storage, "holder", result="7")
    a = await claim_one(storage)
    assert (a.job.id, a.function_done, a.after) == ("a", True, ("holder", "y", "holder"))


async def test_law06_two_children_with_one_key_are_one_job(storage: Storage) -> None:
    """The first child gets the key, and the second is deduplicated to it."""
    await storage.enqueue([job("a")])
    followups = (job("x", key="k"), job("y", key="k"))
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=followups, after=("x", "y"))
    )
    a = await row(storage, "a")
    assert (a.pending, a.after) == (1, ("x", "x"))
    await run(storage, "x")
    assert await claim_ids(storage) == ["a"]


async def test_law06_a_child_whose_holder_has_ended_ends_at_once(storage: Storage) -> None:
    """Within the window of its key, the parent does not wait for it."""
    await storage.enqueue([job("holder", key="k", key_window=100.0, queue="h"), job("a")])
    await run(storage, "holder")
    await settle(
        storage,
        out(await claim_one(storage), WAITING, function_done=True, followups=(job("x", key="k"),), after=("x",)),
    )
    a = await claim_one(storage)
    assert (a.job.id, a.function_done, a.after) == ("a", True, ("holder",))


async def test_law06_a_holder_that_waits_for_the_parent_is_not_waited_for(storage: Storage) -> None:
    """It is the parent's own parent, or waits for that, so neither could end. The parent waits for the other
    children."""
    await storage.enqueue([job("a", key="a", queue="a"), job("far", key="far", after=("a",), queue="far")])
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, function_done=True, followups=(job("b", key="b"),), after=("b",)))
    followups = (job("x", key="a"), job("y", key="far"), job("z", key="b"), job("own", queue="own"))
    await settle(
        storage,
        out(await claim_one(storage), WAITING, function_done=True, followups=followups, after=("x", "y", "z", "own")),
    )
    b = await row(storage, "b")
    assert (b.state, b.pending, b.after) == (WAITING, 1, ("own",))
    await run(storage, "own")
    await run(storage, "b")
    assert [record.job.id for record in await claim(storage, 1, "a")] == ["a"]


async def test_law06_a_parent_whose_children_wait_for_it_is_queued_at_once(storage: Storage) -> None:
    """The parent has nothing to wait for."""
    await storage.enqueue([job("a", key="k")])
    await settle(
        storage,
        out(await claim_one(storage), WAITING, function_done=True, followups=(job("x", key="k"),), after=("x",)),
    )
    a = await claim_one(storage)
    assert (a.job.id, a.function_done, a.after) == ("a", True, ())


async def test_law06_a_child_that_would_wait_for_its_own_parent_is_refused(storage: Storage) -> None:
    """It waits for a child deduplicated to the grandparent, so none of them could end. Nothing is stored, and the
    reason names the cycle."""
    await storage.enqueue([job("a", key="k", queue="a")])
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, function_done=True, followups=(job("b"),), after=("b",)))
    followups = (job("x", key="k"), job("y", after=("x",)))
    refused = await refusal(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=followups, after=("x", "y"))
    )
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
    """A child that waits for its parent or grandparent: none could end. Nothing is stored, and the reason names it."""
    await storage.enqueue([job("a", queue="a")])
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, function_done=True, followups=(job("b"),), after=("b",)))
    followups = (job("x", after=(up,)), job("y", after=("x",)))
    waits = ("x", "y") if behind == "itself" else ("y",)
    refused = await refusal(
        storage, out(b := await claim_one(storage), WAITING, function_done=True, followups=followups, after=waits)
    )
    assert (refused.status, refused.again) == ("refused", False)
    assert refused.reason is not None
    assert refused.reason.startswith(f"job x would wait for job {up}")
    assert await storage.get(["x", "y"]) == [None, None]
    assert (await row(storage, "b")).state is RUNNING
    await settle(storage, done(b))
    assert [record.job.id for record in await claim(storage, 1, "a")] == ["a"]


async def test_law06_a_child_may_name_a_stored_job_that_waits_for_no_ancestor(storage: Storage) -> None:
    """An unrelated job, and one that has ended. A child that waits for an ancestor is allowed if no job waits for
    it."""
    await storage.enqueue([job("a", queue="a"), job("beside", queue="far"), job("old", queue="far")])
    await run(storage, "old")
    [a] = await claim(storage, 1, "a")
    await settle(storage, out(a, WAITING, function_done=True, followups=(job("b"),), after=("b",)))
    followups = (job("x", after=("beside", "old")), job("free", after=("a",)))
    await settle(storage, out(await claim_one(storage), WAITING, function_done=True, followups=followups, after=("x",)))
    await run(storage, "beside")
    await run(storage, "x")
    await run(storage, "b")
    await run(storage, "a")
    await run(storage, "free")


async def test_law06_one_of_two_parents_whose_children_name_the_other_is_refused(storage: Storage) -> None:
    """The two calls are concurrent, and afterwards both jobs can end."""
    for n in range(5):
        await storage.enqueue([job(f"a{n}"), job(f"b{n}")])
        a, b = await claim(storage, 2)
        outs = [
            out(a, WAITING, function_done=True, followups=(job(f"x{n}", after=(f"b{n}",)),), after=(f"x{n}",)),
            out(b, WAITING, function_done=True, followups=(job(f"y{n}", after=(f"a{n}",)),), after=(f"y{n}",)),
        ]
        answers = await asyncio.gather(*(storage.settle([outcome]) for outcome in outs))
        statuses = sorted(answer.status for [answer] in answers)
        assert statuses == ["applied", "refused"]
        [refused] = [outcome for outcome, [answer] in zip((a, b), answers, strict=True) if answer.status == "refused"]
        await settle(storage, done(refused))


async def test_law06_one_of_two_parents_with_each_others_keys_does_not_wait(storage: Storage) -> None:
    """Two jobs concurrently return a child with the key of the other: both end."""
    for n in range(5):
        await storage.enqueue([job(f"a{n}", key=f"a{n}"), job(f"b{n}", key=f"b{n}")])
        a, b = await claim(storage, 2)
        outs = [
            out(a, WAITING, function_done=True, followups=(job(f"x{n}", key=f"b{n}"),), after=(f"x{n}",)),
            out(b, WAITING, function_done=True, followups=(job(f"y{n}", key=f"a{n}"),), after=(f"y{n}",)),
        ]
        answers = await asyncio.gather(*(storage.settle([outcome]) for outcome in outs))
        for outcome, [answer] in zip(outs, answers, strict=True):
            while answer.again:
                [answer] = await storage.settle([outcome])
            assert answer.status == "applied"
        [first] = await claim(storage, 2)
        await settle(storage, done(first))
        [second] = await claim(storage, 2)
        await settle(storage, done(second))
        assert {first.job.id, second.job.id} == {f"a{n}", f"b{n}"}


async def test_law06_a_followup_job_waits_for_the_holder_that_replaced_its_upstream(storage: Storage) -> None:
    """Edges among the follow-up jobs of one outcome lead to the row that was returned."""
    await storage.enqueue([job("a"), job("holder", key="k", queue="h")])
    await settle(storage, done(await claim_one(storage), followups=(job("x", key="k"), job("y", after=("x",)))))
    assert (await row(storage, "y")).after == ("holder",)
    await run(storage, "holder")
    assert await claim_ids(storage) == ["y"]
