"""Law 10 for the engine: whichever call fails or loses its answer, every job ends once, with its result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.waiting import Signal
from treadle import App, Event, Job, JobSpec, Record, Retry, State, StorageUnavailable, Worker
from treadle.core.model import Claim, Claimed, NewJob, Outcome
from treadle.execution.job_run import JobRun
from treadle.policy import judge
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.lost_job_reports import LostReporter
from treadle.worker.running_job import RunningJob
from treadle.worker.state import WorkerState
from treadle_testkit.faults import Fault, Faulty, Script, before, bursts, held, lost, twice
from treadle_testkit.shows import shows

AT_ONCE = Retry(base=0.001, max=0.001)
LEASE = 0.03  # seconds; a heartbeat every 10 ms, and the clock is moved by hand, so no lease ever expires by itself
OUTAGE = ("worker.error", "worker.recovered")

FUSED = {True: ("enqueue", "heartbeat", "settle_claim"), False: ("enqueue", "claim", "heartbeat", "settle")}
PLACES = [(fused, verb, call) for fused, verbs in FUSED.items() for verb in verbs for call in range(1, 5)]


@pytest.fixture(params=["memory", "sqlite"])
async def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    return connect(url, now=HandClock())


class Scene:
    """An app on a storage that fails, tasks that count their runs, and the emitted events."""

    def __init__(self, storage: Storage, script: Any = (), *, fused: bool = True, kind: type[Faulty] = Faulty) -> None:
        self.storage = kind(storage, script, fused=fused)
        self.app = App(storage=self.storage, random=lambda: 0.0)
        self.runs: Counter[int] = Counter()
        self.told: list[Event] = []
        self.beats = 0  # the number of heartbeats that `patient` waits for
        self.app.on("*")(self.told.append)
        self.double = self.app.task(name="double")(self._double)
        self.thread = self.app.task(name="thread")(self._in_thread)
        self.flaky = self.app.task(name="flaky", retry=Retry(attempts=3, base=0))(self._flaky)
        self.fails = self.app.task(name="fails", retry=Retry(attempts=2, base=0))(self._fails)
        self.patient = self.app.task(name="patient")(self._patient)
        self.wanted: dict[str, tuple[State, int, str | None]] = {}

    async def _double(self, n: int) -> int:
        self.runs[n] += 1
        await asyncio.sleep(0)
        return 2 * n

    def _in_thread(self, n: int) -> int:
        self.runs[n] += 1
        return 2 * n

    async def _flaky(self, n: int) -> int:
        self.runs[n] += 1
        if self.runs[n] < 3:
            raise ValueError("not yet")
        return 2 * n

    async def _fails(self, n: int) -> int:
        self.runs[n] += 1
        raise ValueError("never")

    async def _patient(self, n: int) -> int:
        self.runs[n] += 1
        await self.storage.reached("heartbeat", self.beats)
        return 2 * n

    def specs(self, count: int) -> list[JobSpec[int]]:
        made = []
        for n in range(count):
            task, state, attempts = [
                (self.double, State.SUCCEEDED, 1),
                (self.thread, State.SUCCEEDED, 1),
                (self.flaky, State.SUCCEEDED, 3),
                (self.fails, State.FAILED, 2),
            ][n % 4]
            made.append(task.job(n))
            self.wanted[made[-1].id] = state, attempts, str(2 * n) if state is State.SUCCEEDED else None
        return made

    async def sent(self, *specs: JobSpec[int]) -> list[Job[int, int]]:
        """Enqueue as a caller should: the same specs again until there is an answer."""
        while True:
            try:
                return await self.app.enqueue(list(specs))
            except StorageUnavailable:
                continue

    def worker(self, concurrency: int = 2, **options: Any) -> Worker:
        return Worker(self.app, concurrency=concurrency, **{"poll": 0.01, "recovery": AT_ONCE, "grace": 5, **options})

    def names(self, name: str) -> list[Event]:
        return [event for event in self.told if event.name == name]

    def right(self, rows: list[Record]) -> None:
        """Every job ended as it must, with no more runs than its attempts allow."""
        found = {row.id: (row.state, row.attempt, row.result) for row in rows}
        assert found == self.wanted
        assert {row.id: row.lost for row in rows if row.lost} == {}
        assert [self.runs[n] for n in range(len(rows))] == [row.attempt for row in rows]


Make = Callable[..., Scene]


@pytest.fixture
async def scene(inner: Storage) -> AsyncIterator[Make]:
    made: list[Scene] = []

    def make(script: Any = (), *, fused: bool = True) -> Scene:
        made.append(Scene(inner, script, fused=fused))
        return made[-1]

    yield make
    for each in made:
        await each.app.close()


@shows("each job ends once, with its result, when a storage call fails, loses its answer or is repeated")
@pytest.mark.parametrize("how", [before, lost, twice])
@pytest.mark.parametrize(("fused", "verb", "call"), PLACES)
async def test_jobs_end_once_although_one_call_fails(
    scene: Make, fused: bool, verb: str, call: int, how: Callable[..., list[Fault]]
) -> None:
    it = scene(how(verb, call), fused=fused)
    it.beats = 5
    async with asyncio.timeout(30), it.app, it.worker(lease=LEASE) as worker:
        specs = it.specs(16)
        jobs = [job for at in range(0, 16, 4) for job in await it.sent(*specs[at : at + 4])]
        [patient] = await it.sent(it.patient.job(99))
        rows = [await job.ended() for job in jobs]
        assert await patient.result() == 198
        assert worker._core.session is not None
        assert [task for task in (*worker._core.session.loops, *worker._core.session.side_loops) if task.done()] == []
    it.right(rows)
    assert it.runs[99] == 1
    assert len(it.storage.faults) == 1
    told = it.names("worker.error")
    assert len(told) == (0 if verb == "enqueue" or how is twice else 1)
    assert it.names("lost") == []


@shows("each job ends once, with its result, during bursts of storage errors")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("workers", "slots"), [(1, 1), (1, 5), (2, 5)])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
async def test_jobs_end_once_during_bursts_of_errors(
    scene: Make, seed: int, workers: int, slots: int, fused: bool
) -> None:
    it = scene(bursts(seed), fused=fused)
    async with asyncio.timeout(30), it.app:
        crew = [it.worker(slots) for _ in range(workers)]
        for each in crew:
            await each.start()
        jobs = [job for spec in it.specs(20) for job in await it.sent(spec)]
        rows = [await job.ended() for job in jobs]
        await asyncio.gather(*(each.stop() for each in crew))
    it.right(rows)
    assert len(it.storage.faults) > 5


async def test_an_outage_of_many_calls_is_reported_once(scene: Make) -> None:
    it = scene([*before("settle_claim", 1, 2, 3), *before("heartbeat", 1, 2, 3)])
    async with asyncio.timeout(30), it.app, it.worker(lease=LEASE):
        jobs = await it.sent(*it.specs(4))
        rows = [await job.ended() for job in jobs]
        await it.storage.reached("heartbeat", 5)
    it.right(rows)
    assert [event.name for event in it.told if event.name in OUTAGE] == ["worker.error", "worker.recovered"]


async def test_an_outage_of_heartbeats_alone_is_reported_once(scene: Make) -> None:
    it = scene(before("heartbeat", 2, 3, 4, 5))
    async with asyncio.timeout(30), it.app, it.worker(lease=LEASE):
        await it.storage.reached("heartbeat", 7)
    assert [event.name for event in it.told if event.name in OUTAGE] == ["worker.error", "worker.recovered"]


@pytest.mark.parametrize("fused", [True, False])
async def test_a_claim_whose_answer_is_lost_while_the_worker_stops(scene: Make, fused: bool) -> None:
    it = scene(lost("settle_claim" if fused else "claim", 1), fused=fused)
    away = asyncio.Event()
    it.app.on("worker.error")(lambda _: away.set())
    async with asyncio.timeout(30), it.app:
        jobs = await it.sent(*it.specs(4))
        worker = it.worker(1, recovery=Retry(base=0.05, max=0.05, jitter=0))
        await worker.start()
        await away.wait()
        await worker.stop()
        rows = [await it.app.jobs.get(job) for job in jobs]
        assert {(row.state, row.attempt, row.lost) for row in rows} == {(State.READY, 0, 0)}


@pytest.mark.parametrize("fused", [True, False])
async def test_a_claim_that_is_answered_while_the_worker_stops(scene: Make, fused: bool) -> None:
    gate = asyncio.Event()
    verb = "settle_claim" if fused else "claim"
    it = scene(held(verb, 1, gate), fused=fused)
    async with asyncio.timeout(30), it.app:
        jobs = await it.sent(*it.specs(4))
        worker = it.worker(1)
        await worker.start()
        await it.storage.reached(verb, 1)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        gate.set()
        await stopping
        rows = [await it.app.jobs.get(job) for job in jobs]
    assert {row.lost for row in rows} == {0}
    assert State.RUNNING not in {row.state for row in rows}


class SecondClaimAway(Faulty):
    """Claims of the second dispatcher fail; the running jobs that each of them names are recorded."""

    def __init__(self, storage: Storage, script: Any = (), *, fused: bool = True) -> None:
        super().__init__(storage, script, fused=fused)
        self.first: str | None = None
        self.asked: list[tuple[str, ...]] = []
        self.again, self.more = asyncio.Event(), Signal()

    async def claim(self, ask: Claim) -> Claimed:
        self.first = self.first or ask.worker
        if ask.worker == self.first or self.again.is_set():
            return await super().claim(ask)
        self.asked.append(ask.running)
        self.more.send()
        raise StorageUnavailable("the second one is not answered")


async def test_a_repeated_claim_returns_the_jobs_held_by_then(inner: Storage) -> None:
    it = Scene(inner, kind=SecondClaimAway, fused=False)
    away = it.storage
    assert isinstance(away, SecondClaimAway)
    it.beats = 1_000_000
    async with asyncio.timeout(30), it.app:
        job = await it.patient.enqueue(7)
        async with it.worker(2):
            await away.more.until(lambda: away.asked and job.id in away.asked[-1], "a claim that names the job")
            away.again.set()
            await it.app.jobs.cancel(job)


async def test_an_older_run_of_a_job_does_not_cost_the_newer_one_its_lease(inner: Storage) -> None:
    """The answer to the settle of the first run is lost, and the same worker claims the job again: a heartbeat renews
    it once."""
    it = Scene(inner)
    slots = WorkerState("w", 2)
    row = Record(job=NewJob(id="x", task="double"), version=1, state=State.RUNNING)
    older, newer = (_run(it, row, version) for version in (1, 3))
    slots.unconfirmed.sent[0] = [(older, Outcome(id="x", version=1, state=State.READY))]
    older.ended = True
    slots.begin(newer, asyncio.sleep(0))
    async with it.app:
        spec = it.double.job(7).changed(id="x")
        await it.app.enqueue(spec)
        for _ in range(2):
            [claimed] = (await inner.claim(Claim(worker="w#1", limit=1))).records
            if claimed.version == 1:
                await inner.settle([Outcome(id="x", version=1, state=State.READY)])
        assert claimed.version == newer.record.version
        lost = LostReporter(inner, it.app._core.emitter, "w", lambda: None)
        await Heartbeat(slots, inner, lost, ["default"], 30.0).once()
    assert newer.job_run.why is None


def _run(it: Scene, row: Record, version: int) -> RunningJob:
    record = replace(row, version=version)
    rules = judge.rules_for(record, it.double._core.retry, None, 3)
    return RunningJob(record, it.double._core, JobRun(record, "w", lambda: None), rules, 0.0)


async def test_an_inline_claim_whose_answer_is_lost(scene: Make) -> None:
    it = scene(lost("claim", 1))
    async with asyncio.timeout(30), it.app:
        job = await it.double.options(inline=True).enqueue(7)
        row = await job.ended()
    assert (row.result, row.lost, it.runs[7]) == ("14", 0, 1)


async def test_an_inline_claim_that_is_repeated_while_the_app_closes(scene: Make, inner: Storage) -> None:
    it = scene(lost("claim", 1))
    async with asyncio.timeout(30), it.app:
        job = await it.double.options(inline=True).enqueue(7)
    await inner.open()
    [row] = await inner.get([job.id])
    assert row is not None
    assert (row.state, row.attempt, row.lost) == (State.READY, 0, 0)
    await inner.close()


async def test_an_outcome_that_cannot_be_settled_keeps_its_lease(inner: Storage) -> None:
    away, refused = True, asyncio.Event()

    def script(verb: str, call: int) -> Fault | None:
        if not (away and verb in ("settle", "settle_claim") and it.runs[7]):
            return None
        refused.set()
        return Fault("before", verb, call)

    asked: Script = script
    it = Scene(inner, asked)
    clock = inner._now  # type: ignore[attr-defined]
    async with asyncio.timeout(30), it.app, it.worker(1, lease=LEASE), it.worker(1, lease=LEASE):
        job = await it.double.enqueue(7)
        await refused.wait()
        for _ in range(6):
            clock.advance(LEASE / 2)
            await it.storage.reached("heartbeat", it.storage.calls["heartbeat"] + 3)
        away = False
        row = await job.ended()
    assert (row.result, row.lost, it.runs[7]) == ("14", 0, 1)


@pytest.mark.parametrize("verb", ["watch", "prune"])
async def test_a_side_loop_that_fails_recovers_at_once(scene: Make, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for its next regular turn, half a minute later."""
    monkeypatch.setattr("treadle.core.defaults.PRUNE_EVERY", 0.001)
    it = scene(before(verb, 1, 2))
    over = asyncio.Event()
    it.app.on("worker.recovered")(lambda _: over.set())
    async with asyncio.timeout(30), it.app, it.worker():
        await it.storage.reached(verb, 1)
        monkeypatch.setattr("treadle.core.defaults.PRUNE_EVERY", 60.0)
        await over.wait()
    assert [event.name for event in it.told if event.name in OUTAGE] == ["worker.error", "worker.recovered"]
