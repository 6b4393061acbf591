"""The edges of an outbox: what its jobs mean although they reach their storage later."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.outbox.kit import Data, mail, never, relayed, stored
from tests.waiting import Signal
from treadle import App, BadOption, JobExpired, Worker
from treadle.core.model import NewJob, Record
from treadle.errors import StorageUnavailable, UnknownJob
from treadle.outbox import relay as relays
from treadle.outbox.drivers import Database
from treadle.tasks.options import Key
from treadle_testkit.faults import Faulty, before, lost
from treadle_testkit.shows import shows


async def written(app: App, data: Data, *specs: Any) -> list[Any]:
    """Enqueue each in a call of its own, and commit."""
    with closing(data.connect()) as db:
        jobs = [await app.enqueue(spec, within=db) for spec in specs]
        db.commit()
    return jobs


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def row_of(app: App, job: Any) -> Record:
    return await app.jobs.get(job)


@shows("an outbox delivers each job once, also if the row of a short-lived job would be pruned before a repetition")
async def test_rows_stay_long_enough_for_a_repeated_deliver(app: App, data: Data) -> None:
    [job] = await written(app, data, mail(app, "ada", keep=0))
    await relayed(app)
    assert (await row_of(app, job)).job.keep == 3_600


@shows("times of a job in an outbox count from its enqueue, by the clock of the user's database")
async def test_times_count_from_the_enqueue(app: App, data: Data) -> None:
    jobs = await written(
        app,
        data,
        mail(app, "later", delay=100, deadline=in_seconds(200), key=Key("k", window=300)),
        mail(app, "due", delay=20),
        mail(app, "waits", after=["nobody"], wait_timeout=90),
    )
    data.age_by(40)
    await relayed(app)
    later, due, waits = [await row_of(app, job) for job in jobs]
    assert later.job.delay == pytest.approx(60, abs=10)
    assert later.job.deadline == pytest.approx(160, abs=10)
    assert later.job.key_window == pytest.approx(260, abs=10)
    assert due.job.delay == 0
    assert waits.job.wait_timeout == pytest.approx(50, abs=10)


async def test_a_deadline_that_passed_in_the_outbox(app: App, data: Data) -> None:
    [job] = await written(app, data, mail(app, "ada", expires=5))
    data.age_by(10)
    await relayed(app)
    async with Worker(app):
        with pytest.raises(JobExpired):
            await job.result(30)


async def test_a_key_that_raises_is_refused_at_once(app: App, data: Data) -> None:
    with closing(data.connect()) as db:
        with pytest.raises(BadOption, match="cannot be answered inside your transaction"):
            await app.enqueue(mail(app, "ada", key=Key("k", conflict="raise")), within=db)
        await app.enqueue(mail(app, "eve"), within=db)  # the transaction can still be used
        db.commit()
    assert await relayed(app) == 1


@shows("a result follows the job that holds the key, if the storage returned that one for a job of the outbox")
async def test_a_held_key_is_followed(app: App, data: Data) -> None:
    holder = await app.enqueue(mail(app, "first", key="k"))
    job, *_ = await written(app, data, mail(app, "second", key="k"), mail(app, "third", key="k"))
    await relayed(app)
    assert await stored(app) == ['["first"]']
    async with Worker(app):
        assert await job.result(30) == "mail to first"
        assert (await job.ended()).id == holder.id
    data.run("UPDATE treadle_outbox SET due = 0")  # an hour later
    await relayed(app)
    assert data.run("SELECT count(*) FROM treadle_outbox") == [(0,)]


async def test_a_replacing_key_has_its_own_row(app: App, data: Data) -> None:
    await app.enqueue(mail(app, "first", key="k", delay=100))
    [job] = await written(app, data, mail(app, "second", key=Key("k", conflict="replace")))
    await relayed(app)
    async with Worker(app):
        assert await job.result(30) == "mail to second"


async def test_after_a_job_of_the_same_transaction(app: App, data: Data) -> None:
    with closing(data.connect()) as db:
        first = await app.enqueue(mail(app, "a"), within=db)
        second = await app.enqueue(mail(app, "b"), after=first, within=db)
        db.commit()
    assert await relayed(app) == 2
    async with Worker(app):
        assert await second.result(30) == "mail to b"


@shows("a job of the outbox that waits for a job that is not delivered yet is tried again")
async def test_after_a_job_of_an_open_transaction(app: App, data: Data) -> None:
    with closing(data.connect()) as slow:
        first = mail(app, "a")
        if data.kind != "sqlite":  # which has one writer: a job that was committed first has the lower number
            await app.enqueue(first, within=slow)
        [second] = await written(app, data, mail(app, "b", after=[first.id]))
        assert await relayed(app) == 0
        if data.kind == "sqlite":
            await app.enqueue(first, within=slow)
        slow.commit()
    assert await relayed(app) == 1
    data.run("UPDATE treadle_outbox SET due = 0.5")  # its pause is over
    assert await relayed(app) == 1
    async with Worker(app):
        assert await second.result(30) == "mail to b"


@shows("a job of the outbox that the storage refuses blocks no other, is listed with the reason, and can be retried")
async def test_refused_jobs_block_no_others(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    assert app.outbox is not None
    specs = [mail(app, str(n)) for n in range(9)]
    jobs = await written(app, data, *specs[:4], mail(app, "poison", after=["nobody"]), *specs[4:])
    data.run("UPDATE treadle_outbox SET job = '{not JSON' WHERE id = %s", [jobs[0].id])
    assert await relayed(app) == 8
    unreadable, refused = sorted(await app.outbox.list(failing=True), key=lambda row: row.task)
    assert (unreadable.id, unreadable.job, unreadable.tries) == (jobs[0].id, None, 1)
    assert (refused.id, refused.task, refused.tries) == (jobs[4].id, "mail", 1)
    assert "waits for unknown job 'nobody'" in (refused.error or "")
    assert refused.next is not None
    assert 0 < refused.next < 2
    assert await relayed(app) == 0, "it is not tried again before its pause is over"

    monkeypatch.setattr(relays, "TRIES", 2)
    data.run("UPDATE treadle_outbox SET due = 0.5")
    await relayed(app)
    assert (await app.outbox.stats()).given_up == 2
    with pytest.raises(TimeoutError, match="waits in the outbox, and 2 deliveries failed"):
        await jobs[4].result(0)
    await app.enqueue(mail(app, "late", id="nobody"))
    assert await app.outbox.retry(jobs[4].id) == 1
    assert await relayed(app) == 1
    assert await app.outbox.delete() == 1
    assert (await app.outbox.stats()).rows == 0


async def test_a_refused_flow_stays_whole(app: App, data: Data) -> None:
    with closing(data.connect()) as db:
        await app.enqueue([mail(app, "a"), mail(app, "b", after=["nobody"]), mail(app, "c")], within=db)
        db.commit()
    assert await relayed(app) == 0
    assert app.outbox is not None
    assert {row.tries for row in await app.outbox.list()} == {1}
    [first, *_] = await app.outbox.list()
    assert await app.outbox.delete(first.id) == 3


async def test_rows_that_commit_late_are_not_passed_over(app: App, data: Data) -> None:
    """Their sequence is not the order of their commits."""
    if data.kind == "sqlite":
        pytest.skip("SQLite has one writer, so the orders are the same")
    with closing(data.connect()) as slow:
        await app.enqueue(mail(app, "slow"), within=slow)
        await written(app, data, mail(app, "fast"))
        assert await relayed(app) == 1
        slow.commit()
    assert await relayed(app) == 1
    assert await stored(app) == ['["fast"]', '["slow"]']


@shows("a result is awaited while the job is still in the outbox")
async def test_a_result_is_awaited_before_the_deliver(app: App, data: Data) -> None:
    [job] = await written(app, data, mail(app, "ada"))
    with pytest.raises(TimeoutError, match="still waits in the outbox"):
        await job.result(0)
    waiting = asyncio.create_task(job.result(30))
    with pytest.raises(TimeoutError, match=r"outbox after 0\.05 s"):
        await job.result(0.05)
    assert not waiting.done()
    async with Worker(app):
        assert await waiting == "mail to ada"


@shows("`explain` says that a job is still in the outbox, and why its delivery failed")
async def test_explain_of_a_job_in_the_outbox(app: App, data: Data) -> None:
    [job] = await written(app, data, mail(app, "ada"))
    said = await app.jobs.explain(job)
    assert said == (
        "It is in the outbox and not delivered to the storage yet. A worker or `treadle storage relay MODULE:APP` "
        "delivers it; `treadle storage relay list --app MODULE:APP` shows such jobs."
    )
    assert await relayed(app) == 1
    assert "It is queued" in await app.jobs.explain(job)
    with pytest.raises(UnknownJob):
        await app.jobs.explain("nobody")


async def test_the_result_of_a_job_that_was_rolled_back(app: App, data: Data) -> None:
    with closing(data.connect()) as db:
        job = await app.enqueue(mail(app, "ada"), within=db)
        db.rollback()
    with pytest.raises(LookupError, match="never enqueued"):
        await job.result(30)


async def test_a_job_that_is_sent_twice(app: App, data: Data) -> None:
    spec = mail(app, "ada", id="order-1")
    await written(app, data, spec, spec)
    await relayed(app)
    assert (await stored(app), data.run("SELECT count(*) FROM treadle_outbox")) == (['["ada"]'], [(0,)])


@shows("while the storage of the jobs is away, rows of the outbox pile up, and none counts as refused")
async def test_rows_stay_while_the_storage_is_unavailable(app: App, data: Data) -> None:
    await written(app, data, *[mail(app, str(n)) for n in range(3)])
    data.age_by(100)

    class Away:
        async def enqueue(self, jobs: Any) -> Any:
            raise StorageUnavailable("no answer")

        get = enqueue

    async def storage() -> Any:
        return Away()

    assert app.outbox is not None
    relay = app.outbox._relay(storage)
    with pytest.raises(StorageUnavailable):
        await relay._pass(never)
    stats = await app.outbox.stats()
    assert (stats.rows, stats.failing) == (3, 0)
    assert stats.oldest == pytest.approx(100, abs=10)
    assert await relayed(app) == 3


async def test_a_job_that_cuts_the_connection_does_not_stop_the_others(app: App, data: Data) -> None:
    """The storage answers, but not to a page with this job. The pages get smaller until it is alone."""
    await written(app, data, *[mail(app, str(n)) for n in range(5)], mail(app, "bad"), mail(app, "last"))
    storage = await app._core.opened()

    class Cut:
        async def enqueue(self, jobs: list[NewJob]) -> Any:
            if any("bad" in job.payload for job in jobs):
                raise StorageUnavailable("connection reset")
            return await storage.enqueue(jobs)

        async def get(self, ids: Any) -> Any:
            return await storage.get(ids)

    async def cut() -> Any:
        return Cut()

    assert app.outbox is not None
    relay = app.outbox._relay(cut)
    while relay.delivered < 6:
        try:
            await relay._pass(never)
        except StorageUnavailable:
            continue
    [bad] = await app.outbox.list()
    assert (bad.tries, bad.next is not None) == (1, True)


@pytest.mark.parametrize("fault", [before("enqueue", 1), lost("enqueue", 1)], ids=["before", "lost"])
async def test_an_answer_of_the_storage_is_lost(app: App, data: Data, fault: Any) -> None:
    await written(app, data, *[mail(app, str(n)) for n in range(3)])
    faulty = Faulty(await app._core.opened(), fault)

    async def storage() -> Any:
        return faulty

    assert app.outbox is not None
    relay = app.outbox._relay(storage)
    with pytest.raises(StorageUnavailable):
        await relay._pass(never)
    await relay.everything()
    assert len(await stored(app)) == 3


async def test_one_relay_at_a_time(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one takes over when the first ends, without waiting for its lease."""
    assert app.outbox is not None
    asked = Signal().after(monkeypatch, Database, "run")
    storage = app._core.opened
    first, second = app.outbox._relay(storage, lease=2), app.outbox._relay(storage, lease=0.2)
    leading = asyncio.create_task(first.run())

    async def leader() -> str | None:
        assert app.outbox is not None
        return (await app.outbox.stats()).relay

    async def leads(relay: Any) -> bool:
        return await leader() == relay.holder

    await asked.until(lambda: leads(first), "the first relay leads")
    following = asyncio.create_task(second.run())
    await written(app, data, mail(app, "ada"))
    await asked.until(lambda: _empty(app), "the delivery")
    assert (first.delivered, second.delivered) == (1, 0)
    leading.cancel()
    await asyncio.wait([leading])
    await asked.until(lambda: leads(second), "the second relay leads")
    following.cancel()
    await asyncio.wait([following])
    assert await leader() is None


async def _empty(app: App) -> bool:
    assert app.outbox is not None
    return (await app.outbox.stats()).rows == 0


@pytest.mark.parametrize("data", ["mysql"], indirect=True)
@shows("times in an outbox in MySQL are exact in the hour that a user's time zone repeats when its summer time ends")
async def test_the_end_of_summer_time(app: App, data: Data) -> None:
    with closing(data.connect()) as db:
        cursor = db.cursor()
        cursor.execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
        zone, ends = cursor.lastrowid, 1_792_890_000  # 25 October 2026, 1:00 UTC
        cursor.execute(f"INSERT INTO mysql.time_zone_name VALUES ('Test/{data.name}', {zone})")
        cursor.execute(
            "INSERT INTO mysql.time_zone_transition_type VALUES"
            f" ({zone}, 0, 7200, 1, 'CEST'), ({zone}, 1, 3600, 0, 'CET')"
        )
        cursor.execute(f"INSERT INTO mysql.time_zone_transition VALUES ({zone}, 0, 0), ({zone}, {ends}, 1)")
        db.commit()
        cursor.execute(f"SET time_zone = 'Test/{data.name}'")
        for moment in (ends - 600.5, ends + 600.5):
            cursor.execute(f"SET timestamp = {moment}")
            await app.enqueue(mail(app, "ada"), within=db)
        db.commit()
    found = [made for (made,) in data.run("SELECT made FROM treadle_outbox ORDER BY seq")]
    assert found == pytest.approx([ends - 600.5, ends + 600.5], abs=0.001)
