"""Children that a durable function awaits: no slot is used, and what they returned or raised is history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from tests.kit import work
from tests.served import memory_url
from treadle import App, JobCancelled, JobExpired, JobFailed, Key, Middleware, Retry, State, current, flow
from treadle.core.job import Job
from treadle.errors import BadOption, IdTaken, KeyHeld, StepMismatch
from treadle.testing import HandClock, drain
from treadle.workflow import chain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)


class Shop:
    """Orders whose invoices are jobs of their own."""

    def __init__(self, app: App, ledger: Ledger, kind: str = "async") -> None:
        self.app, self.ledger = app, ledger
        self.caught: list[str] = []
        self.make_invoice = app.task(name="invoice", retry=ONCE)(self._invoice)
        run: Any = self._order if kind == "async" else self._order_in_thread
        self.order: Any = app.task(name="order", retry=AGAIN)(run)
        self.careful: Any = app.task(name="careful", retry=AGAIN)(self._careful)

    def _invoice(self, number: int) -> str:
        self.ledger.plain("invoice")
        return f"invoice {number}"

    async def _order(self, number: int) -> str:
        here = current()
        await here.step("charge", self.ledger.do, "charge")
        invoice = await here.call(self.make_invoice.job(number))
        await here.step("send", self.ledger.do, "send")
        return f"sent {invoice}"

    def _order_in_thread(self, number: int) -> str:
        here = current().sync
        here.step("charge", self.ledger.plain, "charge")
        invoice = here.call(self.make_invoice.job(number))
        here.step("send", self.ledger.plain, "send")
        return f"sent {invoice}"

    async def _careful(self, number: int) -> str:
        here = current()
        try:
            invoice = await here.call(self.make_invoice.job(number))
        except JobFailed as error:
            self.caught.append(f"{type(error).__name__} {error.task} {error.reason}: {error.error}")
            await here.step("apologize", self.ledger.do, "apologize")
            await here.sleep(60)
            return "sorry"
        await here.sleep(60)
        return invoice

    async def child_of(self, job: Job[Any]) -> Any:
        [child] = (await self.app.jobs.list(task="invoice", parent=job.id)).records
        return child


@shows("a function awaits a child without using a slot")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_child_is_awaited_without_a_slot(app: App, ledger: Ledger, kind: str) -> None:
    shop = Shop(app, ledger, kind)
    job = await shop.order.enqueue(7)
    assert await drain(app) == 3  # one at a time: the parent, the child, and the parent again
    assert await job.result(0) == "sent invoice 7"
    assert ledger.function_done == {"charge": 1, "invoice": 1, "send": 1}
    child = await shop.child_of(job)
    assert (child.job.parent, child.job.root, child.state) == (job.id, job.id, State.SUCCEEDED)
    assert [name for name, _ in (await app.jobs.get(job)).checkpoints] == ["charge", "call:invoice", "send"]


@shows("a failed child is an exception, and its catch is decided once")
async def test_the_failure_of_a_child_is_an_exception_that_is_decided_once(
    app: App, ledger: Ledger, clock: HandClock
) -> None:
    shop = Shop(app, ledger)
    ledger.fail["invoice"] = 1
    job = await shop.careful.enqueue(7)
    await drain(app)
    assert await app.jobs.retry((await shop.child_of(job)).id) == 1  # it succeeds now, which changes nothing here
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "sorry"
    assert shop.caught == ["JobFailed invoice error: ValueError: invoice"] * 2
    assert ledger.function_done["apologize"] == 1


async def test_a_failed_child_fails_its_parent_at_once_and_a_retry_calls_another(app: App, ledger: Ledger) -> None:
    shop = Shop(app, ledger)
    ledger.fail["invoice"] = 1
    job = await shop.order.enqueue(7)
    await drain(app)
    assert "JobFailed: invoice" in await error_of(app, job)
    assert (await app.jobs.get(job)).attempt == 1
    assert await app.jobs.retry(job) == 1
    await drain(app)
    assert await job.result(0) == "sent invoice 7"
    assert ledger.function_done == {"charge": 1, "invoice": 2, "send": 1}


async def test_a_failed_child_that_was_retried_first_is_used_by_the_retried_parent(app: App, ledger: Ledger) -> None:
    shop = Shop(app, ledger)
    ledger.fail["invoice"] = 1
    job = await shop.order.enqueue(7)
    await drain(app)
    assert await app.jobs.retry((await shop.child_of(job)).id) == 1
    await drain(app)
    assert await app.jobs.retry(job) == 1
    await drain(app)
    assert await job.result(0) == "sent invoice 7"
    assert ledger.function_done["invoice"] == 2


@shows("cancelling a job cancels the child that it awaits")
async def test_cancelling_the_parent_cancels_its_child(app: App, ledger: Ledger) -> None:
    shop = Shop(app, ledger)
    job = await shop.order.enqueue(7)
    assert await drain(app, tasks=["order"]) == 1
    assert await app.jobs.cancel(job) == 2
    assert (await shop.child_of(job)).state is State.CANCELLED
    await drain(app)
    with pytest.raises(JobCancelled):
        await job.result(0)
    assert await app.jobs.retry(job) == 1  # by an operator, who wants the invoice after all
    await drain(app)
    assert await job.result(0) == "sent invoice 7"
    assert ledger.function_done == {"charge": 1, "invoice": 1, "send": 1}


async def test_a_cancelled_child_raises_in_its_parent(app: App, ledger: Ledger) -> None:
    @app.task
    async def order() -> str:
        try:
            return await current().call(invoice.job())
        except JobCancelled as error:
            return f"no invoice: {error.reason}"

    @app.task
    async def invoice() -> str:
        return "invoice"

    job = await order.enqueue()
    assert await drain(app, tasks=[order]) == 1
    [child] = (await app.jobs.list(task=invoice.name)).records
    await app.jobs.cancel(child.id)
    await drain(app)
    assert await job.result(0) == "no invoice: asked"


async def test_children_call_children(app: App) -> None:
    @app.task
    async def factorial(n: int) -> int:
        return n * await current().call(factorial.job(n - 1)) if n else 1

    job = await factorial.enqueue(6)
    await drain(app)
    assert await job.result(0) == 720


async def test_a_child_has_its_own_options_and_inherits_the_rest(app: App, clock: HandClock) -> None:
    class Stamped(Middleware):
        async def enqueue(self, specs: Any, call_next: Any) -> Any:
            return await call_next([spec.inheriting({"stamp": "x"}) for spec in specs])

    app.middleware(Stamped())

    @app.task
    async def work_on(n: int) -> int:
        return n

    @app.task
    async def boss() -> int:
        return await current().call(work_on.options(queue="slow", priority=3).job(4))

    job = await boss.options(expires=100, lane="tenant-7", headers={"trace": "abc"}).enqueue()
    clock.advance(10)
    assert await drain(app, tasks=[boss]) == 1
    [child] = (await app.jobs.list(task=work_on.name)).records
    assert (child.job.queue, child.job.priority, child.job.lane) == ("slow", 3, "tenant-7")
    assert dict(child.job.headers) == {"trace": "abc", "stamp": "x"}
    assert child.deadline_at == (await app.jobs.get(job)).deadline_at
    await drain(app)
    assert await job.result(0) == 4


async def test_a_child_that_misses_the_deadline_expires_with_its_parent(app: App, clock: HandClock) -> None:
    @app.task
    async def late() -> None: ...

    @app.task
    async def boss() -> None:
        await current().call(late.options(delay=1000).job())

    job = await boss.options(expires=100).enqueue()
    await drain(app)
    clock.advance(101)
    await drain(app)
    with pytest.raises(JobExpired):
        await job.result(0)


async def test_a_task_that_is_known_by_name_only_is_called_in_its_queue(app: App) -> None:
    """Its workers may be written in another language."""

    @app.task
    async def boss() -> Any:
        return await current().call(app.stub("resize").options(queue="go").job(3, name="a.png"))

    job = await boss.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.WAITING

    @app.task(name="resize", queue="go")
    def resize(width: int, name: str) -> dict[str, Any]:
        return {"width": width, "name": name}

    await drain(app)
    assert await job.result(0) == {"width": 3, "name": "a.png"}


async def test_flows_and_chains_are_called_like_jobs(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def boss() -> list[Any]:
        here = current()
        both = await here.call(flow(double.job(1), double.job(2), reduce="list"))
        return [both, await here.call(chain(double.job(5), double))]

    job = await boss.enqueue()
    await drain(app)
    assert await job.result(0) == [[2, 4], 20]


async def test_the_jobs_that_a_parent_waited_for_stay_known(app: App) -> None:
    @app.task
    async def first() -> str:
        return "first"

    @app.task
    async def child() -> str:
        return "child"

    @app.task
    async def then(passed: str) -> list[Any]:
        got = await current().call(child.job())
        return [passed, got, await current().upstream()]

    job = await then.options(pass_result=True, after=await first.enqueue()).enqueue()
    await drain(app)
    assert await job.result(0) == ["first", "child", ["first"]]


async def test_another_job_in_place_of_the_called_one_is_refused(app: App) -> None:
    wanted = [1]

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task(retry=ONCE)
    async def boss() -> int:
        here = current()
        number = await here.call(child.job(wanted[0]))
        await here.sleep(60)
        return number

    job = await boss.enqueue()
    await drain(app)
    wanted[0] = 2
    await app.jobs.run_now(job)
    await drain(app)
    assert StepMismatch.__name__ in await error_of(app, job)


# --- jobs with a key or an id of their own


async def test_a_call_of_a_held_key_waits_for_the_job_that_holds_it(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def page(n: int) -> str:
        ran.append(n)
        return f"page {n}"

    @app.task
    async def boss(n: int) -> str:
        return await current().call(page.options(key="front").job(n))

    holder = await page.options(key="front").enqueue(1)
    jobs = [await boss.enqueue(n) for n in (2, 3)]
    await drain(app, tasks=[boss])
    await drain(app)
    assert [await job.result(0) for job in jobs] == ["page 1", "page 1"]
    assert ran == [1]
    assert (await app.jobs.get(holder)).job.parent is None


async def test_cancelling_a_caller_leaves_the_job_of_another(app: App) -> None:
    @app.task
    async def page() -> None: ...

    @app.task
    async def boss() -> None:
        await current().call(page.options(key="front").job())

    holder = await page.options(key="front").enqueue()
    job = await boss.enqueue()
    await drain(app, tasks=[boss])
    assert await app.jobs.cancel(job) == 1
    assert (await app.jobs.get(holder)).state is State.READY


async def test_jobs_that_call_each_other_by_their_keys_do_not_wait_for_ever(app: App, clock: HandClock) -> None:
    @app.task(retry=ONCE)
    async def page(name: str, link: str) -> str:
        return await current().call(page.options(key=link).job(link, name))

    a = await page.options(key="a").enqueue("a", "b")
    b = await page.options(key="b").enqueue("b", "a")
    await drain(app)
    clock.advance(61)
    await drain(app)
    ended = [await app.jobs.get(job) for job in (a, b)]
    assert {row.state for row in ended} == {State.FAILED}
    assert any("neither would end" in (row.error or "") for row in ended)


async def test_a_called_job_with_an_id_of_its_own_is_that_job(app: App, ledger: Ledger) -> None:
    @app.task
    async def child(n: int) -> str:
        return ledger.plain(f"child {n}")

    @app.task(retry=ONCE)
    async def boss(n: int) -> str:
        try:
            return await current().call(child.options(id="the-child").job(n))
        except IdTaken:
            return "taken"

    jobs = [await boss.enqueue(n) for n in (1, 1, 2)]
    await drain(app)
    assert [await job.result(0) for job in jobs] == ["child 1 1", "child 1 1", "taken"]


async def test_a_call_that_the_storage_refuses_raises_where_it_is(app: App) -> None:
    @app.task
    async def page() -> None: ...

    @app.task(retry=ONCE)
    async def boss() -> str:
        try:
            await current().call(page.options(key=Key("front", conflict="raise")).job())
        except KeyHeld:
            return "held"
        return "called"

    await page.options(key="front").enqueue()
    job = await boss.enqueue()
    await drain(app, tasks=[boss])
    assert await job.result(0) == "held"


async def test_other_things_than_jobs_are_refused(app: App) -> None:
    @app.task
    async def child() -> None: ...

    @app.task(retry=ONCE)
    async def boss() -> list[str]:
        here, texts = current(), []
        wrong: list[Any] = [child, 7, await child.enqueue()]
        for job in wrong:
            with pytest.raises(BadOption) as refused:
                await here.call(job)
            texts.append(str(refused.value))
        return texts

    job = await boss.enqueue()
    await drain(app)
    assert len(await job.result(0)) == 3


async def test_a_worker_without_a_free_slot_runs_the_child(app: App, ledger: Ledger) -> None:
    shop = Shop(app, ledger)
    async with work(app, concurrency=1):
        job = await shop.order.enqueue(7)
        assert await job.result(30) == "sent invoice 7"


async def test_children_and_maps_over_http(clock: HandClock, ledger: Ledger) -> None:
    async with App(memory_url(clock), clock=clock) as app:
        shop = Shop(app, ledger)
        job = await shop.order.enqueue(7)
        await drain(app)
        assert await job.result(0) == "sent invoice 7"

        @app.task
        async def many() -> list[str]:
            return await current().map((shop.make_invoice.job(n) for n in range(5)), at_most=2)

        job = await many.enqueue()
        await drain(app)
        assert await job.result(0) == [f"invoice {n}" for n in range(5)]

        @app.task
        async def keyed() -> str:
            return await current().call(shop.make_invoice.options(key="k").job(9))

        job = await keyed.enqueue()
        await drain(app)
        assert await job.result(0) == "invoice 9"
