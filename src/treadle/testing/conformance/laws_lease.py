"""Leases, versions, deadlines, repeated calls: who may say what became of a job. Laws 3, 4 and 10."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treadle.core.model import Hold, Limit, Outcome, Presence
from treadle.storage.contract import Fused, Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    ask,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    claimed,
    done,
    failed,
    hold,
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

# --- versions


async def test_law03_claim_and_settle_raise_the_version(storage: Storage) -> None:
    """It grows at every claim and every settle, through all of a job's life."""
    [new] = await storage.enqueue(jobs("a"))
    first = await claim_one(storage)
    await settle(storage, back(first))
    handed_back = await row(storage, "a")
    second = await claim_one(storage)
    await settle(storage, done(second))
    versions = [each.version for each in (new, first, handed_back, second, await row(storage, "a"))]
    assert versions == sorted(set(versions))


async def test_law03_endings_by_the_storage_raise_the_version(storage: Storage, clock: HandClock) -> None:
    """Expired, doomed and superseded jobs have moved on as well: an old outcome for them is stale."""
    await storage.enqueue([job("up", deadline=5), job("down", after=("up",)), job("old", key="k", delay=99)])
    before = await storage.get(["up", "down", "old"])
    await storage.enqueue([job("new", key="k", key_conflict="replace", delay=99)])
    clock.advance(6)
    await tend(storage)
    assert await states(storage, "up down old") == [FAILED, CANCELLED, CANCELLED]
    assert await said(storage, *(done(each) for each in before if each)) == ["stale"] * 3


@pytest.mark.parametrize("to", [SUCCEEDED, FAILED, CANCELLED, READY, WAITING])
async def test_law03_a_stale_outcome_changes_nothing(storage: Storage, clock: HandClock, to: str) -> None:
    """Whatever it would assign, `then` included; and it says so."""
    await storage.enqueue(jobs("a up"))
    old = await claim_one(storage, lease=10)
    clock.advance(11)
    await claim_one(storage, lease=1000)
    before = await row(storage, "a")
    stale = out(
        old,
        type(before.state)(to),
        delay=7,
        attempt=4,
        result="1",
        value="2",
        error="e",
        reason="error",
        memo=(("s", "1"),),
        note="n",
        then=(job("child"),),
        after=("up",) if to == WAITING else (),
        keep=5,
    )
    settled = await refusal(storage, stale)
    assert settled.status == "stale"
    assert settled.reason
    assert await row(storage, "a") == before
    assert await storage.get(["child"]) == [None]


async def test_law03_a_version_from_the_future_is_stale(storage: Storage) -> None:
    """Only the current one is the fence."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await said(storage, Outcome(id="a", version=a.version + 1, state=SUCCEEDED)) == ["stale"]
    assert await state(storage, "a") is RUNNING


async def test_law03_a_job_nobody_knows_is_stale(storage: Storage) -> None:
    """Pruned meanwhile, or never there: nothing is stored, nothing raised, its `then` is not stored."""
    assert await said(storage, Outcome(id="none", version=1, state=SUCCEEDED, then=(job("x"),))) == ["stale"]
    assert await storage.get(["none", "x"]) == [None, None]


async def test_law03_one_stale_outcome_does_not_touch_the_others(storage: Storage) -> None:
    """Each outcome of a call stands for itself, and the answers are in order."""
    await storage.enqueue(jobs("a b c"))
    a, b, c = await claim(storage, 3)
    await settle(storage, cancelled(b))
    assert await said(storage, done(a), done(b), done(c)) == ["applied", "stale", "applied"]
    assert await states(storage, "a b c") == [SUCCEEDED, CANCELLED, SUCCEEDED]


async def test_law03_two_outcomes_for_one_job_in_one_call(storage: Storage) -> None:
    """The first is applied, and the second one finds it has moved on."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await said(storage, done(a), failed(a)) == ["applied", "stale"]
    assert await state(storage, "a") is SUCCEEDED


async def test_law03_a_stale_hold_saves_nothing(storage: Storage, clock: HandClock) -> None:
    """A stalled worker that wakes up is refused its memo and its note, and is told."""
    await storage.enqueue(jobs("a"))
    old = await claim_one(storage, lease=10)
    clock.advance(11)
    await claim_one(storage, worker="other", lease=1000)
    before = await row(storage, "a")
    assert await beat(storage, hold(old, memo=(("s", "1"),), note="half")) == {"a"}
    assert await row(storage, "a") == before


async def test_law03_a_hold_on_what_has_ended_is_lost(storage: Storage) -> None:
    """Cancelled from outside, ended, unknown: the heartbeat names them all, and keeps the rest."""
    await storage.enqueue(jobs("a b c"))
    a, b, c = await claim(storage, 3)
    await settle(storage, cancelled(a), done(b))
    assert await beat(storage, hold(a), hold(b), hold(c), Hold("none", 1)) == {"a", "b", "none"}


async def test_law03_a_hold_on_what_was_handed_back_is_lost(storage: Storage) -> None:
    """Settled as ready or waiting it is in nobody's hand, however lately."""
    await storage.enqueue(jobs("a b p", priority=1))
    a, b, p = await claim(storage, 3)
    await settle(storage, back(a), out(b, WAITING, after=("p",)))
    assert await beat(storage, hold(a), hold(b), hold(p)) == {"a", "b"}


async def test_law03_a_hold_on_what_was_never_claimed_is_lost(storage: Storage) -> None:
    """Knowing id and version of a job in line does not make it yours."""
    [a] = await storage.enqueue(jobs("a"))
    assert await beat(storage, hold(a)) == {"a"}
    assert await claim_ids(storage) == ["a"]


async def test_law03_settled_from_outside_with_the_current_version(storage: Storage) -> None:
    """Operators' verbs are settlements: in line, delayed, waiting, running, each can be ended by hand."""
    await storage.enqueue([job("line"), job("later", delay=9), job("blocked", after=("later",)), job("p", task="")])
    running = await claim_one(storage)
    await settle(storage, done(await row(storage, "line"), result="1"))
    assert await said(storage, failed(running)) == ["stale"]
    for id in ("blocked", "later", "p"):
        await settle(storage, done(await row(storage, id), result="1"))
    assert await states(storage, "line later blocked p") == [SUCCEEDED] * 4
    assert await claim_ids(storage, 9) == []


async def test_law03_an_ended_job_stays_ended(storage: Storage) -> None:
    """Its current version does not make it end in another way, nor wait."""
    await storage.enqueue(jobs("a"))
    await run(storage, "a", result="1")
    a = await row(storage, "a")
    assert await said(storage, failed(a), cancelled(a), out(a, WAITING), out(a, RUNNING)) == ["stale"] * 4
    assert await row(storage, "a") == a


async def test_law03_an_outcome_assigns_all_it_says(storage: Storage, clock: HandClock) -> None:
    """Attempt, result, value, error, reason, note: the storage assigns, it does not compute."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    clock.advance(2)
    await settle(storage, failed(a, attempt=3, result="1", value="2", error="e", reason="aborted", note="n"))
    a = await row(storage, "a")
    assert (a.state, a.attempt, a.result, a.value, a.error, a.reason, a.note) == (
        FAILED,
        3,
        "1",
        "2",
        "e",
        "aborted",
        "n",
    )
    assert (a.ended_at, a.place, a.due_at, a.pending) == (clock(), None, None, 0)


async def test_law03_what_an_outcome_does_not_say_is_cleared(storage: Storage) -> None:
    """The error of a failed try is gone once a later one succeeds; attempts are as the outcome says."""
    await storage.enqueue(jobs("a"))
    await settle(storage, back(await claim_one(storage), attempt=1, error="boom", reason="error"))
    assert (await row(storage, "a")).error == "boom"
    again = await claim_one(storage)
    assert (again.attempt, again.error, again.lost) == (1, "boom", 0)
    await settle(storage, done(again, attempt=2))
    a = await row(storage, "a")
    assert (a.attempt, a.error, a.reason) == (2, None, None)


# --- leases


async def test_law04_a_lost_lease_returns_the_job_and_counts(storage: Storage, clock: HandClock) -> None:
    """Back in line with lost + 1; what it was keeps standing: version and worker, until somebody claims it."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(11)
    await tend(storage)
    lost = await row(storage, "a")
    assert (lost.state, lost.lost, lost.version, lost.worker) == (READY, 1, a.version, a.worker)
    assert lost.place == a.joined_at
    again = await claim_one(storage)
    assert again.version > a.version
    assert (again.lost, again.attempt, again.worker) == (1, 0, again.worker)
    assert again.worker != a.worker


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
async def test_law04_a_lost_job_names_the_worker_that_held_it(
    storage: Storage, clock: HandClock, limited: bool
) -> None:
    """Until it is settled: whoever claims it next can say which worker lost it."""
    await storage.enqueue([job("a", limits=(("gate", 1),) if limited else ())])
    await claim(storage, worker="one#two", lease=10)
    clock.advance(11)
    await tend(storage)
    found = await row(storage, "a")
    assert (found.state, found.reason) == (READY, "lost by one#two")
    assert (found.worker or "").startswith("one#two#")
    [found] = await claim(storage, worker="other", lease=10)
    assert (found.lost, found.reason) == (1, "lost by one#two")
    clock.advance(11)
    [found] = await claim(storage, worker="third", lease=10)
    assert (found.lost, found.reason) == (2, "lost by other")
    await settle(storage, back(found))
    assert (await row(storage, "a")).reason is None


async def test_law04_a_lost_job_keeps_its_turn(storage: Storage, clock: HandClock) -> None:
    """It stands before all who came after it."""
    await storage.enqueue(jobs("z"))
    await claim_one(storage, lease=10)
    clock.advance(5)
    await storage.enqueue(jobs("a"))
    clock.advance(6)
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law04_a_late_outcome_still_counts(storage: Storage, clock: HandClock) -> None:
    """While nobody has claimed the job, its holder may settle it, lease or no lease."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2, lease=10)
    clock.advance(11)
    await settle(storage, done(a))
    await tend(storage)
    await settle(storage, done(b))
    assert await claim_ids(storage, 9) == []
    assert await states(storage, "a b") == [SUCCEEDED, SUCCEEDED]


async def test_law04_a_late_heartbeat_takes_the_job_up_again(storage: Storage, clock: HandClock) -> None:
    """Out of line again, its work saved, and nobody else gets it."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(11)
    await tend(storage)
    assert await beat(storage, hold(a, memo=(("s", "1"),)), lease=10) == set()
    taken_up = await row(storage, "a")
    assert (taken_up.state, taken_up.place, taken_up.due_at) == (RUNNING, None, clock() + 10)
    assert (taken_up.memo, taken_up.lost, taken_up.version) == ((("s", "1"),), 1, a.version)
    assert await claim_ids(storage) == []
    await settle(storage, done(a))


async def test_law04_a_heartbeat_comes_before_the_tending(storage: Storage, clock: HandClock) -> None:
    """A lease that ran out and that nobody has noticed is lengthened, not lost, by its holder's own call."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(11)
    assert await beat(storage, hold(a)) == set()
    assert ((await row(storage, "a")).lost, await state(storage, "a")) == (0, RUNNING)


async def test_law04_a_heartbeat_tends(storage: Storage, clock: HandClock) -> None:
    """What others have lost returns to line with anybody's heartbeat."""
    await storage.enqueue(jobs("a"))
    await claim_one(storage, lease=10)
    clock.advance(11)
    await beat(storage, worker="other")
    assert await state(storage, "a") is READY


async def test_law04_a_late_heartbeat_does_not_take_a_slot_given_away(storage: Storage, clock: HandClock) -> None:
    """When another job runs in its slot, the holder has lost: never two in one slot."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("b", limits=(("one", 1),), queue="other")])
    a = await claim_one(storage, lease=10)
    assert await claim_ids(storage, 9, "other") == []
    clock.advance(11)
    assert await claim_ids(storage, 9, "other", lease=1000) == ["b"]
    assert await beat(storage, hold(a)) == {"a"}
    assert await state(storage, "a") is READY


async def test_law04_a_heartbeat_lengthens_the_lease(storage: Storage, clock: HandClock) -> None:
    """By the seconds it says, from now."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage, lease=10)
    clock.advance(8)
    assert await beat(storage, hold(a), lease=10) == set()
    clock.advance(10)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]


async def test_law04_a_heartbeat_merges_memo_and_replaces_the_note(storage: Storage) -> None:
    """Steps not named stay, and no note leaves the note as it is; a settle does the same."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await beat(storage, hold(a, memo=(("one", "1"), ("two", "2")), note="half"))
    await beat(storage, hold(a, memo=(("two", "22"), ("three", "3"))))
    a = await row(storage, "a")
    assert (dict(a.memo), a.note) == ({"one": "1", "two": "22", "three": "3"}, "half")
    await settle(storage, back(a, memo=(("four", "4"),)))
    a = await claim_one(storage)
    assert (dict(a.memo), a.note) == ({"one": "1", "two": "22", "three": "3", "four": "4"}, "half")
    await settle(storage, done(a, memo=(("one", "!"),), note=""))
    a = await row(storage, "a")
    assert (dict(a.memo)["one"], a.note) == ("!", "")


async def test_law04_a_lease_of_its_own(storage: Storage, clock: HandClock) -> None:
    """The job's lease beats the task's, and that one the worker's; at the claim and at each heartbeat."""
    await storage.enqueue([job("own", lease=100.0), job("task", task="slow"), job("plain")])
    own, plain, task = await claim(storage, 9, lease=10, tasks={"t": (None, None), "slow": (None, 50.0)})
    begun = clock()
    assert [each.due_at for each in (own, task, plain)] == [begun + 100, begun + 50, begun + 10]
    await beat(storage, hold(own), hold(plain), lease=20)
    assert (await row(storage, "own")).due_at == begun + 100
    assert (await row(storage, "plain")).due_at == begun + 20


async def test_law04_a_job_is_lost_again_and_again(storage: Storage, clock: HandClock) -> None:
    """`lost` counts leases; the judge decides what it means, not the storage."""
    await storage.enqueue(jobs("a"))
    for n in range(5):
        assert (await claim_one(storage, lease=10)).lost == n
        clock.advance(11)


async def test_law04_handing_back_is_no_loss(storage: Storage) -> None:
    """Neither lost nor attempt is touched by coming back."""
    await storage.enqueue(jobs("a"))
    await settle(storage, back(await claim_one(storage)))
    a = await claim_one(storage)
    assert (a.lost, a.attempt) == (0, 0)


async def test_law04_handed_back_from_outside(storage: Storage) -> None:
    """A running job can be put back in line by hand; its holder's outcome is stale then."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await settle(storage, back(await row(storage, "a")))
    assert await said(storage, done(a)) == ["stale"]
    assert await claim_ids(storage) == ["a"]


# --- deadlines


async def test_law04_a_deadline_in_line(storage: Storage, clock: HandClock) -> None:
    """A job not running when its deadline passes fails as expired, at that very moment and not before."""
    await storage.enqueue([job("a", deadline=10)])
    clock.advance(9.5)
    await tend(storage)
    assert await state(storage, "a") is READY
    clock.advance(0.5)
    assert await claim_ids(storage) == []
    a = await row(storage, "a")
    assert (a.state, a.reason, a.ended_at, a.place) == (FAILED, "expired", clock(), None)
    assert a.error


async def test_law04_a_deadline_before_the_moment(storage: Storage, clock: HandClock) -> None:
    """A delay beyond the deadline means it never starts."""
    await storage.enqueue([job("a", delay=20, deadline=10)])
    clock.advance(30)
    assert await claim_ids(storage) == []
    assert (await row(storage, "a")).reason == "expired"


async def test_law04_a_deadline_while_waiting(storage: Storage, clock: HandClock) -> None:
    """Whatever it waits for, and a promise just as well."""
    await storage.enqueue([job("p", task="", deadline=20), job("a", after=("p",), deadline=10)])
    clock.advance(10)
    await tend(storage)
    assert await states(storage, "p a") == [WAITING, FAILED]
    clock.advance(10)
    await tend(storage)
    assert (await row(storage, "p")).reason == "expired"


async def test_law04_a_deadline_does_not_stop_what_runs(storage: Storage, clock: HandClock) -> None:
    """The runner ends what runs too long; the storage leaves it alone while its lease lasts."""
    await storage.enqueue([job("a", deadline=10)])
    a = await claim_one(storage, lease=30)
    clock.advance(20)
    await tend(storage)
    assert await beat(storage, hold(a)) == set()
    await settle(storage, done(a))


async def test_law04_a_deadline_of_a_lost_job(storage: Storage, clock: HandClock) -> None:
    """Its lease over and its deadline passed, it is not run again."""
    await storage.enqueue([job("a", deadline=10)])
    await claim_one(storage, lease=20)
    clock.advance(21)
    assert await claim_ids(storage) == []
    assert (await row(storage, "a")).reason == "expired"


async def test_law04_a_deadline_of_a_job_that_comes_back(storage: Storage, clock: HandClock) -> None:
    """Retries end at the deadline as well, and an expired job has no second ending."""
    await storage.enqueue([job("a", deadline=10)])
    await settle(storage, back(await claim_one(storage), 60, attempt=1))
    clock.advance(10)
    await tend(storage)
    assert ((await row(storage, "a")).reason, (await row(storage, "a")).attempt) == ("expired", 1)
    clock.advance(60)
    assert await claim_ids(storage) == []


async def test_law04_a_deadline_standing_aside(storage: Storage, clock: HandClock) -> None:
    """A job that a limit holds back expires all the same, and leaves nothing behind."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([job("a", limits=(("shut", 1),), deadline=10)])
    assert await claim_ids(storage) == []
    clock.advance(10)
    await tend(storage)
    assert (await row(storage, "a")).reason == "expired"
    await storage.set_limits([Limit("shut")])
    assert await claim_ids(storage) == []


async def test_law04_a_deadline_does_not_end_what_ran(storage: Storage, clock: HandClock) -> None:
    """Its function has run; only the ending is left, and that is the engine's to say."""
    await storage.enqueue([job("a", deadline=10), job("child", delay=20)])
    a = await claim_one(storage)
    await settle(storage, out(a, WAITING, after=("child",), ran=True))
    clock.advance(15)
    await tend(storage)
    assert await state(storage, "a") is WAITING
    clock.advance(5)
    await run(storage, "child")
    clock.advance(5)
    assert await claim_ids(storage) == ["a"]


async def test_law04_a_deadline_does_not_end_what_ran_and_was_lost(storage: Storage, clock: HandClock) -> None:
    """A worker lost while it ended the job: it comes back in line, whatever the deadline says."""
    await storage.enqueue([job("a", ran=True, deadline=10)])
    await storage.enqueue([job("b", ran=True, deadline=10, after=("x",), wait_timeout=50)])
    assert (await claim_one(storage, lease=20)).job.id == "a"
    clock.advance(21)
    a = await claim_one(storage)
    assert (a.job.id, a.lost, a.reason) == ("a", 1, "lost by w")
    await settle(storage, done(a))
    clock.advance(29)
    assert await claim_ids(storage) == ["b"]


async def test_law04_a_deadline_is_the_next_moment(storage: Storage) -> None:
    """A claim tells when somebody expires, so that whoever waits for it hears in time."""
    await storage.enqueue([job("a", after=("a-promise",), wait_timeout=500, deadline=12)])
    assert (await claimed(storage)).next_in == pytest.approx(12)


async def test_law04_an_expiry_dooms_who_waits(storage: Storage, clock: HandClock) -> None:
    """In the same step, even if nobody serves either queue."""
    await storage.enqueue([job("a", deadline=10, queue="x"), job("b", after=("a",), queue="y")])
    clock.advance(10)
    await storage.prune(10)
    assert await states(storage, "a b") == [FAILED, CANCELLED]


# --- repeated calls


async def test_law10_a_ticket_is_answered_again(storage: Storage) -> None:
    """A claim whose answer was lost is repeated under its ticket and gets the same jobs, as they are."""
    await storage.enqueue(jobs("a b c"))
    asked = ask(2)
    first = await storage.claim(asked)
    again = await storage.claim(asked)
    assert sorted(ids(again.records)) == sorted(ids(first.records)) == ["a", "b"]
    assert {each.version for each in again.records} == {each.version for each in first.records}
    assert await claim_ids(storage, 9) == ["c"]


async def test_law10_each_ticket_is_remembered(storage: Storage) -> None:
    """A worker asks with several tickets at a time; the answer of each may be lost."""
    await storage.enqueue(jobs("a b c d"))
    one, two = ask(2), ask(2)
    first, second = await storage.claim(one), await storage.claim(two)
    assert ids((await storage.claim(one)).records) == ids(first.records)
    assert ids((await storage.claim(two)).records) == ids(second.records)


async def test_law10_a_ticket_answers_what_is_still_held(storage: Storage) -> None:
    """What has been settled since is not answered again."""
    await storage.enqueue(jobs("a b c"))
    asked = ask(2)
    a, _ = (await storage.claim(asked)).records
    await settle(storage, done(a))
    assert ids((await storage.claim(asked)).records) == ["b"]


async def test_law10_a_ticket_whose_job_went_on_is_a_new_claim(storage: Storage, clock: HandClock) -> None:
    """Another worker had it meanwhile and lost it too: it is answered as it is now."""
    await storage.enqueue([job("a", deadline=1000.0)])
    asked = ask(lease=10.0)
    await storage.claim(asked)
    clock.advance(20)
    second = await claim_one(storage, worker="other", lease=10.0)
    clock.advance(20)
    [third] = (await storage.claim(asked)).records
    assert (second.lost, third.lost) == (1, 2)
    assert third == await row(storage, "a")


async def test_law10_a_new_ticket_is_a_new_claim(storage: Storage) -> None:
    """The worker's name alone repeats nothing."""
    await storage.enqueue(jobs("a b"))
    assert await claim_ids(storage, worker="w") == ["a"]
    assert await claim_ids(storage, worker="w") == ["b"]


async def test_law10_a_repeated_claim_loses_nothing(storage: Storage, clock: HandClock) -> None:
    """Three lost answers make no poison pill of a job that never ran."""
    await storage.enqueue(jobs("a"))
    asked = ask(1, lease=10)
    for _ in range(3):
        [a] = (await storage.claim(asked)).records
        clock.advance(1)
    assert (a.lost, a.attempt) == (0, 0)


@pytest.mark.parametrize("to", [SUCCEEDED, FAILED, CANCELLED, READY, WAITING])
@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_law10_an_outcome_is_applied_once(storage: Storage, to: str, delay: float) -> None:
    """The same outcome again says applied, and has no second effect."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    a = await claim_one(storage)
    outcome = out(
        a,
        type(a.state)(to),
        delay=delay,
        attempt=2,
        result="1",
        value="2",
        error="e",
        reason="asked",
        memo=(("s", "1"),),
        note="n",
        then=(job("child"),),
        after=("p",) if to == WAITING else (),
    )
    await settle(storage, outcome)
    before = await storage.get(["a", "child", "p"])
    await settle(storage, outcome)
    assert await storage.get(["a", "child", "p"]) == before


async def test_law10_a_repeat_is_known_after_waiting_is_over(storage: Storage) -> None:
    """The outcome that waits is known again when what it waits for had ended at once, or since."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    a = await claim_one(storage)
    waits = out(a, WAITING, after=("p",), ran=True)
    await settle(storage, waits)
    await settle(storage, done(await row(storage, "p")))
    assert await state(storage, "a") is READY
    await settle(storage, waits)
    assert await state(storage, "a") is READY


async def test_law10_another_outcome_is_no_repeat(storage: Storage) -> None:
    """Two who claim to have ended it differently: only the first is told it was applied."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2)
    await settle(storage, done(a, result="1"), done(b, attempt=1))
    assert await said(storage, done(a, result="2"), done(b, attempt=2)) == ["stale", "stale"]
    assert await said(storage, failed(a, result="1"), cancelled(a, result="1")) == ["stale", "stale"]


async def test_law10_a_repeat_after_the_next_claim_is_stale(storage: Storage) -> None:
    """Once something else has touched the row, the old outcome is old."""
    await storage.enqueue(jobs("a"))
    handed_back = back(await claim_one(storage))
    await settle(storage, handed_back)
    await claim_one(storage)
    assert await said(storage, handed_back) == ["stale"]
    assert await state(storage, "a") is RUNNING


async def test_law10_a_heartbeat_repeated(storage: Storage) -> None:
    """It leaves the same row."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await beat(storage, hold(a, memo=(("s", "1"),), note="n")) == set()
    before = await row(storage, "a")
    assert await beat(storage, hold(a, memo=(("s", "1"),), note="n")) == set()
    assert await row(storage, "a") == before


async def test_law10_a_prune_repeated(storage: Storage, clock: HandClock) -> None:
    """What went the first time is not counted again."""
    await storage.enqueue(jobs("a b", keep=100))
    await run(storage, "a", "b")
    clock.advance(101)
    assert [await storage.prune(10), await storage.prune(10)] == [2, 0]


async def test_law10_settle_and_claim_in_one_trip(storage: Storage) -> None:
    """Where a storage offers it, the answers are those of the two verbs, one after the other."""
    if not isinstance(storage, Fused):
        pytest.skip("this storage has no settle_claim")
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c")])
    a = await claim_one(storage)
    asked = ask(9)
    settled, found = await storage.settle_claim([done(a), failed(a)], asked)
    assert [each.status for each in settled] == ["applied", "stale"]
    assert ids(found.records) == ["b", "c"]
    again, same = await storage.settle_claim([done(a)], asked)
    assert [each.status for each in again] == ["applied"]
    assert ids(same.records) == ["b", "c"]


# --- workers


async def test_more_workers_are_seen_while_they_beat(storage: Storage, clock: HandClock) -> None:
    """A worker shows as it last described itself, for `ttl` seconds; one that says good-bye is gone at once."""
    one = Presence(worker="one", host="h", pid=7, queues=("a", "b"), slots=20, running=3, uptime=12.5, ttl=90)
    await storage.heartbeat(one, [], 30)
    two = Presence(worker="two", ttl=30)
    await storage.heartbeat(two, [], 30)
    assert {each.worker: each for each in (await storage.stats()).workers} == {"one": one, "two": two}
    clock.advance(31)
    assert (await storage.stats()).workers == (replace(one, age=31),)
    await storage.heartbeat(Presence(worker="one", running=9), [], 30)
    assert [each.running for each in (await storage.stats()).workers] == [9]
    await storage.heartbeat(Presence(worker="one", gone=True), [], 30)
    assert (await storage.stats()).workers == ()


async def test_more_a_good_bye_leaves_its_jobs_alone(storage: Storage) -> None:
    """Handing back is a settle; a good-bye only ends the presence."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await storage.heartbeat(Presence(worker="w", gone=True), [], 30)
    assert await state(storage, "a") is RUNNING
    await settle(storage, done(a))
