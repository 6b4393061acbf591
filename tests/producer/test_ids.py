"""Ids that callers choose: an id of another job is an error, and `job.created` says whether a call stored its job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from treadle import App, Flow, IdTaken, JobSpec, Key, Retry, StorageUnavailable, current, flow
from treadle.core.model import NewJob, Record
from treadle.storage.contract import Storage
from treadle.testing import drain


@pytest.fixture
def mail(app: App) -> Any:
    @app.task(name="mail")
    async def mail(order: int, to: str = "ada") -> None: ...

    return mail


async def tasks_of(app: App) -> list[str]:
    return sorted([row.job.task async for row in app.jobs.iterate()])


async def test_an_id_of_another_job_is_an_error(app: App, mail: Any) -> None:
    """A job of another task or with other arguments; the error says what was found, what was expected and what to
    do."""

    @app.task(name="other")
    async def other() -> None: ...

    first = await mail.options(id="order-1").enqueue(1)
    with pytest.raises(IdTaken) as arguments:
        await mail.options(id="order-1").enqueue(2)
    with pytest.raises(IdTaken) as task:
        await app.enqueue([other.job(), other.options(id="order-1").job()])
    assert (arguments.value.id, arguments.value.task, arguments.value.asked) == ("order-1", "mail", "mail")
    assert (arguments.value.other, task.value.asked) == (True, "other")
    assert str(arguments.value) == (
        "id 'order-1' is taken by a job of mail with other arguments, expected mail with the same arguments; "
        "choose another id, or repeat the call with the task and arguments of the stored job"
    )
    assert first.created
    assert await tasks_of(app) == ["mail"]


async def test_an_id_of_an_ended_job_is_an_error_too(app: App, mail: Any) -> None:
    await mail.options(id="order-1").enqueue(1)
    await drain(app)
    with pytest.raises(IdTaken):
        await mail.options(id="order-1").enqueue(2)
    assert not (await mail.options(id="order-1").enqueue(1)).created


async def test_an_inline_job_of_a_taken_id_does_not_run(app: App, mail: Any) -> None:
    ran = []

    @app.task(name="here", inline=True)
    async def here(number: int) -> None:
        ran.append(number)

    await here.options(id="one").enqueue(1)
    with pytest.raises(IdTaken):
        await here.options(id="one").enqueue(2)
    assert ran == [1]


async def test_in_a_flow_and_in_one_call_ids_are_compared_too(app: App, mail: Any) -> None:
    await mail.options(id="order-1").enqueue(1)
    with pytest.raises(IdTaken):
        await flow(mail.job(5), mail.options(id="order-1").job(2)).enqueue()
    with pytest.raises(IdTaken):
        await app.enqueue([mail.options(id="new").job(1), mail.options(id="new").job(2)])
    assert await tasks_of(app) == ["mail"]


async def test_a_run_that_returns_a_job_with_a_taken_id_fails(app: App, mail: Any) -> None:
    """The run returns the job, alone or in a flow: nothing of it is stored, and the job's error names the id."""

    @app.task(name="one", retry=Retry(attempts=1))
    async def one() -> JobSpec[None]:
        return mail.options(id="order-1").job(2)  # type: ignore[no-any-return]

    @app.task(name="several", retry=Retry(attempts=1))
    async def several() -> Flow[None]:
        return flow(mail.job(3), mail.options(id="order-1").job(1), mail.options(id="order-2").job(1, "bob"))

    await mail.options(id="order-1").enqueue(1)
    await mail.options(id="order-2").enqueue(1)
    ran = [await one.enqueue(), await several.enqueue()]
    await drain(app)
    for job in ran:
        row = await app.jobs.get(job)
        assert (row.state, "is taken by a job of mail with other arguments" in (row.error or "")) == ("failed", True)
    assert await tasks_of(app) == ["mail", "mail", "one", "several"]


async def test_inside_a_job_enqueue_raises_it(app: App, mail: Any) -> None:
    caught = []

    @app.task(name="sends")
    async def sends() -> None:
        try:
            await mail.options(id="order-1").enqueue(2)
        except IdTaken as error:
            caught.append((error.id, current().id))

    await mail.options(id="order-1").enqueue(1)
    job = await sends.enqueue()
    await drain(app)
    assert caught == [("order-1", job.id)]


async def test_created_is_true_if_the_call_stored_the_job(app: App, mail: Any) -> None:
    """Also in bulk. It is False for a known id, for a held key, and for every job but the first with one id in a
    call."""
    await app.enqueue([mail.options(id=f"order-{n}").job(n) for n in range(3)])
    await mail.options(key=Key("k")).enqueue(1)
    specs = [mail.options(id=f"order-{n}").job(n) for n in (*range(10), 9)]
    specs += [mail.options(key=Key("k")).job(1), mail.options(key=Key("l")).job(1), mail.job(1)]
    jobs = await app.enqueue(specs)
    assert [job.created for job in jobs] == [False] * 3 + [True] * 7 + [False, False, True, True]
    again = await app.enqueue(specs[5])  # the first answer has arrived, so this is another call
    assert not again.created
    assert not (await app.jobs.handle(jobs[9].id)).created


async def test_created_of_flows(app: App, mail: Any) -> None:
    """`created` of a flow is that of its root job."""
    assert (await flow(mail.job(1), mail.job(2)).enqueue()).created
    one = mail.options(id="x")
    jobs = await app.enqueue([flow(mail.job(1)), one.job(1), one.job(1)])
    assert [job.created for job in jobs] == [True, True, False]


class Losing:
    """A storage that loses its next answer after it carried out the call."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.lose = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        rows = await self._storage.enqueue(jobs)
        if self.lose:
            self.lose = False
            raise StorageUnavailable("the answer was lost")
        return rows


async def test_a_call_repeated_after_a_lost_answer_created_its_jobs(storage: Storage) -> None:
    """For chosen and for generated ids; jobs that existed before the first try do not count."""
    losing = Losing(storage)
    app = App(storage=losing)  # type: ignore[arg-type]

    @app.task(name="mail")
    async def mail(order: int) -> None: ...

    async with app:
        await mail.options(id="known").enqueue(1)
        specs = [mail.options(id="known").job(1), mail.options(id="new").job(2), mail.job(3)]
        losing.lose = True
        with pytest.raises(StorageUnavailable):
            await app.enqueue(specs)
        jobs = await app.enqueue(specs)
        assert [job.created for job in jobs] == [False, True, True]
        assert not (await mail.options(id="new").enqueue(2)).created


async def test_plain_jobs_carry_no_nonce(app: App, mail: Any) -> None:
    """Only a chosen id has one; derived and generated ids are compared by themselves."""

    @app.task(name="parent")
    async def parent() -> Flow[None]:
        return flow(mail.job(1), mail.options(id="chosen").job(2))

    @app.every(60, name="minutely")
    @app.task(name="tick")
    async def tick() -> None: ...

    await parent.enqueue()
    await drain(app)
    with_nonce = [row.job.id async for row in app.jobs.iterate() if row.job.nonce is not None]
    assert with_nonce == ["chosen"]


async def test_enqueued_is_emitted_for_jobs_that_were_stored(app: App, mail: Any) -> None:
    told: list[str] = []
    app.on("enqueued")(lambda event: told.append(event.id or ""))
    for _ in range(2):
        await mail.options(id="order-1").enqueue(1)
    assert told == ["order-1"]
