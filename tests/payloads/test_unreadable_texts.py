"""A job whose texts no worker can read ends, and does not keep workers from other jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import KINDS, a_storage
from tests.served import host
from treadle import App, BadOption, Keys, Retry, Worker, current, flow
from treadle.core.model import NewJob, State
from treadle.core.rare_log import CAUSES, RareLog
from treadle.policy import unread
from treadle.server import Settings
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, drain
from treadle.testing.drain import Endless
from treadle_testkit.shows import shows

SEALED = '{"$t":"sealed","key":"zz","text":"AAAA"}'
BLOB = '{"$t":"blob","sha256":"' + "0" * 64 + '","bytes":5}'
HOUR = 3_600.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Iterator[Storage]:
    with a_storage(request.param, tmp_path, clock) as storage:
        yield storage


def an_app(storage: Storage, clock: HandClock, **options: Any) -> App:
    app = App(storage=storage, clock=clock, **options)

    @app.task(name="t")
    async def t(number: int = 0) -> int:
        return number

    @app.task(name="once", retry=Retry(attempts=2, base=60.0, jitter=0.0))
    async def once(number: int) -> int:
        if current().attempt == 1:
            raise ValueError("the first attempt fails")
        return number

    @app.task(name="up")
    async def up() -> Any:
        return flow([t.job(1), t.job(2)])

    return app


async def row(app: App, id: str) -> Any:
    [found] = await app.storage.get([id])
    assert found is not None
    return found


@shows("a job whose arguments no worker can read fails after a day, with the reason")
@pytest.mark.parametrize(("payload", "why"), [(SEALED, "encrypted with the key 'zz'"), (BLOB, "in a blob store")])
async def test_an_unreadable_job_fails_after_a_day(storage: Storage, clock: HandClock, payload: str, why: str) -> None:
    app = an_app(storage, clock)
    async with app:
        await storage.enqueue([NewJob(id="closed", task="t", payload=payload)])
        began, waits = clock(), list[float]()
        await drain(app)
        while (found := await row(app, "closed")).state is State.READY:
            assert (found.attempt, found.lost) == (0, 0)
            assert "could not read its texts" in await app.jobs.explain("closed") or "key or the blob store" in (
                await app.jobs.explain("closed")
            )
            waits.append(found.due_at - clock())
            clock.advance(waits[-1] + 0.001)
            await drain(app)
        assert waits[:12] == pytest.approx([min(5.0 * 2**times, HOUR) for times in range(12)], abs=0.01)
        assert clock() - began == pytest.approx(24 * HOUR, abs=2)
        assert (found.state, found.reason, found.function_done) == (State.FAILED, "arguments", False)
        assert found.error.startswith("no worker could read its texts for 24 hours: ")
        assert why in found.error
        await app.jobs.retry("closed")  # a new round begins
        await drain(app)
        found = await row(app, "closed")
        assert (found.state, found.due_at - clock()) == (State.READY, pytest.approx(5.0, abs=0.01))


async def test_a_worker_with_the_key_ends_the_wait(storage: Storage, clock: HandClock) -> None:
    key = Keys(Keys.make("k"))
    with_key, without = an_app(storage, clock, keys=key), an_app(storage, clock)
    async with with_key, without:
        job = await with_key.stub("once").enqueue(7)
        for _ in range(3):
            await drain(without)
            clock.advance((await row(without, job.id)).due_at - clock() + 0.001)
        assert unread.unread(await row(without, job.id)) == (3, pytest.approx(clock() - 35.0, abs=0.1))
        await drain(with_key)
        found = await row(without, job.id)
        assert (found.state, found.attempt, unread.unread(found)) == (State.READY, 1, None)
        clock.advance(60.0)
        await drain(without)
        assert unread.unread(await row(without, job.id)) == (1, pytest.approx(clock(), abs=0.1)), "it begins anew"
        clock.advance(60.0)
        await drain(with_key)
        assert await job.result(0) == 7


async def test_a_workflow_with_unreadable_results_ends(storage: Storage, clock: HandClock) -> None:
    with_key, without = an_app(storage, clock, keys=Keys(Keys.make("k"))), an_app(storage, clock)
    async with with_key, without:
        await with_key.stub("up", id="up").enqueue()
        with pytest.raises(Endless):
            await drain(with_key, limit=3)  # the job and its two children; only its ending is left
        times = 0
        while (found := await row(without, "up")).state is State.READY:
            await drain(without)
            times += 1
            clock.advance(max(0.0, ((await row(without, "up")).due_at or clock()) - clock()) + 0.001)
        assert times < 60
        assert (found.state, "no worker could read its texts" in found.error) == (State.FAILED, True)


@shows("thousands of jobs that nobody can read do not hold up the others")
async def test_unreadable_jobs_do_not_return_together(storage: Storage, clock: HandClock) -> None:
    app = an_app(storage, clock)
    async with app:
        await storage.enqueue([NewJob(id=f"c{number}", task="t", payload=SEALED) for number in range(2_000)])
        await drain(app)
        spread = [(await storage.get([f"c{number}"]))[0] for number in range(0, 2_000, 50)]
        assert all(each is not None and each.state is State.READY for each in spread)
        due = sorted(each.due_at - clock() for each in spread if each is not None)
        assert due[0] >= 5.0
        assert due[-1] > 20.0  # 2,000 jobs at 50 a second
        clock.advance(10.0)
        good = await app.stub("t").enqueue(3)
        await drain(app)
        assert await good.result(0) == 3


async def test_a_log_has_one_line_for_each_key_and_minute(
    clock: HandClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = an_app(MemoryStorage(clock), clock)
    async with app:
        jobs = [(f"{key}{number}", SEALED.replace("zz", key)) for key in ("k1", "k2") for number in range(50)]
        await app.storage.enqueue([NewJob(id=id, task="t", payload=payload) for id, payload in jobs])
        with caplog.at_level(logging.ERROR, "treadle"):
            await drain(app)
    lines = [each.getMessage() for each in caplog.records if "cannot run here" in each.getMessage()]
    assert [line.partition("with the key ")[2][:4] for line in lines] == ["'k1'", "'k2'"]


def test_causes_that_senders_choose_do_not_fill_a_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("treadle.core.rare_log.monotonic", lambda: now)
    rare = RareLog(logging.getLogger("treadle"))
    for _ in range(2):
        for number in range(1_000):
            rare.error(f"key {number}", f"key {number}")
        now += 60.0
    rare.error("key 0", "key 0")
    lines = [each.getMessage() for each in caplog.records]
    minute = [*(f"key {number}" for number in range(CAUSES + 1)), "989 more errors of this kind in the last minute"]
    assert lines == [*minute, *minute, "key 0"]


@shows("a server does not store arguments that nobody behind it can read")
async def test_a_server_without_keys_refuses_what_it_cannot_read(clock: HandClock) -> None:
    keys = Keys(Keys.make("k"))
    served = {
        name: host().add(App(storage=MemoryStorage(), **options), settings)
        for name, options, settings in (
            ("plain", {}, Settings()),
            ("passing", {}, Settings(pass_texts=True)),
            ("keys", {"keys": keys}, Settings()),
        )
    }
    for name, accepted in (("plain", False), ("passing", True), ("keys", False)):
        for payload in (SEALED, BLOB):
            async with App(served[name]) as app:
                assert isinstance(app.storage, HttpStorage)
                new = NewJob(id="closed", task="t", payload=payload)
                if accepted:
                    await app.storage.enqueue([new])
                else:
                    with pytest.raises(BadOption, match="--pass-texts"):
                        await app.storage.enqueue([new])
    async with App(served["keys"], keys=keys) as app:  # a key that the server has, too
        job = await app.stub("t").enqueue(7)
        assert job.created


async def test_followups_are_checked_too(clock: HandClock) -> None:
    storage = MemoryStorage()
    async with App(host().add(App(storage=storage), Settings())) as app:

        @app.task(name="makes")
        async def makes() -> Any:
            return app.stub("t").job().changed(payload=SEALED)

        async with Worker(app, poll=0.05):
            job = await makes.enqueue()
            with pytest.raises(Exception, match="--pass-texts"):
                await job.result(20)
