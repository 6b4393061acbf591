"""Keys: one unfinished job for each. Laws 1 and 10."""

from __future__ import annotations

import pytest

from treadle.core.errors import KeyHeld, UnknownUpstream
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
    ids,
    job,
    jobs,
    out,
    row,
    run,
    settle,
    state,
    states,
)
from treadle_testkit.shows import shows

# --- keys


@shows("a job whose key is held is not stored; `enqueue` returns the holder unchanged")
async def test_law01_a_held_key_returns_the_holder(storage: Storage) -> None:
    """One unfinished job per key: the second enqueue returns it unchanged and stores nothing."""
    await storage.enqueue([job("a", key="k", payload="1")])
    [answered] = await storage.enqueue([job("b", key="k", payload="2")])
    assert (answered.job.id, answered.job.payload) == ("a", "1")
    assert await storage.get(["b"]) == [None]


@shows("a key is free as soon as its job has ended, in whichever final state")
@pytest.mark.parametrize("ending", [SUCCEEDED, FAILED, CANCELLED])
async def test_law01_a_key_is_free_once_the_job_has_ended(storage: Storage, ending: State) -> None:
    """The key is free after every kind of ending."""
    await storage.enqueue([job("a", key="k")])
    await run(storage, "a", to=ending)
    [b] = await storage.enqueue([job("b", key="k")])
    assert b.job.id == "b"
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"


async def test_law01_a_key_is_held_in_every_unfinished_state(storage: Storage, clock: HandClock) -> None:
    """The job holds its key while it is delayed, waiting, queued, running, released, lost, or waiting for children."""
    await storage.enqueue([job("up"), job("a", key="k", after=("up",), delay=5)])

    async def holder() -> str:
        [answered] = await storage.enqueue([job("b", key="k")])
        return answered.job.id

    assert await holder() == "a"
    await run(storage, "up")
    assert await holder() == "a"
    clock.advance(5)
    a = await claim_one(storage, lease=10)
    assert await holder() == "a"
    await settle(storage, back(a))
    assert await holder() == "a"
    await claim_one(storage, lease=10)
    clock.advance(11)
    await advance_due(storage)
    assert await holder() == "a"
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=(job("x"),), after=("x",))
    )
    assert await holder() == "a"
    await run(storage, "x")
    await run(storage, "a")
    assert await holder() == "b"


async def test_law01_a_key_is_free_when_the_storage_ends_the_job(storage: Storage, clock: HandClock) -> None:
    """Expired and doomed jobs release their keys too."""
    await storage.enqueue([job("a", key="k", deadline=10), job("b", key="l", after=("a",))])
    clock.advance(10)
    await advance_due(storage)
    assert ids(await storage.enqueue([job("c", key="k"), job("d", key="l")])) == ["c", "d"]


@shows("the same key twice in one call makes one row, and the other jobs of the call are stored")
async def test_law01_the_same_key_twice_in_a_call(storage: Storage) -> None:
    """One row is stored, and the second job returns it; the rest of the call is not affected."""
    rows = await storage.enqueue([job("a", key="k"), job("b", key="k"), job("c", key="l"), job("d")])
    assert ids(rows) == ["a", "a", "c", "d"]
    assert await claim_ids(storage, 9) == ["a", "c", "d"]


@shows("a dependency on a job that its key deduplicated is a dependency on the holder")
async def test_law01_a_job_waits_for_the_holder_of_its_upstreams_key(storage: Storage) -> None:
    """Jobs that name a deduplicated job of the same call wait for the row that was returned; the record shows it."""
    await storage.enqueue([job("holder", key="k")])
    [_, z] = await storage.enqueue([job("x", key="k"), job("z", after=("x",), queue="z")])
    assert (z.state, z.after, z.job.id) == (WAITING, ("holder",), "z")
    await run(storage, "holder")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law01_two_upstreams_that_are_one_row(storage: Storage) -> None:
    """Both were deduplicated to one holder, so there is one ending to wait for."""
    await storage.enqueue([job("holder", key="k")])
    sent = [*jobs("x y", key="k"), job("z", after=("x", "holder", "y"), queue="z")]
    rows = await storage.enqueue(sent)
    assert (rows[2].after, rows[2].pending) == (("holder", "holder", "holder"), 1)
    await run(storage, "holder")
    assert await claim_ids(storage, 1, "z") == ["z"]


@pytest.mark.parametrize("window", [None, 100.0])
async def test_law01_after_keeps_its_order(storage: Storage, window: float | None) -> None:
    """Results are matched to upstreams by their order in `after`, also for a holder that has ended."""
    await storage.enqueue([job("holder", key="k", key_window=window), job("other")])
    if window is not None:
        await run(storage, "holder")
    sent = [job("x", key="k"), job("y", key="k"), job("z", after=("x", "other", "y"), queue="z")]
    assert (await storage.enqueue(sent))[2].after == ("holder", "other", "holder")
    await run(storage, "other")
    if window is None:
        assert await claim_ids(storage, 1, "z") == []
        await run(storage, "holder")
    [z] = await claim(storage, 1, "z")
    assert (z.job.id, z.after) == ("z", ("holder", "other", "holder"))


async def test_law01_at_least_so_many_of_upstreams_that_are_one_row(storage: Storage) -> None:
    """With fewer rows than upstreams named, fewer failures are allowed: no job waits for an ending that cannot come."""
    await storage.enqueue([job("holder", key="k")])
    sent = [*jobs("x y", key="k"), job("other"), job("z", after=("x", "y", "other"), required=2, failures_allowed=1)]
    rows = await storage.enqueue(sent)
    assert (rows[3].pending, rows[3].failures_allowed) == (2, 0)
    await run(storage, "holder", to=FAILED)
    assert await state(storage, "z") is CANCELLED
    await settle(storage, back(await row(storage, "holder")))  # reopened, and with it the job that it doomed
    z_again = await row(storage, "z")
    assert (z_again.state, z_again.pending, z_again.failures_allowed) == (WAITING, 2, 0)
    await run(storage, "holder", "other")
    assert await claim_ids(storage) == ["z"]


async def test_law01_an_upstream_whose_holder_has_ended_counts_at_once(storage: Storage) -> None:
    """A holder that ended within its window counts as ended at once."""
    await storage.enqueue([job("holder", key="k", key_window=100)])
    await run(storage, "holder")
    rows = await storage.enqueue([job("x", key="k"), job("z", after=("x",))])
    assert ids(rows) == ["holder", "z"]
    assert rows[1].state is READY


async def test_law01_a_key_that_must_be_free(storage: Storage) -> None:
    """With "raise": KeyHeld names key and holder, and nothing of the call is stored."""
    await storage.enqueue([job("a", key="k")])
    with pytest.raises(KeyHeld) as caught:
        await storage.enqueue([job("x"), job("b", key="k", key_conflict="raise")])
    assert (caught.value.key, caught.value.id) == ("k", "a")
    assert await storage.get(["x", "b"]) == [None, None]
    await run(storage, "a")
    assert ids(await storage.enqueue([job("b", key="k", key_conflict="raise")])) == ["b"]


async def test_law01_a_key_that_must_be_free_twice_in_a_call(storage: Storage) -> None:
    """The first job of the call also holds the key."""
    with pytest.raises(KeyHeld) as caught:
        await storage.enqueue([job("a", key="k"), job("b", key="k", key_conflict="raise")])
    assert caught.value.id == "a"
    assert await storage.get(["a", "b"]) == [None, None]


async def test_law10_a_repeated_call_with_a_key_that_must_be_free_returns_its_row(storage: Storage) -> None:
    """A repeated call returns its own row instead of being refused because of it."""
    sent = [job("a", key="k", key_conflict="raise")]
    first = await storage.enqueue(sent)
    assert await storage.enqueue(sent) == first


@shows("an `enqueue` that fails stores no row and takes no key")
async def test_law01_an_enqueue_that_fails_stores_nothing(storage: Storage) -> None:
    """A failed call has no effect: no row, no key, no superseded job."""
    await storage.enqueue([job("old", key="k")])
    with pytest.raises(UnknownUpstream):
        await storage.enqueue(
            [job("new", key="k", key_conflict="replace"), job("x", key="l"), job("y", after=("nobody",))]
        )
    assert await states(storage, "old new x y") == [READY, None, None, None]
    assert ids(await storage.enqueue([job("z", key="l"), job("w", key="k")])) == ["z", "old"]


# --- until started, and windows


@shows('a key with `until="started"` is free after the first claim, also when the lease expires')
async def test_law01_a_key_until_started_is_free_after_the_first_claim(storage: Storage, clock: HandClock) -> None:
    """The key is free from the first claim on, and a lost lease does not take it back."""
    await storage.enqueue([job("a", key="k", key_until="started")])
    [answered] = await storage.enqueue([job("b", key="k")])
    assert answered.job.id == "a"
    await claim_one(storage, lease=10)
    [b] = await storage.enqueue([job("b", key="k", delay=99)])
    assert b.job.id == "b"
    clock.advance(11)
    await advance_due(storage)
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"
    await run(storage, "a")
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"


@shows("a job that has ended holds its key until the window is over")
async def test_law01_an_ended_job_holds_its_key_until_the_window_is_over(storage: Storage, clock: HandClock) -> None:
    """An ended job still holds it until the window after its creation is over, by the storage's clock."""
    await storage.enqueue([job("a", key="k", key_window=60)])
    clock.advance(20)
    await run(storage, "a")
    clock.advance(39)
    [answered] = await storage.enqueue([job("b", key="k")])
    assert (answered.job.id, answered.state) == ("a", SUCCEEDED)
    clock.advance(1)
    [b] = await storage.enqueue([job("b", key="k")])
    assert b.job.id == "b"


@shows("an unfinished job holds its key beyond the window")
async def test_law01_a_window_does_not_end_a_hold(storage: Storage, clock: HandClock) -> None:
    """An unfinished job holds its key beyond the window."""
    await storage.enqueue([job("a", key="k", key_window=10)])
    clock.advance(500)
    [answered] = await storage.enqueue([job("b", key="k")])
    assert answered.job.id == "a"
    await run(storage, "a")
    assert ids(await storage.enqueue([job("b", key="k")])) == ["b"]


async def test_law01_a_key_that_must_be_free_has_windows_too(storage: Storage) -> None:
    """Within the window, "raise" refuses, and "replace" returns the ended job."""
    await storage.enqueue([job("a", key="k", key_window=60)])
    await run(storage, "a")
    with pytest.raises(KeyHeld):
        await storage.enqueue([job("b", key="k", key_conflict="raise")])
    [answered] = await storage.enqueue([job("b", key="k", key_conflict="replace")])
    assert answered.job.id == "a"


async def test_law01_a_window_belongs_to_the_holder(storage: Storage) -> None:
    """The window of the ended job counts, not the window of the new one."""
    await storage.enqueue([job("a", key="k")])
    await run(storage, "a")
    assert ids(await storage.enqueue([job("b", key="k", key_window=1000)])) == ["b"]
