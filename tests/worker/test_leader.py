"""Roles: one worker of a fleet prunes, redrives and ticks schedules, and another one when the first sends no
heartbeat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit import Spy, Told, presences, work
from tests.waiting import Signal, patient
from treadle import App, BadOption, StorageUnavailable, Worker
from treadle.core.model import NewJob, Outcome, Presence, State
from treadle.server.doctor.common import checks
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle.worker.leader import ID, LeaderDuties, LeaderElection, Role, leader_of
from treadle.worker.outage import StorageOutage
from treadle_testkit.shows import shows


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make followers poll often, because a clock moved by hand does not wake them."""
    monkeypatch.setattr("treadle.core.defaults.POLL", 0.02)


class Candidate(LeaderElection):
    """A candidate for the lead, without the rest of a worker."""

    def __init__(self, storage: Storage, name: str, role: Role, duties: LeaderDuties = LeaderDuties()) -> None:  # noqa: B008
        self.name = name
        super().__init__(role, f"{name}#1", storage, lambda: Presence(worker=name), lambda: duties, lambda: None)


async def looked(*candidates: Candidate) -> list[bool]:
    for each in candidates:
        await each.look()
    return [each.is_leader() for each in candidates]


async def leading(storage: Storage) -> str | None:
    [row] = await storage.get([ID])
    return leader_of(row)


@shows("a follower takes over once its leader has been silent for more than five seconds")
async def test_a_follower_takes_over_after_five_seconds_of_silence(app: App, clock: HandClock) -> None:
    one, two = Candidate(app.storage, "one", "leader"), Candidate(app.storage, "two", "follower")
    assert await looked(one, two) == [True, False]
    for _ in range(4):
        clock.advance(4)
        assert await looked(one, two) == [True, False]  # its heartbeats are in time
    clock.advance(5)
    assert await looked(two) == [False]  # exactly five seconds are not over yet
    clock.advance(0.01)
    assert await looked(two) == [True]
    assert await leading(app.storage) == "two"


async def test_a_follower_gives_a_leader_time_to_start(app: App, clock: HandClock) -> None:
    early, late = Candidate(app.storage, "early", "follower"), Candidate(app.storage, "late", "leader")
    assert await looked(early) == [False]
    clock.advance(4.9)
    assert await looked(early, late, early) == [False, True, False]
    assert await leading(app.storage) == "late"


async def test_followers_alone_tick_too(app: App, clock: HandClock) -> None:
    one, two = Candidate(app.storage, "one", "follower"), Candidate(app.storage, "two", "follower")
    assert await looked(one, two) == [False, False]
    clock.advance(5.01)
    assert await looked(one, two) == [True, False]


async def test_a_leader_that_is_restarted_leads_again(app: App, clock: HandClock) -> None:
    for role in ("follower", "auto"):
        stand_in = Candidate(app.storage, "stand-in", role)
        await looked(stand_in)
        clock.advance(5.01)
        assert await looked(stand_in) == [True]
        back = Candidate(app.storage, f"back-{role}", "leader")
        assert await looked(back, stand_in) == [True, False]
        assert await leading(app.storage) == f"back-{role}"
        clock.advance(5.01)


async def test_a_leader_that_stalled_follows_the_new_one(app: App, clock: HandClock) -> None:
    one, two = Candidate(app.storage, "one", "auto"), Candidate(app.storage, "two", "auto")
    assert await looked(one, two) == [True, False]
    clock.advance(60)
    assert await looked(two) == [True]
    assert one.is_leader()  # it does not know yet, but whatever it does is fenced
    assert await looked(one) == [False]
    assert await leading(app.storage) == "two"


async def test_a_leader_keeps_the_lead_after_an_unnoticed_stall(app: App, clock: HandClock) -> None:
    one = Candidate(app.storage, "one", "auto")
    assert await looked(one) == [True]
    clock.advance(60)
    assert await looked(one) == [True]


async def test_a_leader_that_leaves_ends_its_lease(app: App, clock: HandClock) -> None:
    one, two = Candidate(app.storage, "one", "auto"), Candidate(app.storage, "two", "follower")
    three = Candidate(app.storage, "three", "auto")
    assert await looked(one, two, three) == [True, False, False]
    await one.leave()
    # the leader's job has ended, so none stays queued
    assert [row.state async for row in app.jobs.iterate()] == [State.SUCCEEDED]
    assert await looked(three) == [True]
    await three.leave()
    assert await looked(two) == [False]
    clock.advance(5.01)
    assert await looked(two) == [True]


async def test_two_leaders_both_do_the_duties_and_one_of_them_holds_the_lease(app: App, clock: HandClock) -> None:
    one, two = Candidate(app.storage, "one", "leader"), Candidate(app.storage, "two", "leader")
    assert await looked(one, two, one) == [True, True, True]
    assert await leading(app.storage) == "one"
    clock.advance(5.01)
    await looked(two)
    assert await leading(app.storage) == "two"


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED, State.SUCCEEDED])
async def test_no_operator_ends_the_lead_for_good(app: App, clock: HandClock, state: State) -> None:
    one, two = Candidate(app.storage, "one", "auto"), Candidate(app.storage, "two", "follower")
    assert await looked(one, two) == [True, False]
    [row] = await app.storage.get([ID])
    assert row is not None
    await app.storage.settle([Outcome(id=ID, version=row.version, state=state)])
    assert await looked(two, one) == [False, True]  # a follower leaves five seconds for other candidates


async def test_a_pause_of_every_queue_stops_no_leader(app: App, clock: HandClock) -> None:
    await app.queues.pause("treadle")
    follower = Candidate(app.storage, "two", "follower")
    assert await looked(follower) == [False]
    clock.advance(5.01)
    assert await looked(follower) == [True]
    await follower.leave()
    assert await looked(Candidate(app.storage, "one", "auto")) == [True]
    assert await leading(app.storage) == "one"


async def test_followers_tick_schedules_that_the_leader_has_not_declared(app: App) -> None:
    one = Candidate(app.storage, "one", "leader", LeaderDuties(("treadle.schedule:a",), ("a",)))
    two = Candidate(app.storage, "two", "follower", LeaderDuties(("treadle.schedule:a", "treadle.schedule:b")))
    assert not two.ticks("treadle.schedule:b")  # no leader is known yet
    assert await looked(one, two) == [True, False]
    assert [two.ticks(f"treadle.schedule:{name}") for name in "ab"] == [False, True]
    assert two.redrives(["a", "b"]) == ["b"]


async def test_a_lost_answer_costs_no_lead(app: App, spy: Any) -> None:
    one = Candidate(spy, "one", "auto")
    inner = spy.inner.claim

    async def deaf(ask: Any) -> Any:
        await inner(ask)
        spy.inner.claim = inner
        raise ConnectionError("the answer was lost")

    await one._open_way()
    spy.inner.claim = deaf
    with pytest.raises(ConnectionError):
        await one.look()
    assert await looked(one) == [True]


@pytest.mark.parametrize("verb", ["claim", "heartbeat"])
async def test_a_lost_answer_leaves_no_leader_behind(app: App, spy: Spy, verb: str) -> None:
    """The worker stops before it has repeated the claim whose answer was lost, or the first heartbeat after it."""
    one = Candidate(spy, "one", "auto")
    inner = getattr(spy.inner, verb)

    async def deaf(*given: Any) -> Any:
        await inner(*given)
        setattr(spy.inner, verb, inner)
        raise StorageUnavailable("the answer was lost")

    await one._open_way()
    setattr(spy.inner, verb, deaf)
    with pytest.raises(StorageUnavailable):
        await one.look()
    assert await leading(app.storage) == "one"
    await one.leave()
    assert await leading(app.storage) is None


async def test_leaving_raises_nothing_while_the_storage_is_unavailable(
    app: App, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Candidate(spy, "one", "auto")

    async def away(ask: Any) -> Any:
        raise StorageUnavailable("away")

    await one._open_way()
    monkeypatch.setattr(spy.inner, "claim", away)
    with pytest.raises(StorageUnavailable):
        await one.look()
    await one.leave()
    assert await leading(app.storage) is None


# --- in workers


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Sent after each look for a leader."""
    return Signal().after(monkeypatch, LeaderElection, "look")


@pytest.mark.usefixtures("looks_often")
async def test_schedules_are_ticked_by_the_leader_and_then_by_a_follower(
    app: App, spy: Spy, clock: HandClock, told: Told
) -> None:
    @app.every(60, name="minutely")
    @app.task(name="job")
    async def job() -> None: ...

    leader, follower = work(app, role="leader"), work(app, role="follower")
    async with leader, follower:
        await minutes_pass(spy, clock, told, 1)
        await leader.stop()
        await minutes_pass(spy, clock, told, 2)
    assert {event.task for event in told.of("succeeded")} == {"job"}


async def minutes_pass(spy: Spy, clock: HandClock, told: Told, ticks: int) -> None:
    """Move the clock until so many ticks have run. A leader whose heartbeat is late by this clock loses the lead, and
    then the follower gives other leaders five seconds by this clock as well."""
    while len(told.of("succeeded")) < ticks:
        clock.advance(1)
        await spy.called.again("a call of a worker")


@pytest.mark.usefixtures("looks_often")
async def test_only_the_leader_claims_schedules(app: App, clock: HandClock, looks: Signal) -> None:
    @app.every(60)
    @app.task(name="job")
    async def job() -> None: ...

    other = Candidate(app.storage, "other", "leader", LeaderDuties(("treadle.schedule", "treadle.schedule:job")))
    assert await looked(other) == [True]
    async with work(app, role="follower") as follower:
        session = follower._core.session
        assert session is not None
        await looks.until(lambda: session.parts.election._leaders is not None, "the duties of the leader")
        assert not [name for name in session.parts.tasks() if name.startswith("treadle.schedule")]
        assert "job" in session.parts.tasks()
        clock.advance(5.01)  # the other one has fallen silent
        await looks.until(session.parts.election.is_leader, "the follower's lead")
        assert "treadle.schedule:job" in session.parts.tasks()
    assert await leading(app.storage) is None  # it has stopped


@pytest.mark.usefixtures("looks_often")
async def test_only_the_leader_prunes(app: App, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.core.defaults.PRUNE_EVERY", 0.01)
    [row] = await app.storage.enqueue([NewJob(id="old", keep=0)])
    await app.storage.settle([Outcome(id="old", version=row.version, state=State.SUCCEEDED)])
    clock.advance(61)
    other = Candidate(app.storage, "other", "leader")
    await looked(other)
    answered, rounds = StorageOutage.answered, asyncio.Queue[None]()

    def counted(outage: StorageOutage, loop: str) -> None:
        answered(outage, loop)
        if loop == "prune":
            rounds.put_nowait(None)

    monkeypatch.setattr(StorageOutage, "answered", counted)
    async with work(app, role="follower") as follower, patient("rounds of the pruner"):
        session = follower._core.session
        assert session is not None
        pruned = asyncio.Queue[int]()
        inner = session.parts.storage.prune

        async def prune(limit: int) -> int:
            pruned.put_nowait(found := await inner(limit))
            return found

        monkeypatch.setattr(session.parts.storage, "prune", prune)
        for _ in range(5):
            await rounds.get()
        assert pruned.empty()
        clock.advance(5.01)
        while await app.storage.get(["old"]) != [None]:
            await pruned.get()


async def test_the_doctor_names_the_command_that_serves_each_queue(app: App) -> None:
    for queue in "delayed", "two words":
        await app.storage.enqueue([NewJob(id=queue.replace(" ", "-"), task="t", queue=queue)])
    await app.schedules.upsert("s", app.stub("t").job(), every=60)
    found = {
        check.text.split("'")[1]: check.advice async for check in checks(app._core, False) if check.name == "queues"
    }
    assert found == {
        "delayed": "start one: `treadle worker [module:app] --protocol delayed`",
        "treadle": "start one: `treadle worker module:app`",
        "two words": "start one: `treadle worker module:app --queues 'two words'`",
    }


def test_an_invalid_role_is_refused() -> None:
    with pytest.raises(BadOption, match="role"):
        Worker(App("memory://"), role="boss")  # type: ignore[arg-type]


async def test_the_doctor_misses_no_worker_for_what_every_worker_serves(app: App, spy: Spy, clock: HandClock) -> None:
    async def missed() -> list[str]:
        return [check.text async for check in checks(app._core, has_tasks=False) if check.name == "queues"]

    await looked(Candidate(app.storage, "one", "auto"))
    clock.advance(100)  # its whole fleet was killed long ago
    assert not await missed()
    await app.schedules.upsert("s", app.stub("job", queue="jobs").job(), every=60)
    assert await missed() == ["1 job in queue 'treadle', and no worker serves it"]
    async with work(app, queues=["jobs"]):
        await spy.until(lambda: presences(app.storage), "the worker's first heartbeat")
        assert not await missed()
