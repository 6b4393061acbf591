"""A worker that claims a job of its own again: its lease has expired, and the claim was sent before the run began, or
another worker had the job in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.kit import Spy, Told, heartbeats, work
from treadle import App, Retry, current
from treadle.core.model import Claim, Claimed, Outcome, Record, Settled
from treadle.storage.contract import Capabilities, Storage
from treadle.testing import HandClock
from treadle_testkit.shows import shows

LEASE = 30.0


class Early(Spy):
    """Each claim was sent before the worker knew of the jobs that it runs now.

    late    the answer to the first claim that brings a job arrives with the answer to the next one that does, after it
    taken   that first claim was made
    holds   the first settle waits until `again` is set: a claim has brought a job that lost its worker
    claims  held while a worker claims; a test that holds it keeps the workers of the app from claiming
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.late, self._kept = False, list[Record]()
        self.taken, self.holds, self.again = asyncio.Event(), False, asyncio.Event()
        self.claims = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def claim(self, ask: Claim) -> Claimed:
        async with self.claims:
            return self._answer(await super().claim(replace(ask, running=())))

    async def settle(self, outs: Sequence[Outcome]) -> Sequence[Settled]:
        if self.holds:
            self.holds = False
            await self.again.wait()
        return await super().settle(outs)

    def _answer(self, claimed: Claimed) -> Claimed:
        if any(row.lost for row in claimed.records):
            self.again.set()
        if not self.late or not claimed.records:
            return claimed
        if not self._kept:
            self._kept = [*claimed.records]
            self.taken.set()
            return replace(claimed, records=())
        self.late = False
        return replace(claimed, records=(*claimed.records, *self._kept))


@pytest.fixture
def spy(storage: Storage) -> Early:
    return Early(storage)


@shows("a worker that claims its own job again stops the earlier run first, and never runs a job twice at once")
async def test_an_earlier_run_ends_before_the_job_runs_again(
    app: App, told: Told, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, began = heartbeats(monkeypatch), asyncio.Event()
    said: list[str] = []

    @app.task(name="f")
    async def f() -> str:
        if current().record.lost:
            said.append("again")
            return "done"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            said.append("ended")
        return "never"

    job = await f.enqueue()
    async with work(app, concurrency=4, lease=LEASE):
        await beats.again("the first heartbeat")
        await began.wait()
        clock.advance(LEASE + 1)
        assert await job.result(timeout=30) == "done"
        await told.until("lost")
    row = await app.jobs.get(job.id)
    assert (said, row.lost, row.attempt) == (["ended", "again"], 1, 1)


async def test_an_answer_that_arrives_after_a_later_one_starts_nothing(
    app: App, spy: Early, told: Told, clock: HandClock
) -> None:
    spy.late = True
    versions: list[int] = []

    @app.task(name="f")
    async def f() -> str:
        versions.append(current().version)
        return "done"

    job = await f.enqueue()
    async with work(app, concurrency=4, lease=LEASE):
        await spy.taken.wait()
        clock.advance(LEASE + 1)
        assert await job.result(timeout=30) == "done"
    assert versions == [2]
    assert not told.of("lost")


class Taken:
    """A job whose first run fails after another worker, which died, had claimed it; its second run succeeds."""

    def __init__(self, app: App, spy: Early, clock: HandClock, patch: pytest.MonkeyPatch) -> None:
        self.app, self.spy, self.clock, self.beats = app, spy, clock, heartbeats(patch)
        self.began, self.taken = asyncio.Event(), asyncio.Event()
        self.f = app.task(name="f", retry=Retry(base=0, max=0))(self._f)

    async def _f(self) -> str:
        if current().record.lost:
            return "done"
        self.began.set()
        await self.taken.wait()
        raise ValueError("no")

    async def run(self, concurrency: int) -> None:
        job = await self.f.enqueue()
        async with work(self.app, concurrency=concurrency, lease=LEASE):
            await self.beats.again("the first heartbeat")
            await self.began.wait()
            async with self.spy.claims:
                self.clock.advance(LEASE + 1)
                [_] = (await self.spy.inner.claim(Claim(worker="other#1", lease=10))).records
            self.clock.advance(11)
            self.taken.set()
            assert await job.result(timeout=30) == "done"


ENDINGS = ("retrying", "lost", "succeeded")


@shows("a run whose job another worker has claimed meanwhile is reported as lost, also if its job comes back at once")
async def test_a_job_that_another_worker_had_comes_back_with_the_answer(
    app: App, spy: Early, told: Told, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Taken(app, spy, clock, monkeypatch).run(concurrency=1)
    assert sorted(told.names(*ENDINGS)) == ["lost", "succeeded"]


async def test_a_job_that_another_worker_had_comes_back_before_the_answer(
    app: App, spy: Early, told: Told, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(app, spy, clock, monkeypatch)
    spy.holds = True
    await taken.run(concurrency=4)
    assert sorted(told.names(*ENDINGS)) == ["lost", "succeeded"]
