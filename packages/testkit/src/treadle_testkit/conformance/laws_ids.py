"""Ids: enqueuing a known id stores nothing. Law 1."""

from __future__ import annotations

import pytest

from treadle.core.errors import IdTaken
from treadle.core.model import State
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    READY,
    SUCCEEDED,
    claim_ids,
    claim_one,
    done,
    ids,
    job,
    jobs,
    refusal,
    row,
    run,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

# --- ids


@shows("an enqueue of a known id returns the stored row unchanged")
async def test_law01_a_known_id_is_not_stored_again(storage: Storage, clock: HandClock) -> None:
    """A second enqueue returns the existing row and changes nothing, whatever its options are."""
    [first] = await storage.enqueue([job("a", payload="1", priority=3)])
    clock.advance(5)
    [again] = await storage.enqueue([job("a", payload="2", priority=9, delay=60)])
    assert again == first == await row(storage, "a")
    assert await claim_ids(storage, 9) == ["a"]


async def test_law01_an_id_is_known_for_as_long_as_its_row(storage: Storage, clock: HandClock) -> None:
    """A running or ended row is returned; after pruning, the id is new."""
    await storage.enqueue([job("a", keep=100)])
    running = await claim_one(storage)
    assert await storage.enqueue(jobs("a")) == [running]
    await settle(storage, done(running, result="1"))
    [ended] = await storage.enqueue(jobs("a"))
    assert (ended.state, ended.result) == (SUCCEEDED, "1")
    clock.advance(101)
    assert await storage.prune(9) == 1
    [new] = await storage.enqueue(jobs("a"))
    assert (new.state, new.created_at) == (READY, clock())


@shows("the same id twice in one call makes one row")
async def test_law01_the_same_id_twice_in_a_call(storage: Storage) -> None:
    """One row is stored, with the first one's options, and returned twice."""
    one, two = await storage.enqueue([job("a", payload="1"), job("a", payload="2")])
    assert one == two
    assert one.job.payload == "1"
    assert await claim_ids(storage, 9) == ["a"]


async def test_law01_a_chosen_id_of_another_job_is_refused(storage: Storage) -> None:
    """With a nonce, a known id is returned only for the same task and payload; otherwise nothing of the call is
    stored."""
    first = job("a", payload='\0\x1a"\\', nonce="1")
    await storage.enqueue([first])
    for other in ({"payload": "[2]"}, {"task": "u"}, {"payload": "[2]", "task": "u"}):
        sent = job("a", **{"payload": first.payload, "nonce": "2", **other})
        with pytest.raises(IdTaken) as refused:
            await storage.enqueue([job("new"), sent, job("keyed", key="k")])
        error = refused.value
        assert (error.id, error.task, error.asked, error.other) == ("a", "t", sent.task, "payload" in other)
        assert "choose another id" in str(error)
    assert await states(storage, "new keyed") == [None, None]
    assert (await row(storage, "a")).job == first


@pytest.mark.parametrize("ends", [False, True])
async def test_law01_a_chosen_id_of_the_same_job_is_known(storage: Storage, ends: bool) -> None:
    """Other calls with the same task and payload get the row, whatever their other options; it keeps the first nonce.
    A repeated call gets it too. Jobs without a nonce are never refused."""
    first = job("a", payload="[1]", nonce="1")
    await storage.enqueue([first, job("plain")])
    if ends:
        await run(storage, "a", "plain")
    for again in (
        job("a", payload="[1]", nonce="2", priority=3, key="k"),
        job("a", payload="[2]", nonce="1"),
        job("a", payload="[2]", task="u"),
    ):
        [known, new, _] = await storage.enqueue([again, job(f"b{again.nonce}"), job("plain", nonce="3")])
        assert known.job == first
        assert new.job.id == f"b{again.nonce}"
    with pytest.raises(IdTaken):
        await storage.enqueue([job("plain", payload="[7]", nonce="3")])


async def test_law01_a_chosen_id_twice_in_a_call(storage: Storage) -> None:
    """The first one counts as stored: another payload is refused, and the same payload gives one row."""
    one, two = await storage.enqueue([job("a", nonce="1", payload="[1]"), job("a", nonce="2", payload="[1]")])
    assert one == two
    assert one.job.nonce == "1"
    for first in (None, "1"):
        with pytest.raises(IdTaken):
            await storage.enqueue([job("b", nonce=first), job("c"), job("b", nonce="2", payload="[2]")])
    assert await states(storage, "b c") == [None, None]


async def test_law01_an_outcome_with_a_taken_chosen_id_is_refused(storage: Storage) -> None:
    """Among the follow-up jobs of a run: the outcome is refused, and the run can end with another one."""
    await storage.enqueue([job("a", nonce="1", payload="[1]"), job("p", queue="q")])
    parent = await claim_one(storage, "q")
    for followups in ([job("a", nonce="2")], [job("b", nonce="2"), job("b", nonce="3", payload="[1]")]):
        refused = await refusal(storage, done(parent, followups=(job("c"), *followups)))
        assert refused.status == "refused"
        assert "is taken by a job of t with other arguments" in (refused.reason or "")
    assert await states(storage, "b c p") == [None, None, State.RUNNING]
    await settle(storage, done(parent, followups=(job("a", nonce="4", payload="[1]"), job("c"))))
    assert await state(storage, "c") == READY


@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_law01_an_id_of_treadle_belongs_to_its_queue(storage: Storage, delay: float) -> None:
    """It is not returned for a job of another queue, also not within a call."""
    a, b = (f"treadle:{n:032x}:mail" for n in (1, 2))  # a user may continue an id that Treadle has made
    [first] = await storage.enqueue([job(a, queue="one", delay=delay)])
    for other in ([job(a, queue="two", delay=delay)], [job(b), job(b, queue="two")]):
        with pytest.raises(IdTaken):
            await storage.enqueue(other)
    assert await storage.get([b]) == [None]
    assert await storage.enqueue([job(a, queue="one")]) == [first]


@shows("`enqueue` returns the rows in the order of its jobs")
async def test_law01_enqueue_returns_rows_in_the_order_of_its_jobs(storage: Storage) -> None:
    """New or known, with or without a key: the n-th result is the row of the n-th job."""
    await storage.enqueue([job("known"), job("holder", key="k")])
    sent = [job("z"), job("known"), job("x", key="k"), job("a"), job("holder")]
    assert ids(await storage.enqueue(sent)) == ["z", "known", "holder", "a", "holder"]


async def test_law01_a_new_row_carries_the_very_job(storage: Storage) -> None:
    """The record of a new job has the job of the call; the record of a known one has the job that was stored before."""
    new = job("a", labels=("l",), headers=(("h", "1"),))
    [answered] = await storage.enqueue([new])
    assert answered.job == new
    [other] = await storage.enqueue([job("a", labels=("other",))])
    assert other.job == new
