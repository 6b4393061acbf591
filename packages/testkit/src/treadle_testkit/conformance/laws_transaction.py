"""Inside a transaction: jobs and outcomes are committed or rolled back together with the user's writes.

For `Transactional` storages. The fixture `user_transaction` opens a transaction as a user would; `begin` is the
storage's own.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from treadle.core.errors import BadSession, IdTaken, KeyHeld, UnknownUpstream
from treadle.core.limit_model import Limit
from treadle.storage.contract import Storage
from treadle.storage.locked_calls import patiently
from treadle.storage.optional_parts import Transaction, Transactional
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    RUNNING,
    SUCCEEDED,
    WAITING,
    back,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    jobs,
    out,
    row,
    said,
    settle,
    states,
)
from treadle_testkit.conformance.laws_hints import LONG, only_if
from treadle_testkit.conformance.run import Connect, UserTransaction
from treadle_testkit.shows import shows

TWO = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def own(storage: Storage) -> Transactional:
    return cast("Transactional", storage)


async def begin(storage: Storage, sync: bool = False) -> Transaction:
    return await own(storage).begin(sync)


async def commit(transaction: Transaction) -> None:
    await transaction.commit()
    await transaction.close()


# --- the user's transaction


@shows("jobs that a transaction enqueues are visible to others after its commit only")
async def test_more_jobs_are_visible_after_the_commit(storage: Storage, user_transaction: UserTransaction) -> None:
    """Before the commit other connections do not see them."""
    async with user_transaction(storage) as user:
        bound = own(storage).within(user.given)
        rows = await bound.enqueue([job("a"), job("b", after=("a",)), job("c", delay=5)])
        assert [record.job.id for record in rows] == ["a", "b", "c"]
        assert await states(storage, "a b c") == [None, None, None]
        assert [record and record.state for record in await bound.get(["a", "b", "x"])] == ["ready", "waiting", None]
        await user.commit()
    assert await claim_ids(storage) == ["a"]
    assert await states(storage, "b c") == ["waiting", "ready"]


@shows("a roll-back leaves no row, no key and no dependency")
async def test_more_a_roll_back_leaves_nothing(storage: Storage, user_transaction: UserTransaction) -> None:
    """It leaves no row, key or edge, and supersedes no job."""
    await storage.enqueue([job("old", key="k"), job("up")])
    async with user_transaction(storage) as user:
        bound = own(storage).within(user.given)
        await bound.enqueue([job("a", key="k", key_conflict="replace"), job("b", key="l"), job("c", after=("up",))])
        await user.roll_back()
    assert await states(storage, "old up a b c") == ["ready", "ready", None, None, None]
    [record] = await storage.enqueue([job("d", key="l")])
    assert record.job.id == "d"
    assert (await storage.enqueue([job("e", key="k")]))[0].job.id == "old"


async def test_more_a_connection_that_is_lost_leaves_nothing(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """The connection ends without a commit, as when its process is killed."""
    async with user_transaction(storage) as user:
        await own(storage).within(user.given).enqueue(jobs("a b"))
    assert await states(storage, "a b") == [None, None]
    assert await claim_ids(storage, 5) == []


async def test_more_a_held_key_raises_and_leaves_the_transaction_usable(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """The transaction continues as if the call had not been made."""
    await storage.enqueue([job("a", key="k")])
    async with user_transaction(storage) as user:
        bound = own(storage).within(user.given)
        with pytest.raises(KeyHeld):
            await bound.enqueue([job("x"), job("b", key="k", key_conflict="raise")])
        with pytest.raises(UnknownUpstream):
            await bound.enqueue([job("x"), job("c", after=("nobody",))])
        [kept] = await bound.enqueue([job("d", key="k")])
        assert kept.job.id == "a"
        await bound.enqueue(jobs("e"))
        await user.commit()
    assert await states(storage, "x b c d e") == [None, None, None, None, "ready"]


async def test_more_a_taken_id_raises_and_leaves_the_transaction_usable(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """Taken by a stored job or by one of the same transaction; the transaction can still be committed."""
    await storage.enqueue([job("old", nonce="1", payload="[1]")])
    async with user_transaction(storage) as user:
        bound = own(storage).within(user.given)
        await bound.enqueue([job("mine", nonce="2")])
        for taken in ("old", "mine"):
            with pytest.raises(IdTaken):
                await bound.enqueue([job("lost"), job(taken, nonce="3", payload="[2]")])
        [known] = await bound.enqueue([job("old", nonce="4", payload="[1]")])
        assert known.job.nonce == "1"
        await user.commit()
    assert await states(storage, "old mine lost") == ["ready", "ready", None]


async def test_more_a_transaction_sees_its_own_jobs(storage: Storage, user_transaction: UserTransaction) -> None:
    """Keys, ids and upstreams of the same transaction are known."""
    async with user_transaction(storage) as user:
        bound = own(storage).within(user.given)
        await bound.enqueue([job("a", key="k")])
        answers = await bound.enqueue([job("b", key="k"), job("a"), job("c", after=("b", "a"))])
        assert [record.job.id for record in answers] == ["a", "a", "c"]
        await user.commit()
    assert (await row(storage, "c")).after == ("a", "a")


async def test_more_a_storage_that_is_not_open_joins_a_transaction(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """All calls use the user's connection: opening the storage could wait for that very transaction."""
    await storage.close()
    try:
        async with user_transaction(storage) as user:
            bound = own(storage).within(user.given)
            assert [record.job.id for record in await bound.enqueue(jobs("a"))] == ["a"]
            assert [record and record.job.id for record in await bound.get(["a", "b"])] == ["a", None]
            await user.commit()
    finally:
        await storage.open()
    assert await states(storage, "a") == ["ready"]


async def test_more_a_call_within_may_be_repeated(storage: Storage, user_transaction: UserTransaction) -> None:
    """The call is repeated in the same transaction, and in another one after the commit (law 10)."""
    for _ in range(2):
        async with user_transaction(storage) as user:
            bound = own(storage).within(user.given)
            await bound.enqueue([job("a"), job("b", after=("a",))])
            await bound.enqueue([job("a"), job("b", after=("a",))])
            await user.commit()
    assert await claim_ids(storage, 5) == ["a"]


async def test_more_an_ending_within_counts_down_at_the_commit(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """Waiting jobs are unblocked, and children stored, at the commit."""
    await storage.enqueue([job("a"), job("b", after=("a",))])
    a = await claim_one(storage)
    async with user_transaction(storage) as user:
        [settled] = await own(storage).within(user.given).settle([done(a, followups=(job("x"),))])
        assert settled.status == "applied"
        assert await states(storage, "a b x") == ["running", "waiting", None]
        await user.commit()
    assert await states(storage, "a b x") == ["succeeded", "ready", "ready"]


async def test_more_a_job_whose_ending_was_rolled_back_can_be_settled(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """The holder can settle the job with the same version and a different outcome."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("b", after=("a",))])
    a = await claim_one(storage)
    async with user_transaction(storage) as user:
        await own(storage).within(user.given).settle([done(a, result="1", followups=(job("x"),))])
        await user.roll_back()
    record = await row(storage, "a")
    assert (record.state, record.version, record.result) == (RUNNING, a.version, None)
    await settle(storage, failed(a))
    assert await states(storage, "a b x") == ["failed", "cancelled", None]


async def test_more_a_stale_outcome_in_a_transaction_stores_nothing(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """The outcome and its children are not stored."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await settle(storage, back(a))
    again = await claim_one(storage)
    async with user_transaction(storage) as user:
        [settled] = await own(storage).within(user.given).settle([done(a, followups=(job("x"),))])
        assert settled.status == "stale"
        await user.commit()
    assert await states(storage, "a x") == ["running", None]
    assert await said(storage, done(again)) == ["applied"]


@shows("a commit notifies the workers of the queue")
async def test_more_a_commit_wakes_the_watchers_of_the_queue(
    storage: Storage, user_transaction: UserTransaction, speaks: bool
) -> None:
    """It wakes watchers of the queue: with some delay, but before a poll would."""
    only_if(speaks)
    watch = asyncio.create_task(storage.watch(["queue:default"], LONG))
    await asyncio.sleep(0)
    async with user_transaction(storage) as user:
        await own(storage).within(user.given).enqueue(jobs("a"))
        await user.commit()
    assert await watch == {"queue:default"}


async def test_more_an_enqueue_waits_for_a_transaction_with_its_key(
    storage: Storage, user_transaction: UserTransaction
) -> None:
    """The second enqueue waits for the transaction, and returns the row that it stored."""
    async with user_transaction(storage) as user:
        await own(storage).within(user.given).enqueue([job("a", key="k")])
        second = asyncio.ensure_future(patiently(lambda: storage.enqueue([job("b", key="k")])))
        done_, _ = await asyncio.wait([second], timeout=0.05)
        assert not done_
        await user.commit()
    assert [record.job.id for record in await second] == ["a"]


async def test_more_a_closed_connection_is_refused(storage: Storage, user_transaction: UserTransaction) -> None:
    """A closed connection is refused."""
    async with user_transaction(storage) as user:
        bound = own(storage).within(user.given)
        await user.close()
        with pytest.raises(BadSession):
            await bound.enqueue(jobs("a"))


# --- the storage's transaction


@TWO
async def test_more_a_transaction_of_a_run_commits(
    storage: Storage, user_transaction: UserTransaction, sync: bool
) -> None:
    """The outcome, its children and unblocked jobs are committed together."""
    await storage.enqueue([job("a"), job("b", after=("a",))])
    a = await claim_one(storage)
    transaction = await begin(storage, sync)
    [record] = await transaction.bound.get(["a"])
    assert record is not None
    assert record.version == a.version
    child = job("x", parent="a")
    waits = out(a, WAITING, function_done=True, followups=(child,), after=("x",))
    assert [settled.status for settled in await transaction.bound.settle([waits])] == ["applied"]
    await commit(transaction)
    assert await states(storage, "a b x") == ["waiting", "waiting", "ready"]


@TWO
async def test_more_a_transaction_of_a_run_rolls_back(
    storage: Storage, user_transaction: UserTransaction, sync: bool
) -> None:
    """Closing it without a commit leaves nothing behind, and the next one can begin."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    for act in ("roll_back", "close"):
        transaction = await begin(storage, sync)
        await transaction.bound.settle([done(a, followups=(job("x"),))])
        await getattr(transaction, act)()
        await transaction.close()
    assert await states(storage, "a x") == ["running", None]
    assert await said(storage, done(a)) == ["applied"]


async def test_more_a_lost_lease_is_seen_in_the_transaction(
    storage: Storage, user_transaction: UserTransaction, clock: HandClock
) -> None:
    """Another worker has claimed the job since: the outcome is stale, and no part of it is stored."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    clock.advance(31)
    again = await claim_one(storage)
    transaction = await begin(storage)
    [settled] = await transaction.bound.settle([done(a, followups=(job("x"),))])
    await transaction.close()
    assert settled.status == "stale"
    await settle(storage, done(again))
    assert await states(storage, "a x") == ["succeeded", None]


async def test_more_a_commit_of_a_run_is_published(
    storage: Storage, user_transaction: UserTransaction, speaks: bool
) -> None:
    """The commit publishes the same topics as any settle."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    watch = asyncio.create_task(storage.watch(["job:a"], LONG))
    await asyncio.sleep(0)
    transaction = await begin(storage)
    await transaction.bound.settle([done(a)])
    await commit(transaction)
    assert await watch == {"job:a"}


async def test_more_transactions_of_runs_side_by_side(
    storage: Storage, user_transaction: UserTransaction, connect: Connect
) -> None:
    """One after the other or concurrently, as the storage allows: none waits forever, and no job is settled twice."""
    other = await connect()
    await storage.enqueue([*jobs("a b c d e f"), job("last", after=("a", "b", "c", "d", "e", "f"))])
    rows = [await claim_one(storage) for _ in range(6)]

    async def end(number: int, found: Any) -> None:
        where = other if number % 2 else storage
        transaction = await begin(where)
        try:
            await transaction.bound.settle([done(found)])
            await asyncio.sleep(0)
            await transaction.commit()
        finally:
            await transaction.close()

    await asyncio.gather(*(end(number, record) for number, record in enumerate(rows)))
    assert await states(storage, "a b c d e f") == [SUCCEEDED] * 6
    assert await claim_ids(storage) == ["last"]
