"""A worker that is stopped: by a deadline, by one of its own jobs, from another loop, with its event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, Literal

import pytest

from tests.kit import Spy, nothing_left
from tests.waiting import Signal
from treadle import App, Retry, Worker
from treadle.core.model import Claim, Record, State
from treadle.policy.guilt import guilt_of, is_suspect
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle.worker import session
from treadle_testkit.faults import Fault, Faulty
from treadle_testkit.shows import shows


async def test_a_stop_that_is_cancelled_leaves_nothing_running(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    worker = Worker(app, grace=60)
    await worker.start()
    job = await forever.enqueue()
    await begun.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.stop(), 0.01)
    await nothing_left(before)
    assert worker.running == []
    assert (await app.jobs.get(job)).state is State.READY  # released: another worker need not wait for its lease
    await worker.stop()
    await worker.start()
    await worker.stop(0)


async def test_a_job_that_stops_its_own_worker(app: App) -> None:
    @app.task
    async def shut_down() -> str:
        await worker.stop()
        return "stopped"

    @app.task
    def shut_down_in_a_thread() -> str:
        app.sync.call(worker.stop())
        return "stopped"

    before = asyncio.all_tasks()
    for task in (shut_down, shut_down_in_a_thread):
        worker = Worker(app, grace=60)
        await worker.start()
        job = await task.enqueue()
        assert await job.result(30) == "stopped"
        await worker.stop()
        await nothing_left(before)


async def test_a_run_that_is_cancelled_stops(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    running = asyncio.create_task(Worker(app, grace=60).run())
    job = await forever.enqueue()
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await nothing_left(before)
    assert (await app.jobs.get(job)).state is State.READY


async def test_a_stop_from_another_loop(app: App) -> None:
    @app.task
    async def t() -> None: ...

    worker = Worker(app)
    await worker.start()
    stopper = threading.Thread(target=lambda: asyncio.run(worker.stop()))
    stopper.start()
    await asyncio.to_thread(stopper.join, 30)
    assert not stopper.is_alive()
    await worker.start()
    await worker.stop()


@shows("an idle worker stops within seconds while its storage is unavailable, whatever its grace is")
@pytest.mark.parametrize("how", ["before", "lost"])
async def test_an_idle_worker_stops_during_an_outage(how: Literal["before", "lost"]) -> None:
    is_away, failed = False, Signal()

    def fault(verb: str, call: int) -> Fault | None:
        if is_away:
            failed.send()
            return Fault(how, verb, call)
        return None

    app = App(storage=Faulty(MemoryStorage(), fault))

    @app.task
    async def t() -> None: ...

    worker = Worker(app, grace=3600, poll=0.01)
    await worker.start()
    await (await t.enqueue()).result(30)
    is_away = True
    await failed.until(lambda: worker.health().storage_away is not None, "the outage")
    await worker.stop()  # it waited for grace and lease
    is_away = False
    await app.close()


@shows("an idle worker stops within seconds while no call of its storage returns, whatever its grace is")
async def test_an_idle_worker_stops_while_its_storage_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as behind a firewall that drops packets: no call fails, so there is no outage."""
    monkeypatch.setattr(session, "LOOK", 0.01)
    monkeypatch.setattr(session, "HURRY", 0.01)
    hangs, answers, held, verbs = False, asyncio.Event(), Signal(), set[str]()

    def fault(verb: str, call: int) -> Fault | None:
        if not hangs:
            return None
        verbs.add(verb)
        held.send()
        return Fault("held", verb, call, answers)

    app = App(storage=Faulty(MemoryStorage(), fault, fused=False))

    @app.task
    async def t() -> None: ...

    worker = Worker(app, grace=3600, lease=0.1, poll=0.01)
    await worker.start()
    await (await t.enqueue()).result(30)
    hangs = True
    await held.until(lambda: {"claim", "heartbeat"} <= verbs, "calls that hang")
    assert worker.health().storage_away is None
    await worker.stop()  # it waited for grace and lease, and to sign off for ever
    assert worker.running == []
    answers.set()
    await app.close()


async def test_jobs_of_a_lost_claim_are_released_by_a_stop_after_the_outage() -> None:
    """The dispatcher that pauses after a failed call tries again at once when the worker stops."""
    is_away, failed = True, Signal()

    def fault(verb: str, call: int) -> Fault | None:
        if is_away and verb in ("claim", "settle_claim"):
            failed.send()
            return Fault("lost", verb, call)
        return None

    app = App(storage=Faulty(MemoryStorage(), fault))

    @app.task
    async def t() -> None: ...

    async with app:
        job = await t.enqueue()
        worker = Worker(app, grace=3600, recovery=Retry(base=3600.0))
        await worker.start()
        await failed.until(lambda: worker.health().storage_away is not None, "the outage")
        is_away = False
        await worker.stop()
        assert (await app.jobs.get(job)).state is State.READY


KINDS = ("async", "thread", "batch")


class Stubborn:
    """A task of each kind whose function does not end when its worker stops."""

    def __init__(self, app: App, kind: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

        async def in_loop() -> None:
            self.begun.set()
            while not self.go.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.to_thread(self.go.wait)

        def in_thread() -> None:
            self.begun.set()
            self.go.wait()

        def in_batch(numbers: list[int]) -> list[None]:
            in_thread()
            return [None for _ in numbers]

        self.task: Any
        if kind == "batch":
            self.task = app.batch(size=1, max_wait=0)(in_batch)
        else:
            self.task = app.task(in_loop if kind == "async" else in_thread)
        self._arguments = (1,) if kind == "batch" else ()

    async def start(self) -> str:
        job = await self.task.enqueue(*self._arguments)
        await asyncio.to_thread(self.begun.wait, 30)
        return str(job.id)


async def row_of(app: App, id: str) -> Record:
    [row] = await app.storage.get([id])
    assert row is not None
    return row


@shows("a deliberate stop never counts against a job, also if its worker is killed before the job has ended")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_lease_that_is_lost_during_a_stop_makes_no_suspect(
    app: App, spy: Spy, clock: HandClock, kind: str
) -> None:
    stubborn = Stubborn(app, kind)
    worker = Worker(app, grace=3600, lease=30)
    await worker.start()
    id = await stubborn.start()
    stopping = asyncio.create_task(worker.stop())

    async def noted() -> bool:
        return guilt_of(await row_of(app, id)).kind == "stopping"

    await spy.until(noted, "the note of the stop")
    try:
        # As if the process were killed now.
        clock.advance(31)
        [row] = (await app.storage.claim(Claim(worker="next#1"))).records
        assert (row.lost, row.attempt) == (1, 0)
        assert not is_suspect(row)
    finally:
        stubborn.go.set()
        await stopping


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exits", [True, False])
async def test_the_last_act_of_a_process_that_exits_is_a_release(
    app: App, clock: HandClock, kind: str, exits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In a program the thread may go on for hours."""
    stubborn = Stubborn(app, kind)
    worker = Worker(app, lease=30)
    worker._core.exits = exits
    await worker.start()
    id = await stubborn.start()
    clock.advance(10)
    try:
        await worker.stop(0)
        row = await row_of(app, id)
        state, wait = (State.READY, 2.0) if exits else (State.RUNNING, 30.0)
        assert (row.state, row.due_at) == (state, clock() + wait)
        when = "this process is gone" if exits else "their leases have expired"
        assert f"they are queued again, uncounted, when {when}" in caplog.text
        clock.advance(wait + 1)
        [row] = (await app.storage.claim(Claim(worker="next#1"))).records
        assert row.lost == (not exits)
        assert not is_suspect(row)
    finally:
        stubborn.go.set()


async def test_a_job_that_a_stop_releases_has_no_note_of_the_stop(app: App, spy: Spy) -> None:
    """Otherwise the next worker that it kills would not count."""

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    begun = asyncio.Event()
    worker = Worker(app, grace=0.2)
    await worker.start()
    job = await endless.enqueue()
    await begun.wait()
    await worker.stop()
    row = await row_of(app, job.id)
    assert (row.state, row.lost, guilt_of(row).kind) == (State.READY, 0, None)
