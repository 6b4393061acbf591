"""A storage that carries out a call late, when its caller is gone and the worker has signed off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import aiohttp
import pytest

from tests.kit import Told, presences, work
from tests.served import host
from tests.server.test_api import Client
from tests.server.test_children import claim, settle
from tests.waiting import patient
from tests.worker.test_leader import Candidate
from treadle import App, StorageUnavailable, current
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.core.query_model import MetricsRow
from treadle.server import Settings
from treadle.server.runner_metrics import RunnerMetrics
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock
from treadle.worker.job_metrics import JobMetrics
from treadle.worker.leader import ID, leader_of
from treadle_testkit.shows import shows

T = TypeVar("T")


class Late(StorageProxy):
    """Once `verb` is set, one call of that verb is carried out after the next one, or after `AT_MOST` s if there is
    none. That happens even if its caller is cancelled, as on any server.

    after  another verb, whose next call it is carried out after
    """

    AT_MOST = 0.2

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.verb = self.after = ""
        self.begun, self._next = asyncio.Event(), asyncio.Event()
        self._carried: asyncio.Task[object] | None = None

    async def claim(self, ask: Claim) -> Claimed:
        verb = "lead" if ask.ids == (ID,) else "claim"
        return await self.around(verb, lambda storage: storage.claim(ask))

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if self._carried is not None:
            answer = await super().around(verb, call)
            if verb == (self.after or self.verb):
                self._next.set()
            return answer
        if verb != self.verb:
            return await super().around(verb, call)
        carried = asyncio.create_task(self._carry_out(call))
        self._carried = carried
        self.begun.set()
        return await asyncio.shield(carried)

    async def _carry_out(self, call: Callable[[Storage], Awaitable[T]]) -> T:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.AT_MOST):
                await self._next.wait()
        return await call(self.storage)

    async def done(self) -> None:
        assert self._carried is not None
        await asyncio.wait([self._carried])


class Stuck(StorageProxy):
    """Once it is armed, one heartbeat gets no answer until it is cancelled: the next or the last one."""

    def __init__(self, inner: Storage, last: bool) -> None:
        super().__init__(inner)
        self.last, self.armed, self.begun = last, False, asyncio.Event()

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        if self.armed and worker.gone == self.last and not self.begun.is_set():
            self.begun.set()
            await asyncio.Event().wait()
        return await super().heartbeat(worker, renewals, lease)


@pytest.fixture
def late(storage: Storage) -> Late:
    return Late(storage)


@shows("a heartbeat that the storage carries out late lists no worker that has stopped")
async def test_a_late_heartbeat_lists_no_stopped_worker(late: Late, clock: HandClock) -> None:
    async with App(storage=late, clock=clock) as app:
        worker = work(app, lease=0.03)  # a heartbeat every 10 ms
        await worker.start()
        late.verb = "heartbeat"
        await late.begun.wait()
        await worker.stop()
        await late.done()
        assert await presences(late) == ()


@shows("a stop without grace ends and signs off, also while a heartbeat gets no answer")
@pytest.mark.parametrize("last", [False, True], ids=["in progress", "the last one"])
async def test_a_heartbeat_without_an_answer_holds_no_hurried_stop(
    storage: Storage, clock: HandClock, last: bool
) -> None:
    stuck = Stuck(storage, last)
    async with App(storage=stuck, clock=clock) as app:

        @app.task(name="f")
        async def f() -> None: ...

        told = Told(app)
        worker = work(app, lease=0.03)
        await worker.start()
        await f.enqueue()
        await told.until("succeeded")
        stuck.armed = True
        if not last:
            await stuck.begun.wait()
        stopping = asyncio.create_task(worker.stop())
        await told.until("worker.stopping")
        await stuck.begun.wait()
        stopping.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([stopping])
        assert stopping.cancelled()
        assert [each.worker for each in await presences(stuck)] == [worker.name] * last
        assert (await app.metrics.totals("task"))["f"].succeeded == 1


async def test_a_late_save_of_a_step_lists_no_stopped_worker(late: Late, clock: HandClock) -> None:
    async with App(storage=late, clock=clock) as app:

        async def step() -> None:
            late.verb = "heartbeat"  # the lease is long: the next heartbeat stores the step

        @app.task(name="f")
        async def f() -> None:
            await current().step("a", step)

        worker = work(app, lease=600)
        await worker.start()
        await f.enqueue()
        await late.begun.wait()
        await worker.stop(0)
        await late.done()
        assert await presences(late) == ()


async def test_a_late_claim_of_the_lead_leaves_no_leader_behind(late: Late, clock: HandClock) -> None:
    async with App(storage=late, clock=clock) as app:
        await Candidate(late, "another", "auto").look()
        clock.advance(60)  # the lease of the other one has expired: the first claim gets the lead
        late.verb = "lead"
        worker = work(app, role="auto")
        await worker.start()
        await late.begun.wait()
        await worker.stop()
        await late.done()
        [row] = await late.get([ID])
        assert leader_of(row) is None
        assert worker.name not in [each.worker for each in await presences(late)]


async def test_a_late_store_of_metrics_undoes_no_later_one(
    late: Late, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.core.defaults.METRICS_EVERY", 0.01)
    async with App(storage=late, clock=clock) as app:

        @app.task(name="f")
        async def f() -> None: ...

        late.verb, told = "store_metrics", Told(app)
        async with work(app):
            await f.enqueue()
            await late.begun.wait()
            await f.enqueue()
            await told.until("succeeded", 2)
        await late.done()
        assert (await app.metrics.totals("task"))["f"].succeeded == 2


async def report_twice(url: str, late: Late, begun: Callable[[], Awaitable[object]]) -> None:
    """A runner reports two jobs, the second once the storage has begun to store the metrics of the first."""
    async with aiohttp.ClientSession() as session:
        call = Client(url, session)
        for n in range(2):
            await call("POST", "/v1/jobs", {"task": "f", "args": []})
            [row] = await claim(call, n + 1)
            late.verb = "store_metrics"
            assert await settle(call, row, succeed=7) == "applied"
            await begun()


async def test_a_late_store_of_a_runners_metrics_undoes_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.core.defaults.METRICS_EVERY", 0.01)
    late = Late(MemoryStorage())
    served = App(storage=late)
    url = host().add(served, Settings())
    await report_twice(url, late, lambda: asyncio.to_thread(host().run, late.begun.wait()))
    host().run(served.close())
    host().run(late.done())
    assert (await App(storage=late.storage).metrics.totals("task"))["f"].succeeded == 2


@shows("a key of `once` that is given back late is not taken from the next run of its job")
async def test_a_late_give_back_of_a_once_key_ends_no_later_lock(late: Late, clock: HandClock) -> None:
    async with App(storage=late, clock=clock) as app:
        told, firsts = Told(app), list[bool]()

        @app.task(name="f")
        async def f() -> None:
            async with current().once("a") as first:
                firsts.append(first)
                if late.verb:
                    return
                late.verb, late.after = "settle", "enqueue"
                raise ValueError

        await f.enqueue()
        worker = work(app)
        await worker.start()
        await late.begun.wait()
        await worker.stop(0)
        async with work(app):
            await told.until("succeeded")
            await late.done()
            await f.enqueue()
            await told.until("succeeded", 2)
        assert firsts == [True, True, False]


async def test_a_late_store_on_another_loop_undoes_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app is open on this loop, and its server runs on another one."""
    monkeypatch.setattr("treadle.core.defaults.METRICS_EVERY", 0.01)
    late = Late(MemoryStorage())
    served = App(storage=late)
    await served.open()
    url = await asyncio.to_thread(host().add, served, Settings())
    await report_twice(url, late, late.begun.wait)
    await served.close()
    await late.done()
    assert (await App(storage=late.storage).metrics.totals("task"))["f"].succeeded == 2


RUNNING = Record(job=NewJob(id="j", task="f"), version=0, state=State.RUNNING, started_at=1.0)
ENDED = Outcome(id="j", version=0, state=State.SUCCEEDED)


async def test_a_job_that_is_reported_while_the_app_closes_starts_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(storage=MemoryStorage())
    await app.open()
    metrics, stored = RunnerMetrics(app._core), JobMetrics.store

    async def store(counts: JobMetrics, storage: Storage) -> bool:
        metrics.settled(RUNNING, ENDED)
        return await stored(counts, storage)

    monkeypatch.setattr(JobMetrics, "store", store)
    metrics.settled(RUNNING, ENDED)
    await app.close()
    assert metrics._storing is None
    assert (await App(storage=app.storage).metrics.totals("task"))["f"].succeeded == 2


class Away(MemoryStorage):
    """Stores no metrics."""

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        raise StorageUnavailable("away")


async def test_the_task_that_stores_the_metrics_of_runners_ends_with_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.core.defaults.METRICS_EVERY", 0.01)
    app = App(storage=Away())
    await app.open()
    metrics = RunnerMetrics(app._core)
    await app.close()
    metrics.settled(RUNNING, ENDED)  # the answer of the storage came as it was closed
    assert metrics._storing is not None
    async with patient("the end of the task", 10):
        await metrics._storing
