"""Ids and keys: asked twice is done once. Laws 1, 6 and 10."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.core.model import Limit, State
from treadle.errors import IdTaken, KeyHeld, UnknownUpstream
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    SUCCEEDED,
    WAITING,
    back,
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
    settle,
    state,
    states,
    tend,
)

# --- ids


async def test_law01_a_known_id_is_not_stored_again(storage: Storage, clock: HandClock) -> None:
    """Asking twice is asking once: the row that is there answers, whatever the second one says."""
    [first] = await storage.enqueue([job("a", payload="1", priority=3)])
    clock.advance(5)
    [again] = await storage.enqueue([job("a", payload="2", priority=9, delay=60)])
    assert again == first == await row(storage, "a")
    assert await claim_ids(storage, 9) == ["a"]


async def test_law01_an_id_is_known_for_as_long_as_its_row(storage: Storage, clock: HandClock) -> None:
    """Running or ended, it answers; pruned, it is new."""
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


async def test_law01_the_same_id_twice_in_a_call(storage: Storage) -> None:
    """One row, two answers, the first one's words."""
    one, two = await storage.enqueue([job("a", payload="1"), job("a", payload="2")])
    assert one == two
    assert one.job.payload == "1"
    assert await claim_ids(storage, 9) == ["a"]


async def test_law01_a_chosen_id_of_another_job_is_refused(storage: Storage) -> None:
    """With a nonce, a known id answers only a job of the same task and payload; nothing of the call is stored."""
    first = job("a", payload='\0\x1a"\\', nonce="1")
    await storage.enqueue([first])
    for other in ({"payload": "[2]"}, {"task": "u"}, {"payload": "[2]", "task": "u"}):
        asked = job("a", **{"payload": first.payload, "nonce": "2", **other})
        with pytest.raises(IdTaken) as refused:
            await storage.enqueue([job("new"), asked, job("keyed", key="k")])
        found = refused.value
        assert (found.id, found.task, found.asked, found.other) == ("a", "t", asked.task, "payload" in other)
        assert "choose another id" in str(found)
    assert await states(storage, "new keyed") == [None, None]
    assert (await row(storage, "a")).job == first


@pytest.mark.parametrize("ends", [False, True])
async def test_law01_a_chosen_id_of_the_same_job_is_known(storage: Storage, ends: bool) -> None:
    """Other calls with the same task and payload get the row, whatever else they ask for; its nonce is the first one's.
    A call that is repeated gets it too. Jobs without a nonce are never refused."""
    first = job("a", payload="[1]", nonce="1")
    await storage.enqueue([first, job("plain")])
    if ends:
        await run(storage, "a", "plain")
    for again in (
        job("a", payload="[1]", nonce="2", priority=3, key="k"),
        job("a", payload="[2]", nonce="1"),
        job("a", payload="[2]", task="u"),
    ):
        [found, new, _] = await storage.enqueue([again, job(f"b{again.nonce}"), job("plain", nonce="3")])
        assert found.job == first
        assert new.job.id == f"b{again.nonce}"
    with pytest.raises(IdTaken):
        await storage.enqueue([job("plain", payload="[7]", nonce="3")])


async def test_law01_a_chosen_id_twice_in_a_call(storage: Storage) -> None:
    """The first one counts as stored: another payload is refused, the same one is one row."""
    one, two = await storage.enqueue([job("a", nonce="1", payload="[1]"), job("a", nonce="2", payload="[1]")])
    assert one == two
    assert one.job.nonce == "1"
    for first in (None, "1"):
        with pytest.raises(IdTaken):
            await storage.enqueue([job("b", nonce=first), job("c"), job("b", nonce="2", payload="[2]")])
    assert await states(storage, "b c") == [None, None]


async def test_law01_a_chosen_id_is_refused_beside_an_outcome(storage: Storage) -> None:
    """A job that a run goes on as: the outcome is refused, and the run can end otherwise."""
    await storage.enqueue([job("a", nonce="1", payload="[1]"), job("p", queue="q")])
    parent = await claim_one(storage, "q")
    for then in ([job("a", nonce="2")], [job("b", nonce="2"), job("b", nonce="3", payload="[1]")]):
        refused = await refusal(storage, done(parent, then=(job("c"), *then)))
        assert refused.status == "refused"
        assert "is taken by a job of t with other arguments" in (refused.reason or "")
    assert await states(storage, "b c p") == [None, None, State.RUNNING]
    await settle(storage, done(parent, then=(job("a", nonce="4", payload="[1]"), job("c"))))
    assert await state(storage, "c") == READY


async def test_law01_answers_are_in_order(storage: Storage) -> None:
    """New and known, keyed and not: the n-th answer is the row of the n-th job."""
    await storage.enqueue([job("known"), job("holder", key="k")])
    asked = [job("z"), job("known"), job("x", key="k"), job("a"), job("holder")]
    assert ids(await storage.enqueue(asked)) == ["z", "known", "holder", "a", "holder"]


async def test_law01_a_new_row_carries_the_very_job(storage: Storage) -> None:
    """What is answered for a new job is what was given; for one that was answered, what was stored before."""
    new = job("a", labels=("l",), headers=(("h", "1"),))
    [answered] = await storage.enqueue([new])
    assert answered.job == new
    [other] = await storage.enqueue([job("a", labels=("other",))])
    assert other.job == new


# --- keys


async def test_law01_a_held_key_returns_the_holder(storage: Storage) -> None:
    """One unfinished job per key; the second one is answered by it, unchanged, and is not stored."""
    await storage.enqueue([job("a", key="k", payload="1")])
    [answered] = await storage.enqueue([job("b", key="k", payload="2")])
    assert (answered.job.id, answered.job.payload) == ("a", "1")
    assert await storage.get(["b"]) == [None]


@pytest.mark.parametrize("ending", [SUCCEEDED, FAILED, CANCELLED])
async def test_law01_a_key_is_free_once_the_job_has_ended(storage: Storage, ending: State) -> None:
    """However it ended."""
    await storage.enqueue([job("a", key="k")])
    await run(storage, "a", to=ending)
    [b] = await storage.enqueue([job("b", key="k")])
    assert b.job.id == "b"
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"


async def test_law01_a_key_is_held_all_through_a_life(storage: Storage, clock: HandClock) -> None:
    """Delayed, waiting, in line, running, handed back, lost, waiting for children."""
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
    await tend(storage)
    assert await holder() == "a"
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=(job("x"),), after=("x",)))
    assert await holder() == "a"
    await run(storage, "x")
    await run(storage, "a")
    assert await holder() == "b"


async def test_law01_a_key_is_free_when_the_storage_ends_the_job(storage: Storage, clock: HandClock) -> None:
    """Expired or doomed, it lets its key go as well."""
    await storage.enqueue([job("a", key="k", deadline=10), job("b", key="l", after=("a",))])
    clock.advance(10)
    await tend(storage)
    assert ids(await storage.enqueue([job("c", key="k"), job("d", key="l")])) == ["c", "d"]


async def test_law01_the_same_key_twice_in_a_call(storage: Storage) -> None:
    """One row; the second is answered by the first; the rest of the call is not touched."""
    rows = await storage.enqueue([job("a", key="k"), job("b", key="k"), job("c", key="l"), job("d")])
    assert ids(rows) == ["a", "a", "c", "d"]
    assert await claim_ids(storage, 9) == ["a", "c", "d"]


async def test_law01_upstreams_follow_the_row_that_answered(storage: Storage) -> None:
    """Jobs of the call that name the answered one wait for the row that answered it; the record says so."""
    await storage.enqueue([job("holder", key="k")])
    [_, z] = await storage.enqueue([job("x", key="k"), job("z", after=("x",), queue="z")])
    assert (z.state, z.after, z.job.id) == (WAITING, ("holder",), "z")
    await run(storage, "holder")
    assert await claim_ids(storage, 1, "z") == ["z"]


async def test_law01_two_upstreams_that_are_one_row(storage: Storage) -> None:
    """Both answered by the same holder: one ending is all there is to wait for."""
    await storage.enqueue([job("holder", key="k")])
    asked = [*jobs("x y", key="k"), job("z", after=("x", "holder", "y"), queue="z")]
    rows = await storage.enqueue(asked)
    assert (rows[2].after, rows[2].pending) == (("holder", "holder", "holder"), 1)
    await run(storage, "holder")
    assert await claim_ids(storage, 1, "z") == ["z"]


@pytest.mark.parametrize("window", [None, 100.0])
async def test_law01_after_keeps_the_order_in_which_it_was_asked(storage: Storage, window: float | None) -> None:
    """Which result stands for which upstream is read from `after`; also of a holder that has ended."""
    await storage.enqueue([job("holder", key="k", key_window=window), job("other")])
    if window is not None:
        await run(storage, "holder")
    asked = [job("x", key="k"), job("y", key="k"), job("z", after=("x", "other", "y"), queue="z")]
    assert (await storage.enqueue(asked))[2].after == ("holder", "other", "holder")
    await run(storage, "other")
    if window is None:
        assert await claim_ids(storage, 1, "z") == []
        await run(storage, "holder")
    [z] = await claim(storage, 1, "z")
    assert (z.job.id, z.after) == ("z", ("holder", "other", "holder"))


async def test_law01_at_least_so_many_of_upstreams_that_are_one_row(storage: Storage) -> None:
    """With fewer rows than were asked for, fewer failures leave enough: nobody waits for an ending that cannot come."""
    await storage.enqueue([job("holder", key="k")])
    asked = [*jobs("x y", key="k"), job("other"), job("z", after=("x", "y", "other"), need=2, slack=1)]
    rows = await storage.enqueue(asked)
    assert (rows[3].pending, rows[3].slack) == (2, 0)
    await run(storage, "holder", to=FAILED)
    assert await state(storage, "z") is CANCELLED
    await settle(storage, back(await row(storage, "holder")))  # reopened, and with it what it doomed
    z_again = await row(storage, "z")
    assert (z_again.state, z_again.pending, z_again.slack) == (WAITING, 2, 0)
    await run(storage, "holder", "other")
    assert await claim_ids(storage) == ["z"]


async def test_law01_upstreams_answered_by_an_ended_holder(storage: Storage) -> None:
    """A holder that ended within its window counts at once."""
    await storage.enqueue([job("holder", key="k", key_window=100)])
    await run(storage, "holder")
    rows = await storage.enqueue([job("x", key="k"), job("z", after=("x",))])
    assert ids(rows) == ["holder", "z"]
    assert rows[1].state is READY


async def test_law01_a_key_that_must_be_free(storage: Storage) -> None:
    """ "raise": KeyHeld names key and holder, and nothing of the call is stored."""
    await storage.enqueue([job("a", key="k")])
    with pytest.raises(KeyHeld) as caught:
        await storage.enqueue([job("x"), job("b", key="k", key_conflict="raise")])
    assert (caught.value.key, caught.value.id) == ("k", "a")
    assert await storage.get(["x", "b"]) == [None, None]
    await run(storage, "a")
    assert ids(await storage.enqueue([job("b", key="k", key_conflict="raise")])) == ["b"]


async def test_law01_a_key_that_must_be_free_twice_in_a_call(storage: Storage) -> None:
    """The first one of the call is a holder too."""
    with pytest.raises(KeyHeld) as caught:
        await storage.enqueue([job("a", key="k"), job("b", key="k", key_conflict="raise")])
    assert caught.value.id == "a"
    assert await storage.get(["a", "b"]) == [None, None]


async def test_law10_a_key_that_must_be_free_repeated(storage: Storage) -> None:
    """The repeat of a call that was stored is answered by its own row, not refused because of it."""
    asked = [job("a", key="k", key_conflict="raise")]
    first = await storage.enqueue(asked)
    assert await storage.enqueue(asked) == first


async def test_law01_all_or_nothing(storage: Storage) -> None:
    """A call that fails leaves no trace: no row, no key, nobody superseded."""
    await storage.enqueue([job("old", key="k")])
    with pytest.raises(UnknownUpstream):
        await storage.enqueue(
            [job("new", key="k", key_conflict="replace"), job("x", key="l"), job("y", after=("nobody",))]
        )
    assert await states(storage, "old new x y") == [READY, None, None, None]
    assert ids(await storage.enqueue([job("z", key="l"), job("w", key="k")])) == ["z", "old"]


# --- replace


async def test_law01_replacing_one_in_line(storage: Storage) -> None:
    """A holder never claimed is cancelled as superseded; the new one takes the key."""
    await storage.enqueue([job("a", key="k"), job("down", after=("a",))])
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace")])
    assert (b.job.id, b.state, b.pending) == ("b", READY, 0)
    a = await row(storage, "a")
    assert (a.state, a.reason) == (CANCELLED, "superseded")
    assert (await row(storage, "down")).reason == "upstream"
    assert await claim_ids(storage, 9) == ["b"]


async def test_law01_replacing_one_that_is_not_in_line(storage: Storage, clock: HandClock) -> None:
    """Delayed, waiting, standing aside, handed back, lost: all are replaced."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([job("p", task=""), job("delayed", key="1", delay=9), job("blocked", key="2", after=("p",))])
    await storage.enqueue([job("aside", key="3", limits=(("shut", 1),))])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([job("back", key="4")])
    await settle(storage, back(await claim_one(storage)))
    await storage.enqueue([job("lost", key="5", priority=1)])
    await claim_one(storage, lease=5)
    clock.advance(6)
    await tend(storage)
    await storage.enqueue([job(f"new{n}", key=str(n), key_conflict="replace") for n in range(1, 6)])
    rows = [await row(storage, id) for id in ("delayed", "blocked", "aside", "back", "lost")]
    assert [(each.state, each.reason) for each in rows] == [(CANCELLED, "superseded")] * 5
    assert await claim_ids(storage, 9) == [f"new{n}" for n in range(1, 6)]


@pytest.mark.parametrize("ending", [SUCCEEDED, FAILED, CANCELLED, READY])
async def test_law01_replacing_one_that_runs(storage: Storage, ending: State) -> None:
    """It gives its key away and runs on; the new one waits for its ending, whatever that is."""
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
    """What ran has only its ending left: it too gives its key away, waiting or in line."""
    await storage.enqueue([job("a", key="k"), job("b", key="l"), job("p", task="")])
    a, b = await claim(storage, 2)
    await settle(storage, out(a, WAITING, ran=True, after=("p",)), out(b, WAITING, ran=True, after=()))
    assert await states(storage, "a b") == [WAITING, READY]
    new = await storage.enqueue([job(f"new-{key}", key=key, key_conflict="replace") for key in "kl"])
    assert [(each.state, each.pending) for each in new] == [(WAITING, 1), (WAITING, 1)]
    await run(storage, "b")
    assert await states(storage, "a b new-k new-l") == [WAITING, SUCCEEDED, WAITING, READY]
    await settle(storage, done(await row(storage, "p")))
    await run(storage, "a")
    assert await state(storage, "new-k") is READY


async def test_law01_replacing_counts_beside_its_own_upstreams(storage: Storage) -> None:
    """It waits for the old one and for what it names; a failure of the old one is no failure of those."""
    await storage.enqueue([job("a", key="k"), job("p", task="")])
    a = await claim_one(storage)
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace", after=("p",))])
    assert (b.pending, b.after, b.slack) == (2, ("p",), 0)
    await settle(storage, failed(a))
    assert ((await row(storage, "b")).pending, await state(storage, "b")) == (1, WAITING)
    await settle(storage, done(await row(storage, "p")))
    assert await claim_ids(storage) == ["b"]


async def test_law01_replacing_the_one_that_waits_to_replace(storage: Storage) -> None:
    """The third takes the place of the second, and waits for the first as that did: never two of a key at once."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    await storage.enqueue([job("b", key="k", key_conflict="replace")])
    [c] = await storage.enqueue([job("c", key="k", key_conflict="replace")])
    assert ((await row(storage, "b")).reason, c.state, c.pending) == ("superseded", WAITING, 1)
    assert await claim_ids(storage, 9) == []
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == ["c"]


async def test_law01_replacing_a_running_one_that_it_waits_for_by_name(storage: Storage) -> None:
    """It is waited for once: the ending of the holder lets the new job go."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    [b] = await storage.enqueue([job("b", key="k", key_conflict="replace", after=("a",))])
    assert (b.state, b.pending) == (WAITING, 1)
    await settle(storage, done(a))
    assert await claim_ids(storage, 9) == ["b"]


async def test_law01_replacing_one_of_the_call_that_has_ended(storage: Storage) -> None:
    """It came with the call, doomed by what it waits for, and holds its key for a window: it ends once, and the last of
    the call waits for nobody."""
    await storage.enqueue([job("up")])
    await settle(storage, failed(await claim_one(storage)))
    waits = job("b", key="k", key_window=60.0, after=("up",))
    await storage.enqueue([waits, job("c", key="k", key_conflict="replace")])
    b = await row(storage, "b")
    assert (b.version, b.state, b.reason) == (1, CANCELLED, "upstream")
    assert "c" in await claim_ids(storage, 9)


async def test_law10_replacing_repeated(storage: Storage) -> None:
    """The repeat replaces nobody, least of all itself."""
    await storage.enqueue([job("a", key="k")])
    asked = [job("b", key="k", key_conflict="replace")]
    first = await storage.enqueue(asked)
    assert await storage.enqueue(asked) == first
    assert await claim_ids(storage, 9) == ["b"]


async def test_law01_replacing_within_a_call(storage: Storage) -> None:
    """The last of a call wins."""
    await storage.enqueue([job("a", key="k"), job("b", key="k", key_conflict="replace")])
    assert (await row(storage, "a")).reason == "superseded"
    assert await claim_ids(storage, 9) == ["b"]


# --- until started, and windows


async def test_law01_a_key_until_started(storage: Storage, clock: HandClock) -> None:
    """Free at the first claim, while the job runs on; and it does not come back with a lost lease."""
    await storage.enqueue([job("a", key="k", key_until="started")])
    [answered] = await storage.enqueue([job("b", key="k")])
    assert answered.job.id == "a"
    await claim_one(storage, lease=10)
    [b] = await storage.enqueue([job("b", key="k", delay=99)])
    assert b.job.id == "b"
    clock.advance(11)
    await tend(storage)
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"
    await run(storage, "a")
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "b"


async def test_law01_a_key_with_a_window(storage: Storage, clock: HandClock) -> None:
    """Ended jobs hold it too, for so long after their creation by the storage's clock."""
    await storage.enqueue([job("a", key="k", key_window=60)])
    clock.advance(20)
    await run(storage, "a")
    clock.advance(39)
    [answered] = await storage.enqueue([job("b", key="k")])
    assert (answered.job.id, answered.state) == ("a", SUCCEEDED)
    clock.advance(1)
    [b] = await storage.enqueue([job("b", key="k")])
    assert b.job.id == "b"


async def test_law01_a_window_does_not_end_a_hold(storage: Storage, clock: HandClock) -> None:
    """Unfinished jobs hold their key however long they take."""
    await storage.enqueue([job("a", key="k", key_window=10)])
    clock.advance(500)
    [answered] = await storage.enqueue([job("b", key="k")])
    assert answered.job.id == "a"
    await run(storage, "a")
    assert ids(await storage.enqueue([job("b", key="k")])) == ["b"]


async def test_law01_a_key_that_must_be_free_has_windows_too(storage: Storage) -> None:
    """ "raise" refuses within the window; "replace" is answered by the one that ended."""
    await storage.enqueue([job("a", key="k", key_window=60)])
    await run(storage, "a")
    with pytest.raises(KeyHeld):
        await storage.enqueue([job("b", key="k", key_conflict="raise")])
    [answered] = await storage.enqueue([job("b", key="k", key_conflict="replace")])
    assert answered.job.id == "a"


async def test_law01_a_window_belongs_to_the_holder(storage: Storage) -> None:
    """The window counted is that of the job that ended, not that of the new one."""
    await storage.enqueue([job("a", key="k")])
    await run(storage, "a")
    assert ids(await storage.enqueue([job("b", key="k", key_window=1000)])) == ["b"]


# --- and endings


async def test_law06_an_outcome_frees_its_key_before_its_then(storage: Storage) -> None:
    """A job that sends itself again under its own key is stored, three times over."""
    await storage.enqueue([job("r0", key="k")])
    for n in range(3):
        each = await claim_one(storage)
        assert each.job.id == f"r{n}"
        await settle(storage, done(each, then=(job(f"r{n + 1}", key="k", key_conflict="raise"),)))
    assert await state(storage, "r3") is READY


async def test_law06_an_outcome_that_does_not_end_keeps_its_key(storage: Storage) -> None:
    """Waiting for children is not an ending: a child with the parent's key is answered by the parent."""
    await storage.enqueue([job("a", key="k")])
    await settle(storage, back(await claim_one(storage), 60, then=(job("x", key="k"), job("y"))))
    assert await states(storage, "x y") == [None, READY]


@pytest.mark.parametrize("to", [READY, WAITING])
async def test_law06_a_child_takes_its_parents_key(storage: Storage, to: State) -> None:
    """An outcome that does not end: the child holds the key and never waits for its parent, which goes on without."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    child = job("x", key="k", key_conflict="replace")
    after = {"after": ("x",)} if to is WAITING else {"delay": 60}
    await settle(storage, out(a, to, then=(child,), **after))
    [answered] = await storage.enqueue([job("c", key="k")])
    assert answered.job.id == "x"
    assert await states(storage, "a x") == [to, READY]
    await run(storage, "x")
    [c] = await storage.enqueue([job("c", key="k")])
    assert c.job.id == "c"
    if to is WAITING:
        assert await claim_ids(storage, 9) == ["a", "c"]


async def test_law06_a_child_replaces_the_one_that_waits_for_its_parent(storage: Storage) -> None:
    """Who took the parent's key while that ran waits for it; the child in its place does not."""
    await storage.enqueue([job("a", key="k")])
    a = await claim_one(storage)
    await storage.enqueue([job("b", key="k", key_conflict="replace")])
    child = job("x", key="k", key_conflict="replace")
    await settle(storage, out(a, WAITING, then=(child,), after=("x",)))
    assert await states(storage, "a b x") == [WAITING, CANCELLED, READY]
    await run(storage, "x")
    await run(storage, "a")


@pytest.mark.parametrize("to", [READY, WAITING])
async def test_law06_a_child_that_replaces_a_job_that_waits_for_its_parent_does_not_wait_for_it(
    storage: Storage, to: State
) -> None:
    """It takes the key of its grandparent, or of a job that waits for that; neither can end before the child has."""
    await storage.enqueue([job("a", key="a", queue="a"), job("far", key="far", queue="far")])
    [a] = await claim(storage, 1, "a")
    [far] = await claim(storage, 1, "far")
    await settle(storage, out(far, WAITING, ran=True, then=(), after=("a",)))
    await settle(storage, out(a, WAITING, ran=True, then=(job("b"),), after=("b",)))
    then = (job("x", key="a", key_conflict="replace"), job("y", key="far", key_conflict="replace"))
    after: dict[str, Any] = {"after": ("x", "y"), "ran": True} if to is WAITING else {}
    await settle(storage, out(await claim_one(storage), to, then=then, **after))
    assert await states(storage, "a far x y") == [WAITING, WAITING, READY, READY]
    [known] = await storage.enqueue([job("later", key="a")])
    assert known.job.id == "x"
    for each in ("x", "y", "b"):
        await run(storage, each)
    for each in ("a", "far"):
        [last] = await claim(storage, 1, each)
        assert last.job.id == each
        await settle(storage, done(last))


async def test_law06_a_child_that_replaces_one_behind_its_grandparent_does_not_wait_for_that(storage: Storage) -> None:
    """The one that is replaced waited for the grandparent, which waits for the parent, which waits for the child."""
    await storage.enqueue([job("a", key="k", queue="a")])
    [a] = await claim(storage, 1, "a")
    await storage.enqueue([job("newer", key="k", key_conflict="replace")])
    await settle(storage, out(a, WAITING, ran=True, then=(job("b"),), after=("b",)))
    then = (job("x", key="k", key_conflict="replace"),)
    await settle(storage, out(await claim_one(storage), WAITING, ran=True, then=then, after=("x",)))
    assert await states(storage, "a newer b x") == [WAITING, CANCELLED, WAITING, READY]
    for each in ("x", "b"):
        await run(storage, each)
    assert [each.job.id for each in await claim(storage, 1, "a")] == ["a"]


async def test_law06_of_two_that_replace_each_other_one_does_not_wait(storage: Storage) -> None:
    """Two jobs return one that takes the key of the other, in the same moment: all end."""
    for n in range(5):
        await storage.enqueue([job(f"a{n}", key=f"a{n}"), job(f"b{n}", key=f"b{n}")])
        a, b = await claim(storage, 2)
        outs = [
            out(a, WAITING, ran=True, then=(job(f"x{n}", key=f"b{n}", key_conflict="replace"),), after=(f"x{n}",)),
            out(b, WAITING, ran=True, then=(job(f"y{n}", key=f"a{n}", key_conflict="replace"),), after=(f"y{n}",)),
        ]
        answers = await asyncio.gather(*(storage.settle([each]) for each in outs))
        for each, [answer] in zip(outs, answers, strict=True):
            while answer.again:
                [answer] = await storage.settle([each])
            assert answer.status == "applied"
        ended: list[str] = []
        while len(ended) < 4:
            [next_one] = await claim(storage, 1)
            await settle(storage, done(next_one))
            ended.append(next_one.job.id)
        assert sorted(ended) == [f"a{n}", f"b{n}", f"x{n}", f"y{n}"]


async def test_law06_a_child_with_the_key_of_an_ending_waits_for_nobody(storage: Storage) -> None:
    """A final outcome frees its key before its `then` are stored, whatever they ask of the holder."""
    await storage.enqueue([job("a", key="k")])
    await settle(storage, done(await claim_one(storage), then=(job("x", key="k", key_conflict="replace"),)))
    assert await states(storage, "a x") == [SUCCEEDED, READY]


async def test_law01_many_keys_in_one_call(storage: Storage) -> None:
    """A thousand jobs, half of them answered by the other half."""
    await storage.enqueue([job(f"a{n:03}", key=f"k{n:03}") for n in range(0, 1_000, 2)])
    rows = await storage.enqueue([job(f"b{n:03}", key=f"k{n:03}") for n in range(1_000)])
    assert ids(rows) == [f"{'ba'[n % 2 == 0]}{n:03}" for n in range(1_000)]


async def test_law05_an_ending_whose_child_takes_the_key_of_one_that_waits_for_it(storage: Storage) -> None:
    """The holder ran, so it is not superseded: it is let go by this ending, and the child waits for its own."""
    await storage.enqueue([job("up")])
    await storage.enqueue([job("holder", key="k", ran=True, after=("up",), slack=None)])
    up = await claim_one(storage)
    await settle(storage, done(up, then=(job("child", key="k", key_conflict="replace"),)))
    holder = await claim_one(storage)
    assert holder.job.id == "holder"
    assert (await row(storage, "child")).state is WAITING
    await settle(storage, done(holder))
    assert await claim_ids(storage, 9) == ["child"]
