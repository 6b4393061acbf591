"""A storage that is unavailable in random bursts: everything still runs, once each, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.kit import Spy, Told, heartbeats, work
from tests.worker.test_claimed_twice import Early
from treadle import App, Event, Retry, State, StorageUnavailable, current
from treadle.core.model import Claim, Claimed, Outcome, Settled
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock


class Flaky(Spy):
    """Fails before the call, or after it: then the call was made and its answer is lost."""

    def __init__(self, inner: MemoryStorage, rng: random.Random) -> None:
        super().__init__(inner)
        self.rng, self.well = rng, True
        for verb in ("claim", "settle", "heartbeat", "watch", "prune"):
            setattr(self, verb, self._flaky(verb, getattr(self, verb)))

    def _flaky(self, verb: str, call):  # type: ignore[no-untyped-def]
        async def flaky(*args):  # type: ignore[no-untyped-def]
            luck = 1.0 if self.well else self.rng.random()
            if luck < 0.15:
                raise StorageUnavailable(f"{verb} was not sent")
            answer = await call(*args)
            if luck < 0.3:
                raise StorageUnavailable(f"the answer to {verb} was lost")
            return answer

        return flaky


@pytest.mark.parametrize(("workers", "slots"), [(1, 1), (1, 5), (2, 5)])
@pytest.mark.parametrize("seed", range(4))
async def test_every_job_runs_once(workers: int, slots: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.core.defaults.RESULT_POLL", 0.01)  # hints fail too
    ran: Counter[int] = Counter()
    spy = Flaky(MemoryStorage(clock := HandClock()), random.Random(seed))
    async with App(storage=spy, clock=clock, random=lambda: 0.5) as app:

        @app.task(retry=Retry(base=0))
        async def t(n: int) -> int:
            ran[n] += 1
            await asyncio.sleep(0)
            return n

        @app.task
        def plain(n: int) -> int:
            ran[n] += 1
            return n

        spy.well = False
        crew = [work(app, concurrency=slots, recovery=Retry(base=0.001, max=0.002), lease=3600) for _ in range(workers)]
        for worker in crew:
            await worker.start()
        jobs = await app.enqueue([(t if n % 2 else plain).job(n) for n in range(20)])
        assert await asyncio.gather(*(job.result(timeout=30) for job in jobs)) == list(range(20))
        spy.well = True
        for worker in crew:
            await worker.stop()
        rows = [await app.jobs.get(job) for job in jobs]
    assert {row.state for row in rows} == {State.SUCCEEDED}
    assert {row.lost for row in rows} == {0}
    assert set(ran.values()) == {1}


class InTheWay(Spy):
    """A storage on which another open transaction has locked the row during the first settles."""

    left = 3

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if outcomes and self.left:
            self.left -= 1
            return [Settled("refused", "somebody holds the row", again=True) for _ in outcomes]
        return await super().settle(outcomes)


async def test_an_outcome_that_a_locked_row_holds_up_is_settled_again_and_the_job_ran_once() -> None:
    """It is not a failure of the job: nothing is retried, and no attempt is counted."""
    app, ran = App(storage=InTheWay(MemoryStorage()), random=lambda: 0.0), []
    told = Told(app)

    @app.task(name="t", retry=Retry(attempts=5, base=0))
    async def t() -> str:
        ran.append(1)
        return "well"

    async with app, work(app):
        job = await t.enqueue()
        assert await job.result(timeout=30) == "well"
        row = await app.jobs.get(job.id)
    assert row is not None
    assert (len(ran), row.attempt, row.lost) == (1, 1, 0)
    assert told.names("retrying", "failed", "lost") == []


async def test_an_outcome_that_is_held_up_for_too_long_is_left_to_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.worker.settler.LOCKED", 0.0)
    spy = InTheWay(MemoryStorage())
    spy.left = 2
    app, ran = App(storage=spy, random=lambda: 0.0), []

    @app.task(name="t", lease=0.1, retry=Retry(attempts=1))
    async def t() -> str:
        ran.append(1)
        return "well"

    async with app, work(app):
        assert await (await t.enqueue()).result(timeout=30) == "well"
    assert len(ran) == 3


class Crossing(Spy):
    """The answer to the first settle is lost. Before it is repeated a claim is made, and answered after it."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.lost, self.claimed, self.settled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        again = self.lost.is_set()
        if outcomes and again:
            await self.claimed.wait()
        answer = await super().settle(outcomes)
        if outcomes and not again:
            self.lost.set()
            raise StorageUnavailable("the answer to settle was lost")
        if outcomes:
            self.settled.set()
        return answer

    async def claim(self, ask: Claim) -> Claimed:
        between = self.lost.is_set() and not self.claimed.is_set()
        answer = await super().claim(ask)
        if between:
            self.claimed.set()
            await self.settled.wait()
        return answer


async def test_a_job_that_is_being_settled_is_not_in_another_claim_of_its_worker() -> None:
    """The claim would find the job gone when it is settled, and report it as lost although the worker has it."""
    crossing = Crossing(MemoryStorage())
    async with App(storage=crossing, random=lambda: 0.0) as app:
        told = Told(app)

        @app.task(retry=Retry(attempts=2, base=0))
        async def t() -> int:
            if current().attempt == 1:
                raise ValueError("the first time")
            return 1

        async with work(app, concurrency=2, poll=3600, recovery=Retry(base=0.001)):
            job = await t.enqueue()
            async with asyncio.timeout(30):
                await crossing.lost.wait()
                await app.stub("nobody's").enqueue()  # a hint: the other dispatcher claims
                assert await job.result() == 1
        assert told.names("retrying", "lost") == ["retrying"]


async def test_a_job_lost_and_reclaimed_by_one_worker_emits_one_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run was stopped, so no event says that it succeeded."""
    spy, gate, versions, told = (
        Early(MemoryStorage(clock := HandClock())),
        asyncio.Event(),
        list[int](),
        list[str](),
    )
    began, beats = asyncio.Queue[None](), heartbeats(monkeypatch)
    async with App(storage=spy, clock=clock) as app:

        @app.task
        async def t(n: int) -> int:
            versions.append(current().version)
            began.put_nowait(None)
            if n == 0:
                await gate.wait()
            return n

        @app.on("succeeded")
        def succeeded(event: Event) -> None:
            told.append(event.id or "")

        job = await t.enqueue(0)
        async with work(app, concurrency=2, lease=10.0, poll=0.01), asyncio.timeout(60):
            await began.get()
            await beats.until(lambda: beats.sent, "the first heartbeat")
            clock.advance(11)
            await began.get()
            gate.set()
            await job.result(timeout=60)
            await (await t.enqueue(1)).result(timeout=60)  # the other run has been settled, too
    assert versions[0] == 1 < versions[1]
    assert told.count(job.id) == 1
