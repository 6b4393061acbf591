"""Acts: outcomes that a person settles from outside. Two concurrent acts are distinguished. Laws 3 and 10."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.model import ACT, Outcome, Record
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    RUNNING,
    WAITING,
    back,
    cancelled,
    claim_one,
    done,
    failed,
    job,
    out,
    row,
    run,
    said,
    settle,
    state,
)
from treadle_testkit.conformance.laws_races import peers
from treadle_testkit.conformance.run import Connect

KINDS = ("cancel", "cancel running", "run now", "retry", "delete", "cancel parent")


async def acted_on(storage: Storage, kind: str) -> Record:
    """A job in a state that allows this act."""
    await storage.enqueue([job("a", delay=60.0 if kind == "run now" else 0.0, root="a", keep_failed=1_000)])
    if kind == "cancel running":
        await claim_one(storage)
    elif kind in ("retry", "delete"):
        await run(storage, "a", to=FAILED)
    elif kind == "cancel parent":
        child = job("child", parent="a", root="a", delay=60)
        await settle(
            storage, out(await claim_one(storage), WAITING, function_done=True, followups=(child,), after=("child",))
        )
    return await row(storage, "a")


def act(of: Record, kind: str, nonce: str) -> Outcome:
    checkpoints = ((ACT, nonce),)
    if kind == "retry":
        return back(of, checkpoints=checkpoints)
    if kind == "run now":
        return back(of, attempt=of.attempt, checkpoints=checkpoints)
    if kind == "delete":
        return Outcome(id=of.job.id, version=of.version, state=of.state, keep=0.0, checkpoints=checkpoints)
    return cancelled(of, attempt=of.attempt, error="cancelled by hand", checkpoints=checkpoints)


@pytest.mark.parametrize("kind", KINDS)
async def test_law10_the_second_of_two_acts_on_one_job_is_stale(storage: Storage, kind: str) -> None:
    """Both have read the same row: the second one is stale, and the first one may be repeated."""
    a = await acted_on(storage, kind)
    first, second = act(a, kind, "1"), act(a, kind, "2")
    await settle(storage, first)
    before = await row(storage, "a")
    assert before.version > a.version
    assert await said(storage, second, first) == ["stale", "applied"]
    assert await row(storage, "a") == before
    assert dict(before.checkpoints) == {ACT: "1"}


@pytest.mark.parametrize("kind", KINDS)
async def test_law10_one_of_many_concurrent_acts_is_applied(storage: Storage, connect: Connect, kind: str) -> None:
    """The calls are concurrent."""
    a = await acted_on(storage, kind)
    calls = [peer.settle([act(a, kind, str(n))]) for n, peer in enumerate(await peers(storage, connect))]
    answers = [settled.status for [settled] in await asyncio.gather(*calls)]
    assert sorted(set(answers)) == ["applied", "stale"]
    assert answers.count("applied") == 1


async def test_law10_an_act_keeps_the_checkpoints_of_the_job(storage: Storage) -> None:
    """Steps and earlier acts are not lost; the merged checkpoints are still there after a retry."""
    await storage.enqueue([job("a")])
    await settle(storage, failed(await claim_one(storage), checkpoints=(("step", "1"),)))
    await settle(storage, act(await row(storage, "a"), "retry", "2"))
    a = await claim_one(storage)
    assert (a.state, a.reopenings, dict(a.checkpoints)) == (RUNNING, 1, {"step": "1", ACT: "2"})
    await settle(storage, done(a, result="1"))
    await settle(storage, act(await row(storage, "a"), "delete", "3"))
    assert dict((await row(storage, "a")).checkpoints) == {"step": "1", ACT: "3"}


async def test_law10_a_job_that_was_deleted_is_pruned(storage: Storage, clock: HandClock) -> None:
    """An act assigns the same fields as an outcome without a nonce."""
    a = await acted_on(storage, "delete")
    await settle(storage, act(a, "delete", "1"))
    clock.advance(61)
    await storage.prune(10)
    assert await storage.get(["a"]) == [None]


async def test_law03_an_act_makes_the_holder_stale(storage: Storage) -> None:
    """A run whose job was cancelled cannot settle it."""
    a = await acted_on(storage, "cancel running")
    await settle(storage, act(a, "cancel running", "1"))
    assert await said(storage, done(a, result="1")) == ["stale"]
    assert await state(storage, "a") is CANCELLED


@pytest.mark.parametrize("second", [(("paused", "1"),), (("cursor", "8"),), (("cursor", "7"), ("paused", "1"))])
async def test_law03_outcomes_that_differ_only_in_checkpoints(
    storage: Storage, second: tuple[tuple[str, str], ...]
) -> None:
    """Such as two changes of one schedule, both made from the same row: the second one is stale, and the first one may
    be repeated, also with a name that it assigns twice."""
    await storage.enqueue([job("a", delay=60.0)])
    a = await row(storage, "a")
    first = back(a, attempt=a.attempt, delay=60.0, checkpoints=(("cursor", "6"), ("cursor", "7")))
    await settle(storage, first)
    before = await row(storage, "a")
    again = back(a, attempt=a.attempt, delay=60.0, checkpoints=second)
    assert await said(storage, again, first) == ["stale", "applied"]
    assert await row(storage, "a") == before
    assert dict(before.checkpoints) == {"cursor": "7"}


async def test_law03_a_repetition_whose_own_notes_have_other_times(storage: Storage) -> None:
    """A runner that lost the answer to its report sends the report again, with a later end of the attempt."""
    await storage.enqueue([job("a")])
    a = await claim_one(storage)
    first = back(a, checkpoints=(("step", "1"), ("treadle:attempt:1", '{"at": 1}')))
    await settle(storage, first)
    again = back(a, checkpoints=(("step", "1"), ("treadle:attempt:1", '{"at": 2}')))
    other = back(a, checkpoints=(("step", "2"), ("treadle:attempt:1", '{"at": 1}')))
    assert await said(storage, again, other) == ["applied", "stale"]
    assert dict((await row(storage, "a")).checkpoints) == dict(first.checkpoints)


async def test_law03_a_repetition_after_checkpoints_of_earlier_outcomes(storage: Storage) -> None:
    """A row has the checkpoints of all its outcomes; a repetition needs only its own."""
    await storage.enqueue([job("a")])
    await settle(storage, back(await claim_one(storage), checkpoints=(("one", "1"), ("two", "1"))))
    last = back(await claim_one(storage), checkpoints=(("two", "2"),))
    await settle(storage, last)
    assert await said(storage, last, last) == ["applied", "applied"]
    assert dict((await row(storage, "a")).checkpoints) == {"one": "1", "two": "2"}
