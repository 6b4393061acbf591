"""Acts: outcomes that a person settles from outside. Two people who act at once are told apart. Laws 3 and 10."""

from __future__ import annotations

import asyncio

import pytest

from treadle.core.model import ACT, Outcome, Record
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
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
from treadle.testing.conformance.laws_races import peers
from treadle.testing.conformance.run import Connect

KINDS = ("cancel", "cancel running", "run now", "retry", "delete", "cancel parent")


async def acted_on(storage: Storage, kind: str) -> Record:
    """A job that can be acted on so."""
    await storage.enqueue([job("a", delay=60.0 if kind == "run now" else 0.0, root="a", keep_failed=1_000)])
    if kind == "cancel running":
        await claim_one(storage)
    elif kind in ("retry", "delete"):
        await run(storage, "a", to=FAILED)
    elif kind == "cancel parent":
        child = job("child", parent="a", root="a", delay=60)
        await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(child,), after=("child",)))
    return await row(storage, "a")


def act(of: Record, kind: str, nonce: str) -> Outcome:
    memo = ((ACT, nonce),)
    if kind == "retry":
        return back(of, memo=memo)
    if kind == "run now":
        return back(of, attempt=of.attempt, memo=memo)
    if kind == "delete":
        return Outcome(id=of.job.id, version=of.version, state=of.state, keep=0.0, memo=memo)
    return cancelled(of, attempt=of.attempt, error="cancelled by hand", memo=memo)


@pytest.mark.parametrize("kind", KINDS)
async def test_law10_two_acts_on_one_job_are_told_apart(storage: Storage, kind: str) -> None:
    """Both have seen the same row: the second one is stale, and the first one may be repeated."""
    a = await acted_on(storage, kind)
    first, second = act(a, kind, "1"), act(a, kind, "2")
    await settle(storage, first)
    before = await row(storage, "a")
    assert before.version > a.version
    assert await said(storage, second, first) == ["stale", "applied"]
    assert await row(storage, "a") == before
    assert dict(before.memo) == {ACT: "1"}


@pytest.mark.parametrize("kind", KINDS)
async def test_law10_of_many_who_act_at_once_one_is_told_so(storage: Storage, connect: Connect, kind: str) -> None:
    """Also when their calls meet in the storage."""
    a = await acted_on(storage, kind)
    calls = [each.settle([act(a, kind, str(n))]) for n, each in enumerate(await peers(storage, connect))]
    answers = [settled.status for [settled] in await asyncio.gather(*calls)]
    assert sorted(set(answers)) == ["applied", "stale"]
    assert answers.count("applied") == 1


async def test_law10_an_act_keeps_what_the_job_remembers(storage: Storage) -> None:
    """Its steps and the acts before are not lost; what is merged is seen after a retry too."""
    await storage.enqueue([job("a")])
    await settle(storage, failed(await claim_one(storage), memo=(("step", "1"),)))
    await settle(storage, act(await row(storage, "a"), "retry", "2"))
    a = await claim_one(storage)
    assert (a.state, a.round, dict(a.memo)) == (RUNNING, 1, {"step": "1", ACT: "2"})
    await settle(storage, done(a, result="1"))
    await settle(storage, act(await row(storage, "a"), "delete", "3"))
    assert dict((await row(storage, "a")).memo) == {"step": "1", ACT: "3"}


async def test_law10_a_job_that_was_deleted_is_pruned(storage: Storage, clock: HandClock) -> None:
    """An act assigns what the outcome without a nonce assigns."""
    a = await acted_on(storage, "delete")
    await settle(storage, act(a, "delete", "1"))
    clock.advance(61)
    await storage.prune(10)
    assert await storage.get(["a"]) == [None]


async def test_law03_an_act_makes_the_holder_stale(storage: Storage) -> None:
    """A run whose job was cancelled cannot end it."""
    a = await acted_on(storage, "cancel running")
    await settle(storage, act(a, "cancel running", "1"))
    assert await said(storage, done(a, result="1")) == ["stale"]
    assert await state(storage, "a") is CANCELLED
