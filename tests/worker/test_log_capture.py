"""`capture_logs`: the log lines of a run are a stream of its job, wherever it runs, and only its own."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.kit import Spy, Told, work
from tests.worker.process_tasks import app as process_app
from tests.worker.process_tasks import logged
from treadle import App, BadOption, Retry, Worker, current
from treadle.core.model import Claim, HeartbeatResult, Presence, Record
from treadle.execution.job_run import JobRun
from treadle.policy import run_log
from treadle.testing import HandClock
from treadle.worker import run_logs
from treadle.worker.executor import NO_RULES
from treadle.worker.log_capture import LogCapture
from treadle.worker.running_job import RunningJob
from treadle.workflow.streams import page_id
from treadle_testkit.shows import shows

log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def levels() -> None:
    log.setLevel(logging.DEBUG)


async def lines(app: App, job: Any) -> list[list[tuple[str, str]]]:
    """The lines of each attempt."""
    found: dict[int, list[tuple[str, str]]] = {}
    for line in await app.jobs.stream(job, "log"):
        found.setdefault(line["run"], []).append((line["level"], line["text"]))
    return list(found.values())


@shows("with `capture_logs` the log lines of a job are a stream, `log`, with the number of the attempt in each line")
async def test_lines_of_coroutines_and_threads_are_kept_by_attempt(app: App) -> None:
    @app.task(name="f", retry=Retry(attempts=2, base=0.0))
    async def f(n: int) -> None:
        log.info("begins %s", n)
        await asyncio.to_thread(log.warning, "in a thread %s", n)
        log.debug("too low")
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed %s", n)
            raise

    @app.task(name="g")
    def g() -> None:
        log.error("plain function")

    jobs = await app.enqueue([f.job(1), f.job(2), g.job()])
    async with work(app, capture_logs="info"):
        for job in jobs:
            await job.ended(timeout=10)
    log.error("outside")
    for n, job in enumerate(jobs[:2], 1):
        for found in await lines(app, job):
            assert found[:2] == [("info", f"begins {n}"), ("warning", f"in a thread {n}")]
            assert found[2][0] == "error"
            assert found[2][1].startswith(f"failed {n}\nTraceback")
            assert len(found) == 3
    assert await lines(app, jobs[2]) == [[("error", "plain function")]]
    [line] = await app.jobs.stream(jobs[2], "log")
    assert (line["logger"], line["run"]) == ("shop", 1)
    assert await app.jobs.streams(jobs[2]) == ["log"]


async def test_without_capture_logs_no_line_is_kept(app: App) -> None:
    @app.task(name="f")
    async def f() -> None:
        log.error("lost")

    handlers = list(logging.getLogger().handlers)
    job = await f.enqueue()
    async with work(app):
        await job.ended(timeout=10)
        assert logging.getLogger().handlers == handlers
    assert (await app.jobs.get(job)).checkpoints == ()
    async with work(app, capture_logs=logging.INFO):
        assert logging.getLogger().handlers != handlers
    assert logging.getLogger().handlers == handlers


async def test_many_lines_are_kept_in_pages(app: App) -> None:
    @app.task(name="f")
    async def f() -> None:
        for n in range(1_000):
            log.info("%04d %s", n, "x" * 95)
        log.info("y" * 100_000)

    job = await f.enqueue()
    async with work(app, capture_logs="info"):
        await job.ended(timeout=10)
    [found] = await lines(app, job)
    assert [text[:4] for _, text in found[:-1]] == [f"{n:04d}" for n in range(1_000)]
    assert found[-1][1] == "y" * (run_log.LINE - 3) + "..."
    assert [row async for row in app.jobs.iterate(state="ready")] == []  # no page is open


async def test_pages_are_kept_as_long_as_the_row_of_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "LAG", 0.0)

    @app.task(name="f", keep=3_600, keep_failed=7_200, retry=Retry(attempts=1))
    async def f(fails: bool) -> None:
        for n in range(2):
            log.info("%s", n)
            await anext(app.jobs.follow(current().id, "log", start=n))
        if fails:
            raise ValueError("no")

    jobs = await app.enqueue([f.job(False), f.job(True)])
    async with work(app, capture_logs="info"):
        for job in jobs:
            await job.ended(timeout=30)
    for job, keep in zip(jobs, (3_600, 7_200), strict=True):
        pages = await app.storage.get([page_id(job.id, "log", number) for number in (1, 2)])
        assert [row and row.expires_at and row.ended_at and row.expires_at - row.ended_at for row in pages] == [
            pytest.approx(keep)
        ] * 2


async def test_lines_that_come_too_fast_are_counted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "HELD", 4_000)

    @app.task(name="f")
    async def f() -> None:
        for n in range(100):
            log.info("%d", n)

    job = await f.enqueue()
    async with work(app, capture_logs="info"):
        await job.ended(timeout=10)
    [found] = await lines(app, job)
    kept = len(found) - 1
    assert found[0][1] == f"{100 - kept} lines before this one were not kept: they came faster than they were stored"
    assert [text for _, text in found[1:]] == [str(n) for n in range(100 - kept, 100)]


async def test_a_short_run_takes_no_call_of_the_storage_more(app: App, spy: Spy) -> None:
    @app.task(name="f")
    async def f() -> None:
        log.info("short")

    job = await f.enqueue()
    async with work(app, capture_logs="info"):
        await job.ended(timeout=10)
    assert spy.calls["enqueue"] == 1
    assert await lines(app, job) == [[("info", "short")]]


class Talk:
    """A job that logs, and reads its own log before each next line."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_logs, "LAG", 0.0)
        self.app, self.seen = app, list[list[str]]()
        self.ended = 0

        @app.task(name="talk", retry=Retry(attempts=3, base=0.0))
        async def talk(times: int) -> None:
            begun = [line["text"] for line in await app.jobs.stream(current().id, "log")]
            following = app.jobs.follow(current().id, "log", start=len(begun))
            for n in range(times):
                log.info("%s.%s", current().attempt, n)
                self.seen.append([(await anext(following)).value["text"]])
            await following.aclose()
            log.info("%s.end", current().attempt)
            if current().attempt < 3:
                raise ValueError("again")

        self.talk = talk


@shows("log lines are read while the job runs; attempts follow each other, and each line says its run")
async def test_lines_are_read_while_the_job_runs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(app, monkeypatch)
    job = await talk.talk.enqueue(3)
    async with work(app, capture_logs="info"):
        await job.ended(timeout=30)
    assert talk.seen == [[f"{attempt}.{n}"] for attempt in (1, 2, 3) for n in range(3)]
    expected = [(attempt, f"{attempt}.{n}") for attempt in (1, 2, 3) for n in (0, 1, 2, "end")]
    assert [(line["run"], line["text"]) for line in await app.jobs.stream(job, "log")] == expected
    followed = [entry async for entry in app.jobs.follow(job, "log", start=2)]
    assert [(entry.offset, entry.value["text"]) for entry in followed] == [
        (offset, text) for offset, (_, text) in enumerate(expected) if offset >= 2
    ]


async def test_lines_of_a_process_are_kept() -> None:
    async with process_app:
        job = await logged.enqueue()
        async with work(process_app, capture_logs="info"):
            await job.ended(timeout=60)
        assert await lines(process_app, job) == [[("info", "in a process")]]


@pytest.mark.parametrize("wrong", ["loud", 0, 99, True, 3.5])
def test_an_invalid_level_is_refused(wrong: object) -> None:
    with pytest.raises(BadOption, match="capture_logs"):
        Worker(App("memory://"), capture_logs=wrong)  # type: ignore[arg-type]


class DeadRun:
    """A run of a job whose worker dies, or stalls: it holds the job until its lease has expired."""

    @classmethod
    async def begun(cls, app: App, id: str) -> DeadRun:
        claim = Claim(worker="dead#0", ids=(id,), limit=1, lease=30.0)
        [row] = (await app.storage.claim(claim)).records
        return cls(app, row)

    def __init__(self, app: App, row: Record) -> None:
        self.storage, self.loop = app.storage, asyncio.get_running_loop()
        task = app._core.tasks[row.job.task]
        self.run = RunningJob(row, task, JobRun(row, "dead", lambda: None), NO_RULES, 30.0)
        run_logs.RunLogs(LogCapture(logging.INFO), self, self.storage, self).begin(self.run)  # type: ignore[arg-type]

    async def says(self, *texts: str) -> None:
        """Log these lines, and store them in pages."""
        run_log = self.run.job_run.log
        assert run_log is not None
        for text in texts:
            run_log.add(0.0, "info", "shop", text)
        assert isinstance(run_log.reader, run_logs.LogWriter)
        await run_log.reader.flush()

    async def send(self, renewals: Any, lease: float) -> HeartbeatResult:
        return await self.storage.heartbeat(Presence(worker="dead"), renewals, lease)

    def lease_of(self, run: RunningJob) -> float:
        return run.lease


@shows(
    "the log of a job is complete and in order after a worker that wrote it has died, and a stalled one adds nothing"
)
@pytest.mark.parametrize("many", [False, True])
async def test_a_log_after_a_dead_worker(app: App, clock: HandClock, told: Told, many: bool) -> None:
    @app.task(name="f", retry=Retry(attempts=3, base=60.0, jitter=0))
    async def f() -> None:
        for n in range(300 if many else 1):
            log.info("%d.%d %s", current().attempt, n, "x" * (100 if many else 0))
        if current().attempt < 2:
            raise ValueError("again")

    job = await f.enqueue()
    async with work(app, capture_logs="info"):
        await told.until("retrying")
    clock.advance(61)
    dead = await DeadRun.begun(app, job.id)
    await dead.says("dead 1")  # it moves the lines that the row has into a page
    await dead.says("dead 2")
    clock.advance(31)
    following = app.jobs.follow(job, "log")
    async with work(app, capture_logs="info"):
        await job.ended(timeout=30)
    await dead.says("late")
    texts = [line["text"].split()[0] for line in await app.jobs.stream(job, "log")]
    number = 300 if many else 1
    first, second = ([f"{attempt}.{n}" for n in range(number)] for attempt in (1, 2))
    assert texts == [*first, "dead", "dead", *second]
    assert [(entry.offset, entry.value["text"].split()[0]) async for entry in following] == list(enumerate(texts))
