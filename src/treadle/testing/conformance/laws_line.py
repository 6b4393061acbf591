"""The line: who is next, for whom, and when. Laws 2 and 12."""

from __future__ import annotations

from contextlib import suppress

import pytest

from treadle.core.model import Claim
from treadle.errors import BadOption
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    CANCELLED,
    READY,
    RUNNING,
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
    row,
    settle,
    state,
    tend,
)


async def test_law02_first_come_first_served(storage: Storage, clock: HandClock) -> None:
    """Within a priority the place decides, and the place is the moment of joining."""
    await storage.enqueue([job("z")])
    clock.advance(1)
    await storage.enqueue([job("a")])
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law02_of_one_moment_the_id_decides(storage: Storage) -> None:
    """The sort key is (priority, place, id)."""
    await storage.enqueue(jobs("b c a"))
    assert await claim_ids(storage, 9) == ["a", "b", "c"]


async def test_law02_higher_priority_first(storage: Storage, clock: HandClock) -> None:
    """Priority comes before place, and may be negative."""
    await storage.enqueue([job("low", priority=-3), job("first")])
    clock.advance(5)
    await storage.enqueue([job("second"), job("high", priority=7)])
    assert await claim_ids(storage, 9) == ["high", "first", "second", "low"]


async def test_law02_no_more_than_asked(storage: Storage) -> None:
    """A claim takes at most `limit` jobs, the first ones in line."""
    await storage.enqueue(jobs("a b c d"))
    assert await claim_ids(storage, 3) == ["a", "b", "c"]
    assert await claim_ids(storage, 3) == ["d"]


async def test_law02_each_queues_share_first(storage: Storage, clock: HandClock) -> None:
    """Each queue's share in the order asked, then the rest as asked; priority counts within a queue only."""
    await storage.enqueue(jobs("b1 b2 b3", queue="b", priority=9))
    await storage.enqueue(jobs("a1 a2 a3", queue="a"))
    taken = await claim_ids(storage, 4, queues=(("a", 1), ("b", 2)))
    assert taken == ["a1", "b1", "b2", "a2"]


async def test_law02_what_a_queue_leaves_goes_to_the_others(storage: Storage) -> None:
    """A share that is not used up is given to the other queues."""
    await storage.enqueue([*jobs("a1", queue="a"), *jobs("b1 b2 b3", queue="b")])
    assert await claim_ids(storage, 4, queues=(("a", 3), ("b", 1))) == ["a1", "b1", "b2", "b3"]


async def test_law02_shares_end_at_the_limit(storage: Storage) -> None:
    """Shares that add up to more than the limit do not make it larger."""
    await storage.enqueue([*jobs("a1 a2 a3", queue="a"), *jobs("b1 b2", queue="b")])
    assert await claim_ids(storage, 3, queues=(("a", 2), ("b", 2))) == ["a1", "a2", "b1"]


async def test_law02_only_queues_asked_for(storage: Storage) -> None:
    """Another queue's job is not handed out."""
    await storage.enqueue([job("a", queue="mail")])
    assert await claim_ids(storage, 9, "default") == []
    assert await claim_ids(storage, 9, "mail") == ["a"]


async def test_law02_only_tasks_the_worker_names(storage: Storage) -> None:
    """A job of a task the worker does not know stays where it is, and blocks nobody."""
    await storage.enqueue([job("a", task="new"), job("b", task="old")])
    assert await claim_ids(storage, 9, tasks={"old": (None, None)}) == ["b"]
    assert await claim_ids(storage, 9, tasks={}) == []
    assert await claim_ids(storage, 9, tasks=None) == ["a"]


async def test_law02_within_the_room_of_each_task(storage: Storage) -> None:
    """At most `room` jobs of a task in one claim; None is no bound, 0 is none."""
    await storage.enqueue([*jobs("a b c", task="x"), *jobs("d e f", task="y"), *jobs("g", task="z")])
    assert await claim_ids(storage, 9, tasks={"x": (2, None), "y": (None, None), "z": (0, None)}) == [*"abdef"]


async def test_law02_room_spans_queues(storage: Storage) -> None:
    """Room is counted over all queues of the claim, shares and rest alike."""
    await storage.enqueue([*jobs("a1 a2", queue="a"), *jobs("b1 b2", queue="b")])
    assert await claim_ids(storage, 9, queues=(("a", 1), ("b", 1)), tasks={"t": (3, None)}) == ["a1", "b1", "a2"]


async def test_law02_by_id_these_and_no_others(storage: Storage) -> None:
    """A claim by ids takes those, wherever they stand in line, in line order."""
    await storage.enqueue(jobs("a b c d"))
    assert await claim_ids(storage, 9, ids=("d", "b", "none")) == ["b", "d"]
    assert await claim_ids(storage, 9) == ["a", "c"]


async def test_law02_by_id_from_any_queue(storage: Storage) -> None:
    """Ids say enough: the queues asked for do not matter then."""
    await storage.enqueue([job("a", queue="somewhere")])
    assert await claim_ids(storage, 1, "default", ids=("a",)) == ["a"]


async def test_law02_by_id_only_what_is_in_line(storage: Storage) -> None:
    """Naming a job does not make it due."""
    await storage.enqueue([job("late", delay=5), job("blocked", after=("late",)), job("p", task="")])
    assert await claim_ids(storage, 9, ids=("late", "blocked", "p")) == []


async def test_law02_claimed_by_one_worker(storage: Storage) -> None:
    """A job is in line at most once; once claimed it is nobody else's."""
    await storage.enqueue(jobs("a"))
    assert await claim_ids(storage, 9, worker="one") == ["a"]
    assert await claim_ids(storage, 9, worker="two") == []


async def test_law02_a_claimed_job_says_who_has_it(storage: Storage, clock: HandClock) -> None:
    """The record shows its holder, the end of its lease, and that it is out of line."""
    await storage.enqueue(jobs("a"))
    clock.advance(3)
    a = await claim_one(storage, worker="w", lease=20.0)
    assert a.state is RUNNING
    assert a.worker is not None
    assert a.worker.startswith("w#")
    assert (a.place, a.started_at, a.due_at) == (None, clock(), clock() + 20)
    assert a == await row(storage, "a")


async def test_law02_a_delayed_job_waits_for_its_moment(storage: Storage, clock: HandClock) -> None:
    """Not a second earlier; and at the moment itself it is due."""
    await storage.enqueue([job("a", delay=10, priority=9), job("b")])
    a = await row(storage, "a")
    assert (a.state, a.place, a.due_at) == (READY, None, clock() + 10)
    clock.advance(9)
    assert await claim_ids(storage, 9) == ["b"]
    clock.advance(1)
    assert await claim_ids(storage, 9) == ["a"]


async def test_law02_a_delayed_job_stands_where_its_moment_puts_it(storage: Storage, clock: HandClock) -> None:
    """Its place is the moment it was due, however late anybody looked."""
    await storage.enqueue([job("z", delay=10)])
    clock.advance(11)
    await storage.enqueue([job("a")])
    clock.advance(11)
    await tend(storage)
    assert (await row(storage, "z")).joined_at == clock() - 12
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law02_delayed_jobs_come_in_the_order_of_their_moments(storage: Storage, clock: HandClock) -> None:
    """However they were sent, and if they all are due at once."""
    await storage.enqueue([job("a", delay=30), job("b", delay=20), job("c", delay=10), job("d", delay=20)])
    clock.advance(60)
    assert await claim_ids(storage, 9) == ["c", "b", "d", "a"]


async def test_law02_a_past_moment_is_now(storage: Storage, clock: HandClock) -> None:
    """Nobody jumps the line by asking to have started long ago."""
    await storage.enqueue([job("z")])
    await storage.enqueue([job("a", delay=0.0)])
    clock.advance(1)
    await storage.enqueue([job("b", delay=0.0)])
    assert await claim_ids(storage, 9) == ["a", "z", "b"]


async def test_law02_a_century_is_kept(storage: Storage, clock: HandClock) -> None:
    """Delays of any length stay in the storage."""
    century = 100 * 365 * 86_400.0
    await storage.enqueue([job("a", delay=century)])
    clock.advance(century - 1)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]


async def test_law02_the_next_moment_is_told(storage: Storage, clock: HandClock) -> None:
    """A claim says in how many seconds the next job may be due; None if it knows of none."""
    assert (await claimed(storage, 9)).next_in is None
    await storage.enqueue([job("a", delay=40), job("b", delay=25)])
    assert (await claimed(storage, 9)).next_in == pytest.approx(25)
    clock.advance(10)
    assert (await claimed(storage, 9)).next_in == pytest.approx(15)
    clock.advance(15)
    found = await claimed(storage, 9, lease=600.0)
    assert ids(found.records) == ["b"]
    assert found.next_in == pytest.approx(15)


async def test_law02_the_end_of_a_lease_is_a_next_moment(storage: Storage) -> None:
    """Whoever waits for work looks again when somebody else's lease may have run out."""
    await storage.enqueue(jobs("a"))
    assert (await claimed(storage, 1, lease=45.0)).next_in == pytest.approx(45)


async def test_law02_a_job_handed_back_keeps_its_turn(storage: Storage, clock: HandClock) -> None:
    """Ready with delay 0 returns to its place, not behind those who came since."""
    await storage.enqueue([job("z")])
    clock.advance(1)
    await storage.enqueue([job("a")])
    z = await claim_one(storage)
    clock.advance(1)
    await settle(storage, back(z))
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law02_a_job_that_comes_back_later_joins_anew(storage: Storage, clock: HandClock) -> None:
    """Ready with a delay stands, once due, behind those who joined before that moment."""
    await storage.enqueue([job("z")])
    z = await claim_one(storage)
    await settle(storage, back(z, 5, attempt=1))
    assert await claim_ids(storage, 9) == []
    clock.advance(4)
    await storage.enqueue([job("a")])
    clock.advance(10)
    assert await claim_ids(storage, 9) == ["a", "z"]


async def test_law02_an_unblocked_job_joins_when_unblocked(storage: Storage, clock: HandClock) -> None:
    """Waiting is not standing in line: it stands behind those who were ready before."""
    await storage.enqueue([job("up"), job("a", after=("up",))])
    up = await claim_one(storage)
    clock.advance(1)
    await storage.enqueue([job("z")])
    clock.advance(1)
    await settle(storage, done(up))
    assert await claim_ids(storage, 9) == ["z", "a"]


async def test_law02_early_unblocking_does_not_shorten_a_delay(storage: Storage, clock: HandClock) -> None:
    """The delay counts from the enqueue; released before, it still waits for its moment."""
    await storage.enqueue([job("up"), job("a", after=("up",), delay=20)])
    clock.advance(5)
    await settle(storage, done(await claim_one(storage)))
    assert await state(storage, "a") is READY
    clock.advance(14)
    assert await claim_ids(storage) == []
    clock.advance(1)
    assert await claim_ids(storage) == ["a"]


async def test_law02_late_unblocking_does_not_add_a_delay(storage: Storage, clock: HandClock) -> None:
    """Released after its moment it joins at once."""
    await storage.enqueue([job("up"), job("a", after=("up",), delay=20)])
    clock.advance(25)
    await settle(storage, done(await claim_one(storage)))
    assert await claim_ids(storage) == ["a"]


async def test_law02_run_now(storage: Storage, clock: HandClock) -> None:
    """A settle from outside brings a delayed job into line at this moment."""
    await storage.enqueue([job("a", delay=1000)])
    clock.advance(1)
    await storage.enqueue([job("b")])
    clock.advance(1)
    await settle(storage, back(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b", "a"]


async def test_law02_put_off_from_outside(storage: Storage, clock: HandClock) -> None:
    """And one in line can be sent away until later."""
    await storage.enqueue([job("a")])
    await settle(storage, back(await row(storage, "a"), 50))
    assert await claim_ids(storage) == []
    clock.advance(50)
    assert await claim_ids(storage) == ["a"]


async def test_law02_never_what_the_worker_still_runs(storage: Storage, clock: HandClock) -> None:
    """A worker is not handed the very job it says it holds; others are, in the same claim."""
    await storage.enqueue(jobs("a b"))
    assert await claim_ids(storage, 1, lease=10) == ["a"]
    clock.advance(11)
    assert await claim_ids(storage, 9, holds=("a",)) == ["b"]
    assert await claim_ids(storage, 9, worker="other") == ["a"]


async def test_law02_ageing_lifts_nobody_at_once(storage: Storage, clock: HandClock) -> None:
    """With ageing a step of priority is worth so many seconds of waiting, no more."""
    await storage.enqueue([job("old", aging=10.0)])
    clock.advance(9)
    await storage.enqueue([job("high", priority=1, aging=10.0)])
    assert await claim_ids(storage, 9) == ["high", "old"]


async def test_law02_ageing_lets_time_win(storage: Storage, clock: HandClock) -> None:
    """After that many seconds the one of lower priority stands in front."""
    await storage.enqueue([job("old", aging=10.0)])
    clock.advance(21)
    await storage.enqueue([job("high", priority=2, aging=10.0)])
    assert await claim_ids(storage, 9) == ["old", "high"]


async def test_law02_ageing_sorts_as_priority_nought(storage: Storage) -> None:
    """Ageing jobs stand among those of priority 0, whatever their own."""
    await storage.enqueue([job("a", priority=9, aging=10.0), job("b", priority=1), job("c", priority=-1)])
    await storage.enqueue([job("d", priority=-9, aging=10.0)])
    assert await claim_ids(storage, 9) == ["b", "a", "d", "c"]


async def test_law02_cancelled_jobs_leave_the_line(storage: Storage) -> None:
    """Settled from outside with its version, a job in line is gone from it."""
    await storage.enqueue(jobs("a b"))
    await settle(storage, cancelled(await row(storage, "a")))
    assert await claim_ids(storage, 9) == ["b"]
    assert (await row(storage, "a")).state is CANCELLED


async def test_law02_waiting_jobs_are_not_in_line(storage: Storage) -> None:
    """Neither those that wait for jobs nor promises."""
    await storage.enqueue([job("p", task=""), job("a", after=("p",))])
    assert await claim_ids(storage, 9) == []
    assert (await row(storage, "p")).state is WAITING


async def test_law12_moments_are_the_storages(storage: Storage, clock: HandClock) -> None:
    """What is written down was read from the storage's clock."""
    begun = clock()
    [a] = await storage.enqueue([job("a", deadline=500)])
    assert (a.created_at, a.place, a.joined_at, a.deadline_at) == (begun, begun, begun, begun + 500)
    clock.advance(10)
    a = await claim_one(storage)
    assert (a.created_at, a.started_at, a.updated_at) == (begun, begun + 10, begun + 10)
    clock.advance(10)
    await settle(storage, done(a, keep=100))
    a = await row(storage, "a")
    assert (a.started_at, a.ended_at, a.updated_at, a.expires_at) == (begun + 10, begun + 20, begun + 20, begun + 120)


async def test_law12_a_clock_that_steps_back_loses_nothing(storage: Storage, clock: HandClock) -> None:
    """Jobs sent after the step stand in front, and all of them run."""
    await storage.enqueue([job("before")])
    clock.advance(-100)
    await storage.enqueue([job("after")])
    assert await claim_ids(storage, 9) == ["after", "before"]


async def test_law12_a_lease_ends_after_its_last_moment(storage: Storage, clock: HandClock) -> None:
    """A lease ran out when now > due_at, and not before."""
    await storage.enqueue(jobs("a"))
    await claim_one(storage, lease=10)
    clock.advance(10)
    assert await claim_ids(storage) == []
    assert await state(storage, "a") is RUNNING
    clock.advance(0.001)
    assert await claim_ids(storage) == ["a"]


async def test_more_five_thousand_jobs_in_one_call(storage: Storage) -> None:
    """One call, however many jobs; and they come out in order."""
    answered = await storage.enqueue([job(f"j{n:04}") for n in range(5_000)])
    assert ids(answered) == [f"j{n:04}" for n in range(5_000)]
    taken = await claim(storage, 5_000)
    assert ids(taken) == ids(answered)
    await settle(storage, *(done(each) for each in taken[:2_500]), *(failed(each) for each in taken[2_500:]))
    assert await claim_ids(storage) == []


async def test_more_an_empty_call_of_every_verb(storage: Storage) -> None:
    """Nothing in, nothing out, nothing raised."""
    assert await storage.enqueue([]) == []
    assert await storage.settle([]) == []
    assert await storage.get([]) == []
    assert await beat(storage) == set()
    assert await storage.prune(100) == 0
    await storage.set_limits([])
    await storage.enqueue(jobs("a"))
    assert (await storage.claim(Claim(worker="w#none", queues=(), limit=5))).records == ()
    assert await claim_ids(storage, 0) == []
    assert await storage.prune(0) == 0
    assert await storage.watch([], 0) == set()
    assert ids((await storage.claim(ask(5))).records) == ["a"]


async def test_more_what_is_asked_is_what_is_stored(storage: Storage) -> None:
    """Every field of a job comes back as it was given."""
    asked = job(
        "every.Field:1@x-_",
        task="pkg.mod:fn",
        payload='{"a":[1,2]}',
        queue="q",
        priority=-7,
        delay=1.5,
        key="t:k",
        key_conflict="replace",
        key_window=9.5,
        key_until="started",
        after=("up",),
        need=1,
        slack=None,
        wait_timeout=77.0,
        limits=(("tenant:a", 2), ("api", 1)),
        lane="lane",
        stride=0.25,
        aging=2.5,
        keep=100.0,
        keep_failed=200.0,
        deadline=900.0,
        retry='{"attempts":3}',
        lease=12.5,
        labels=("x", "y"),
        headers=(("h", "1"), ("i", "2")),
        root="r",
        parent="p",
        ran=True,
    )
    [answered] = await storage.enqueue([asked])
    assert answered.job == asked
    assert (await row(storage, asked.id)).job == asked


async def test_more_a_very_large_payload(storage: Storage) -> None:
    """Five megabytes go in and come out, as payload and as result."""
    large = '"' + "x" * 5_000_000 + '"'
    await storage.enqueue([job("a", payload=large)])
    a = await claim_one(storage)
    assert a.job.payload == large
    await settle(storage, done(a, result=large))
    assert (await row(storage, "a")).result == large


WORDS = "Gr\u00fc\u00dfe_\u4f60\u597d_\U0001f9f5_'\"\\%_?:$1{}"


@pytest.mark.parametrize("named", [WORDS, WORDS + " \u001f\ufeff\u2028 \ue000"])
async def test_more_any_text(storage: Storage, named: str) -> None:
    """Texts come back letter by letter: other scripts, emoji, quotes, line ends, separators (all but U+0000). A storage
    may refuse names that cannot be printed, as a server does."""
    text = WORDS + " \u001f\ufeff\u2028 \ue000\r\n\t"
    new = job(
        "a",
        payload=text,
        queue=named,
        task=named,
        lane=named,
        labels=(named,),
        key=named,
        headers=((named, named),),
        limits=((named, 1),),
    )
    try:
        await storage.enqueue([new])
    except BadOption:
        assert not named.isprintable()
        return
    [a] = await claim(storage, 1, named, tasks={named: (1, None)})
    assert (a.job.payload, a.job.headers, a.job.labels) == (text, ((named, named),), (named,))
    assert await beat(storage, hold(a, note=text, memo=((named, text),))) == set()
    await settle(storage, failed(a, error=text, reason="error", result=text, value=text))
    a = await row(storage, "a")
    assert (a.note, a.memo, a.error, a.result, a.value) == (text, ((named, text),), text, text, text)


async def test_more_an_empty_text_is_not_no_text(storage: Storage) -> None:
    """None and "" are told apart wherever both can stand. A storage may refuse empty names, as a server does."""
    await storage.enqueue([job("a", payload="", headers=(("h", ""),)), job("b")])
    a, b = await claim(storage, 2)
    assert (a.job.payload, a.job.labels, a.job.headers, a.job.lane, a.job.key) == ("", (), (("h", ""),), None, None)
    with suppress(BadOption):
        [c] = await storage.enqueue([job("c", lane="", key="", labels=("",), headers=(("", ""),))])
        assert (c.job.lane, c.job.key, c.job.labels, c.job.headers) == ("", "", ("",), (("", ""),))
    await settle(storage, done(a, result=""), done(b))
    assert ((await row(storage, "a")).result, (await row(storage, "b")).result) == ("", None)
