"""Keys with which a new job replaces the queued one, and the keys of endings and children. Laws 1, 5, 6 and 10."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import State
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
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    ids,
    job,
    out,
    row,
    run,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

# --- replace


async def test_law01_replacing_a_queued_job(storage: Storage) -> None:
    """A holder that was never claimed is cancelled as superseded; the new job takes the key."""
    await storage.enqueue([job("a", key="k"), job("down", after=("a",))])
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace")])
    assert (b.job.id, b.state, b.pending) == ("b", READY, 0)
    a = await row(storage, "a")
    assert (a.state, a.reason) == (CANCELLED, "superseded")
    assert (await row(storage, "down")).reason == "upstream"
    assert await claim_ids(storage, 9) == ["b"]


async def test_law01_replacing_a_job_that_is_not_queued(storage: Storage, clock: HandClock) -> None:
    """Delayed, waiting, blocked by a limit, handed back, lost: all are replaced."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([job("p", task=""), job("delayed", key="1", delay=9), job("blocked", key="2", after=("p",))])
    await storage.enqueue([job("aside", key="3", limits=(("shut", 1),))])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([job("back", key="4")])
    await settle(storage, back(await claim_one(storage)))
    await storage.enqueue([job("lost", key="5", priority=1)])
    await claim_one(storage, lease=5)
    clock.advance(6)
    await advance_due(storage)
    await storage.enqueue([job(f"new{n}", key=str(n), key_conflict="replace") for n in range(1, 6)])
    rows = [await row(storage, id) for id in ("delayed", "blocked", "aside", "back", "lost")]
    assert [(record.state, record.reason) for record in rows] == [(CANCELLED, "superseded")] * 5
    assert await claim_ids(storage, 9) == [f"new{n}" for n in range(1, 6)]


@pytest.mark.parametrize("ending", [SUCCEEDED, FAILED, CANCELLED, READY])
async def test_law01_replacing_a_job_that_runs(storage: Storage, ending: State) -> None:
    """It gives up its key and continues to run; the new job waits for its ending, of whichever kind."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace")])
    assert (b.state, b.pending) == (WAITING, 1)
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"
    assert await claim_ids(storage, 9) == []
    await settle(storage, out(a, ending))
    if ending is READY:
        assert await claim_ids(storage, 9) == ["a"]
        await settle(storage, failed(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b"]
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"


async def test_law01_replacing_one_that_waits_for_its_children(storage: Storage) -> None:
    """A job whose function is done gives up its key too, whether it waits for children or is queued."""
    await storage.enqueue([job("a", key="k"), job("b", key="l"), job("p", task="")])
    a, b = await claim(storage, 2)
    await settle(
        storage, out(a, WAITING, function_done=True, after=("p",)), out(b, WAITING, function_done=True, after=())
    )
    assert await states(storage, "a b") == [WAITING, READY]
    new = await storage.enqueue([job(f"new-{key}", key=key, key_conflict="replace") for key in "kl"])
    assert [(record.state, record.pending) for record in new] == [(WAITING, 1), (WAITING, 1)]
    await run(storage, "b")
    assert await states(storage, "a b new-k new-l") == [WAITING, SUCCEEDED, WAITING, READY]
    await settle(storage, done(await row(storage, "p")))
    await run(storage, "a")
    assert await state(storage, "new-k") is READY


async def test_law01_a_replacing_job_waits_for_the_old_one_and_its_upstreams(storage: Storage) -> None:
    """The new job waits for the old one and for its own upstreams; a failure of the old one does not count as
    theirs."""
    await storage.enqueue([job("a", key="k"), job("p", task="")])
    a = await claim_one(storage)
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace", after=("p",))])
    assert (b.pending, b.after, b.failures_allowed) == (2, ("p",), 0)
    await settle(storage, failed(a))
    assert ((await row(storage, "b")).pending, await state(storage, "b")) == (1, WAITING)
    await settle(storage, done(await row(storage, "p")))
    assert await claim_ids(storage) == ["b"]


async def test_law01_replacing_a_job_that_waits_to_replace_another(storage: Storage) -> None:
    """The third replaces the second, and waits for the first as the second did: no two jobs of a key run at once."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    await storage.enqueue([job("b", key="k", key_conflict="replace")])
    [c] = await storage.enqueue([job("c", key="k", key_conflict="replace")])
    assert ((await row(storage, "b")).reason, c.state, c.pending) == ("superseded", WAITING, 1)
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == ["c"]


async def test_law01_replacing_a_running_one_that_it_waits_for_by_name(storage: Storage) -> None:
    """The new job waits for the holder only once: one ending releases it."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace", after=("a",))])
    assert (b.state, b.pending) == (WAITING, 1)
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == ["b"]


async def test_law01_replacing_one_of_the_call_that_has_ended(storage: Storage) -> None:
    """It was enqueued by the same call, doomed by its upstream, and holds its key for a window. It ends once, and the
    last job of the call waits for nothing."""
    await storage.enqueue([job("up")])
    await settle(storage, failed(await claim_one(storage)))
    waits = job("b", key="k", key_window=60.0, after=("up",))
    await storage.enqueue([waits, job("c", key="k", key_conflict="replace")])
    b = await row(storage, "b")
    assert (b.version, b.state, b.reason) == (1, CANCELLED, "upstream")
    assert "c" in await claim_ids(storage, 9)


async def test_law10_a_repeated_call_replaces_no_job(storage: Storage) -> None:
    """A repeated call replaces no job, including its own."""
    await storage.enqueue([job("a", key="k")])
    sent = [job("b", key="k", key_conflict="replace")]
    first = await storage.enqueue(sent)
    assert await storage.enqueue(sent) == first
    assert await claim_ids(storage, 9) == ["b"]


async def test_law01_a_job_may_replace_another_of_its_call(storage: Storage) -> None:
    """The last job of the call holds the key."""
    await storage.enqueue([job("a", key="k"), job("b", key="k", key_conflict="replace")])
    assert (await row(storage, "a")).reason == "superseded"
    assert await claim_ids(storage, 9) == ["b"]


# --- endings


@shows("a job can store its successor under its own key with its outcome")
async def test_law06_an_outcome_frees_its_key_before_its_followup_jobs_are_stored(storage: Storage) -> None:
    """A job that enqueues itself again under its own key is stored, three times in a row."""
    await storage.enqueue([job("r0", key="k")])
    for n in range(3):
        record = await claim_one(storage)
        assert record.job.id == f"r{n}"
        await settle(storage, done(record, followups=(job(f"r{n + 1}", key="k", key_conflict="raise"),)))
    assert await state(storage, "r3") is READY


async def test_law06_an_outcome_that_does_not_end_keeps_its_key(storage: Storage) -> None:
    """It holds its key on: a follow-up job with that key is deduplicated to it."""
    await storage.enqueue([job("a", key="k")])
    await settle(storage, back(await claim_one(storage), 60, followups=(job("x", key="k"), job("y"))))
    assert await states(storage, "x y") == [None, READY]


@pytest.mark.parametrize("to", [READY, WAITING])
async def test_law06_a_child_takes_its_parents_key(storage: Storage, to: State) -> None:
    """After an outcome that does not end the parent, the child holds the key and does not wait for the parent."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    child = job("x", key="k", key_conflict="replace")
    after = {"after": ("x",)} if to is WAITING else {"delay": 60}
    await settle(storage, out(a, to, followups=(child,), **after))
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "x"
    assert await states(storage, "a x") == [to, READY]
    await run(storage, "x")
    [c] = await storage.enqueue([job("c", key="k")])
    assert c.job.id == "c"
    if to is WAITING:
        assert await claim_ids(storage, 9) == ["a", "c"]


async def test_law06_a_child_replaces_the_one_that_waits_for_its_parent(storage: Storage) -> None:
    """A job that took the key of the running parent waits for it; the child that replaces this job does not."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    await storage.enqueue([job("b", key="k", key_conflict="replace")])
    child = job("x", key="k", key_conflict="replace")
    await settle(storage, out(a, WAITING, followups=(child,), after=("x",)))
    assert await states(storage, "a b x") == [WAITING, CANCELLED, READY]
    await run(storage, "x")
    await run(storage, "a")


@pytest.mark.parametrize("to", [READY, WAITING])
async def test_law06_a_child_that_replaces_a_job_that_waits_for_its_parent_does_not_wait_for_it(
    storage: Storage, to: State
) -> None:
    """It takes the key of its grandparent, or of a job that waits for that one; neither can end before the child
    has."""
    await storage.enqueue([job("a", key="a", queue="a"), job("far", key="far", queue="far")])
    [a] = await claim(storage, 1, "a")
    [far] = await claim(storage, 1, "far")
    await settle(storage, out(far, WAITING, function_done=True, followups=(), after=("a",)))
    await settle(storage, out(a, WAITING, function_done=True, followups=(job("b"),), after=("b",)))
    followups = (job("x", key="a", key_conflict="replace"), job("y", key="far", key_conflict="replace"))
    after: dict[str, Any] = {"after": ("x", "y"), "function_done": True} if to is WAITING else {}
    await settle(storage, out(await claim_one(storage), to, followups=followups, **after))
    assert await states(storage, "a far x y") == [WAITING, WAITING, READY, READY]
    [known] = await storage.enqueue([job("later", key="a")])
    assert known.job.id == "x"
    for id in ("x", "y", "b"):
        await run(storage, id)
    for id in ("a", "far"):
        [last] = await claim(storage, 1, id)
        assert last.job.id == id
        await settle(storage, done(last))


async def test_law06_a_child_that_replaces_one_behind_its_grandparent_does_not_wait_for_that(storage: Storage) -> None:
    """The replaced job waited for the grandparent, which waits for the parent, which waits for the child."""
    await storage.enqueue([job("a", key="k", queue="a")])
    [a] = await claim(storage, 1, "a")
    await storage.enqueue([job("newer", key="k", key_conflict="replace")])
    await settle(storage, out(a, WAITING, function_done=True, followups=(job("b"),), after=("b",)))
    followups = (job("x", key="k", key_conflict="replace"),)
    await settle(storage, out(await claim_one(storage), WAITING, function_done=True, followups=followups, after=("x",)))
    assert await states(storage, "a newer b x") == [WAITING, CANCELLED, WAITING, READY]
    for id in ("x", "b"):
        await run(storage, id)
    assert [record.job.id for record in await claim(storage, 1, "a")] == ["a"]


async def test_law06_one_of_two_children_that_replace_each_other_does_not_wait(storage: Storage) -> None:
    """Two jobs concurrently return a child that takes the other's key: all of them end."""
    for n in range(5):
        await storage.enqueue([job(f"a{n}", key=f"a{n}"), job(f"b{n}", key=f"b{n}")])
        a, b = await claim(storage, 2)
        outs = [
            out(
                a,
                WAITING,
                function_done=True,
                followups=(job(f"x{n}", key=f"b{n}", key_conflict="replace"),),
                after=(f"x{n}",),
            ),
            out(
                b,
                WAITING,
                function_done=True,
                followups=(job(f"y{n}", key=f"a{n}", key_conflict="replace"),),
                after=(f"y{n}",),
            ),
        ]
        answers = await asyncio.gather(*(storage.settle([outcome]) for outcome in outs))
        for outcome, [answer] in zip(outs, answers, strict=True):
            while answer.again:
                [answer] = await storage.settle([outcome])
            assert answer.status == "applied"
        ended: list[str] = []
        while len(ended) < 4:
            [next_one] = await claim(storage, 1)
            await settle(storage, done(next_one))
            ended.append(next_one.job.id)
        assert sorted(ended) == [f"a{n}", f"b{n}", f"x{n}", f"y{n}"]


async def test_law06_a_followup_job_with_the_key_of_an_ended_job_does_not_wait(storage: Storage) -> None:
    """A final outcome frees its key before its `followups` are stored, whatever their key_conflict."""
    await storage.enqueue([job("a", key="k")])
    await settle(storage, done(await claim_one(storage), followups=(job("x", key="k", key_conflict="replace"),)))
    assert await states(storage, "a x") == [SUCCEEDED, READY]


async def test_law01_many_keys_in_one_call(storage: Storage) -> None:
    """A thousand jobs; one half is deduplicated to the other."""
    await storage.enqueue([job(f"a{n:03}", key=f"k{n:03}") for n in range(0, 1_000, 2)])
    rows = await storage.enqueue([job(f"b{n:03}", key=f"k{n:03}") for n in range(1_000)])
    assert ids(rows) == [f"{'ba'[n % 2 == 0]}{n:03}" for n in range(1_000)]


async def test_law05_an_ending_whose_child_takes_the_key_of_one_that_waits_for_it(storage: Storage) -> None:
    """The holder ran, so it is not superseded: this ending unblocks it, and the child waits for the holder's ending."""
    await storage.enqueue([job("up")])
    await storage.enqueue([job("holder", key="k", function_done=True, after=("up",), failures_allowed=None)])
    up = await claim_one(storage)
    await settle(storage, done(up, followups=(job("child", key="k", key_conflict="replace"),)))
    holder = await claim_one(storage)
    assert holder.job.id == "holder"
    assert (await row(storage, "child")).state is WAITING
    await settle(storage, done(holder))
    assert await claim_ids(storage, 9) == ["child"]
