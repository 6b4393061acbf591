"""A worker that claims a job of its own again: its lease has expired, and the claim was sent before the run began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from tests.kit import Told, heartbeats, work
from treadle import App, current
from treadle.core.model import Claim, Claimed, Outcome, Record, Settled
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock
from treadle.testing.shows import shows

LEASE = 30.0


class Early(StorageProxy):
    """Each claim was sent before the worker knew of the jobs that it runs now.

    late   the answer to the first claim that brings a job arrives with the answer to the next one that does, after it
    taken  that first claim was made
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.late, self._kept = False, list[Record]()
        self.taken = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, hand_off=False)

    async def claim(self, ask: Claim) -> Claimed:
        return self._answer(await super().claim(replace(ask, running=())))

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        settled, claimed = await super().settle_claim(outcomes, replace(ask, running=()))
        return settled, self._answer(claimed)

    def _answer(self, claimed: Claimed) -> Claimed:
        if not self.late or not claimed.records:
            return claimed
        if not self._kept:
            self._kept = [*claimed.records]
            self.taken.set()
            return replace(claimed, records=())
        self.late = False
        return replace(claimed, records=(*claimed.records, *self._kept))


@pytest.fixture
def early(storage: Storage) -> Early:
    return Early(storage)


@pytest.fixture
async def app(early: Early, clock: HandClock) -> AsyncIterator[App]:
    async with App(storage=early, clock=clock, random=lambda: 0.0) as app:
        yield app


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
    app: App, early: Early, told: Told, clock: HandClock
) -> None:
    early.late = True
    versions: list[int] = []

    @app.task(name="f")
    async def f() -> str:
        versions.append(current().version)
        return "done"

    job = await f.enqueue()
    async with work(app, concurrency=4, lease=LEASE):
        await early.taken.wait()
        clock.advance(LEASE + 1)
        assert await job.result(timeout=30) == "done"
    assert versions == [2]
    assert not told.of("lost")
