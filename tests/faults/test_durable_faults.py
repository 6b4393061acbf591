"""Durable code when answers are lost, workers stall, and processes die: a step that was stored is never run again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Told, heartbeats
from tests.waiting import Signal
from treadle import App, Retry, State, Worker, current
from treadle.core.model import Claim, LeaseRenewal, Outcome, Presence
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle.worker.state import WorkerState
from treadle_testkit.faults import Fault, Faulty, before, bursts, lost, twice
from treadle_testkit.shows import shows

AT_ONCE = Retry(base=0.001, max=0.001)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["memory", "sqlite"])
def inner(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Storage:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    return connect(url, now=clock)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Sent after each run."""
    return Signal().after(monkeypatch, WorkerState, "end")


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Signal:
    return heartbeats(monkeypatch)


class Scene:
    """A job that takes steps, waits for a signal and wins a mark, and a record of what ran of it."""

    def __init__(self, storage: Storage, script: Any = ()) -> None:
        self.storage = Faulty(storage, script)
        self.app = App(storage=self.storage, random=lambda: 0.0)
        self.function_done: Counter[str] = Counter()
        self.task = self.app.task(name="order", retry=Retry(attempts=1))(self._order)

    async def do(self, what: str) -> str:
        self.function_done[what] += 1
        await asyncio.sleep(0)
        return what

    async def _order(self, n: int) -> list[Any]:
        here = current()
        found: list[Any] = [await here.step("a", self.do, f"a {n}")]
        found += await asyncio.gather(*(here.step("b", self.do, f"b{i} {n}") for i in range(2)))
        found.append(await here.wait_for("go", timeout=3600))
        async with here.once("only one") as first:
            if first:
                self.function_done["first"] += 1
        found.append(await here.step("c", self.do, f"c {n}"))
        return found

    def worker(self, concurrency: int = 4) -> Worker:
        return Worker(self.app, concurrency=concurrency, poll=0.01, recovery=AT_ONCE, grace=5)

    def right(self, results: list[list[Any]]) -> None:
        numbers = range(len(results))
        assert results == [[f"a {n}", f"b0 {n}", f"b1 {n}", n, f"c {n}"] for n in numbers]
        assert self.function_done == {f"{part} {n}": 1 for n in numbers for part in ("a", "b0", "b1", "c")} | {
            "first": 1
        }


async def patiently(call: Callable[[], Any]) -> Any:
    """Repeat a call until there is an answer, as a caller should."""
    while True:
        try:
            return await call()
        except ConnectionError:
            continue


@shows("each step of a durable job runs once when a storage call fails, loses its answer or is repeated")
@pytest.mark.parametrize("how", [before, lost, twice])
@pytest.mark.parametrize(("verb", "call"), [(v, n) for v in ("heartbeat", "settle_claim", "get") for n in range(1, 7)])
async def test_jobs_end_once_although_one_call_fails(
    inner: Storage, verb: str, call: int, how: Callable[..., list[Fault]]
) -> None:
    it = Scene(inner, how(verb, call))
    async with asyncio.timeout(30), it.app, it.worker():
        specs = [it.task.job(n) for n in range(3)]
        jobs = await patiently(lambda: it.app.enqueue(specs))
        for n, job in enumerate(jobs):
            await patiently(lambda job=job, n=n: it.app.jobs.signal(job, "go", n))  # type: ignore[misc]
        it.right([await patiently(lambda job=job: job.result()) for job in jobs])  # type: ignore[misc]


@shows("each step of a durable job runs once during bursts of storage errors")
@pytest.mark.parametrize("seed", range(8))
async def test_steps_run_once_during_bursts_of_errors(inner: Storage, seed: int) -> None:
    it = Scene(inner, bursts(seed, verbs=("heartbeat", "settle_claim", "get")))
    async with asyncio.timeout(30), it.app, it.worker(), it.worker():
        specs = [it.task.job(n) for n in range(6)]
        jobs = await patiently(lambda: it.app.enqueue(specs))
        for n, job in enumerate(jobs):
            await patiently(lambda job=job, n=n: it.app.jobs.signal(job, "go", n))  # type: ignore[misc]
        it.right([await patiently(lambda job=job: job.result()) for job in jobs])  # type: ignore[misc]


class Stalled(Faulty):
    """A worker's connection to the storage, on which nothing passes while `gate` is shut."""

    gate: asyncio.Event

    async def _call(self, verb: str, call: Callable[[], Any]) -> Any:
        await self.gate.wait()
        return await super()._call(verb, call)


@shows("a stalled worker whose job another one took over can store no step and no outcome")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_that_stalled_past_its_lease_is_refused(
    inner: Storage, clock: HandClock, kind: str, ends: Signal, beats: Signal
) -> None:
    """The first worker stalls in its step; another one runs the job; then the first continues, with another value."""
    stalled = Stalled(inner)
    stalled.gate = asyncio.Event()
    stalled.gate.set()
    apps = [App(storage=stalled, random=lambda: 0.0), App(storage=inner, random=lambda: 0.0)]
    began, go = asyncio.Event(), asyncio.Event()
    after: list[str] = []
    loop = asyncio.get_running_loop()

    async def mine() -> str:
        began.set()
        await go.wait()
        return "of the stalled one"

    def here() -> str:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return "of the stalled one"

    async def theirs() -> str:
        return "of the other one"

    async def slow() -> str:
        found = await current().step("a", mine)
        after.append(found)
        return found

    def slow_in_thread() -> str:
        found = current().sync.step("a", here)
        after.append(found)
        return found

    apps[0].task(name="t")(slow if kind == "async" else slow_in_thread)

    @apps[1].task(name="t")
    async def quick() -> str:
        return await current().step("a", theirs)

    async with asyncio.timeout(30), apps[0], apps[1]:
        first = Worker(apps[0], concurrency=1, poll=0.01, recovery=AT_ONCE, grace=5)
        await first.start()
        job = await quick.enqueue()
        await began.wait()
        await beats.until(lambda: beats.sent, "the first heartbeat, which passes the gate before the stall")
        stalled.gate.clear()
        clock.advance(60)
        assert await drain(apps[1]) == 1
        assert await job.result(0) == "of the other one"
        stalled.gate.set()
        go.set()
        await ends.until(lambda: not first.running, "the end of the first run")
        await first.stop()
        row = await apps[1].jobs.get(job)
    assert after == []  # the code after the step did not run twice
    assert (row.state, row.result) == (State.SUCCEEDED, '"of the other one"')
    assert "stalled" not in str(row.checkpoints)


async def test_a_step_that_was_not_stored_runs_again_and_one_that_was_does_not(
    inner: Storage, clock: HandClock
) -> None:
    """The storage confirms what the worker sent, or does not even get it, and the worker never sends anything again."""
    for stored in (False, True):
        ran: list[int] = []
        app = App(storage=inner, random=lambda: 0.0)

        async def count(ran: list[int] = ran) -> int:
            ran.append(1)
            return len(ran)

        @app.task(name="t")
        async def t(count: Any = count) -> int:
            return await current().step("a", count)

        async with app:
            job = await t.enqueue()
            [row] = (await inner.claim(Claim(worker="dead#1", ids=(job.id,)))).records
            if stored:
                checkpoints = (("a", '{"value":41}'),)
                await inner.heartbeat(
                    Presence(worker="dead"), [LeaseRenewal(job.id, row.version, checkpoints=checkpoints)], 30
                )
            clock.advance(31)
            assert await drain(app) == 1
            assert await job.result(0) == (41 if stored else 1)
            assert len(ran) == (not stored)


@pytest.mark.parametrize("why", ["timeout", "stop"])
async def test_the_value_of_a_step_is_stored_although_its_run_is_cancelled(inner: Storage, why: str) -> None:
    """The storage is unavailable when the step ends, and the run is cancelled before it returns."""
    gate = asyncio.Event()
    away = [False]

    def script(verb: str, call: int) -> Fault | None:
        return Fault("before", verb, call) if verb == "heartbeat" and away[0] else None

    app = App(storage=Faulty(inner, script), random=lambda: 0.0)
    told, ran = Told(app), Counter[str]()

    async def step() -> int:
        ran["step"] += 1
        away[0] = True
        gate.set()
        return ran["step"]

    @app.task(retry=Retry(attempts=3, base=0), timeout=0.05 if why == "timeout" else None)
    async def t() -> int:
        return await current().step("a", step)

    async with asyncio.timeout(30), app:
        worker = Worker(app, concurrency=1, poll=0.01, recovery=AT_ONCE, grace=0.01)
        await worker.start()
        job = await t.enqueue()
        await gate.wait()
        if why == "stop":
            await worker.stop()
            away[0] = False
            await drain(app)
        else:
            await told.until("retrying")
            away[0] = False
        assert await job.result() == 1
        await worker.stop()
    assert ran["step"] == 1


async def test_a_late_caller_does_not_get_the_mark_of_its_row(
    inner: Storage, clock: HandClock, ends: Signal, beats: Signal
) -> None:
    """A worker without its lease asks for the mark its job may still win: the error comes here, not afterwards."""
    app = App(storage=inner, random=lambda: 0.0)
    began, go, effects = asyncio.Event(), asyncio.Event(), list[bool]()

    @app.task(name="t")
    async def t() -> None:
        if not began.is_set():
            began.set()
            await go.wait()
        async with current().once("a") as first:
            effects.append(first)

    async with asyncio.timeout(30), app:
        stalled = Worker(app, concurrency=1, poll=60, lease=30)
        await stalled.start()
        job = await t.enqueue()
        await began.wait()
        await beats.until(lambda: beats.sent, "the first heartbeat")
        clock.advance(31)
        [row] = (await inner.claim(Claim(worker="other#1", ids=(job.id,)))).records
        go.set()
        await ends.until(lambda: not stalled.running, "the end of the stalled run")
        assert effects == []
        await stalled.stop()
        await inner.settle([Outcome(id=job.id, version=row.version, state=State.READY)])
        await drain(app)
        assert await job.result(0) is None
    assert effects == [True]


CRASHING = """
import asyncio, os, signal, sys
from treadle import App, Retry, Worker, current

url, ledger, point = sys.argv[1:4]
app = App(url)

def note(text):
    with open(ledger, "a") as out:
        out.write(text + "\\n")

def die(here):
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)

async def do(name):
    note(name)
    die("in " + name)
    return name

@app.task(name="t", max_lost=100)
async def t():
    here = current()
    die("begin")
    await here.step("one", do, "one")
    die("after one")
    await here.sleep(0.05)
    die("after sleep")
    answer = await here.wait_for("go")
    die("after signal")
    async with here.once("mark") as first:
        note(f"first {first}")
    die("after mark")
    await here.step("two", do, "two")
    die("after two")
    return answer

async def main():
    async with Worker(app, lease=0.3, poll=0.05):
        job = await t.options(id="the-job").enqueue()
        print(await job.result(timeout=30))

asyncio.run(main())
"""

POINTS = ["begin", "in one", "after one", "after sleep", "after signal", "after mark", "in two", "after two"]


@pytest.mark.slow
@shows("a durable job that is killed repeats only the step that was running")
@pytest.mark.skipif(sys.platform == "win32", reason="kills its worker by SIGKILL")
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_durable_job_repeats_only_the_running_step(tmp_path: Path, point: str) -> None:
    url, ledger = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "ledger"
    program = tmp_path / "program.py"
    program.write_text(CRASHING)

    async def run(point: str) -> tuple[int, str]:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(program),
            url,
            str(ledger),
            point,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        out, _ = await child.communicate()
        return child.returncode or 0, out.decode().strip()

    async with asyncio.timeout(60):
        app = App(url)
        app.task(name="t")(_nothing)
        async with app:
            await app.find_task("t").options(id="the-job").enqueue()
            await app.jobs.signal("the-job", "go", "went")
        assert (await run(point))[0] == -signal.SIGKILL
        assert await run("nowhere") == (0, "went")
    done = Counter(ledger.read_text().splitlines())
    assert done["one"] == (2 if point == "in one" else 1)
    assert done["two"] == (2 if point == "in two" else 1)
    assert set(done) == {"one", "two", "first True"}  # the mark still belongs to the same job


async def _nothing() -> None: ...
