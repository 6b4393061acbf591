"""Waits in tasks of asyncio: the run is suspended when nothing else can happen in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from tests.kit import Spy, Told, heartbeats, work
from tests.waiting import Signal
from treadle import App, JobFailed, Record, Retry, State, Worker, current
from treadle.storage.contract import Capabilities
from treadle.testing import HandClock, drain
from treadle.worker.executor import Executor
from treadle.worker.handoff import HandOff
from treadle_testkit.shows import shows

pytestmark = pytest.mark.usefixtures("tasks")

ONCE = Retry(attempts=1)


class Pages:
    """Children, and functions that await several of them in tasks."""

    def __init__(self, app: App) -> None:
        self.app, self.broken = app, set[int]()
        self.fetch = app.task(name="fetch", retry=ONCE)(self._fetch)
        self.most = self.running = 0

    async def _fetch(self, page: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if page in self.broken:
            raise ConnectionError(f"page {page}")
        return page * 10

    def call(self, page: int, **options: Any) -> Any:
        return current().call(self.fetch.options(**options).job(page))


@pytest.fixture
def pages(app: App) -> Pages:
    return Pages(app)


@shows("gather, wait and TaskGroup over children, sleeps and steps")
async def test_gather_over_children_a_sleep_and_a_step(
    app: App, clock: HandClock, pages: Pages, ledger: Ledger
) -> None:
    @app.task(retry=AGAIN)
    async def boss() -> list[Any]:
        here = current()
        both = await asyncio.gather(pages.call(1), here.sleep(60), pages.call(2), here.step("note", ledger.do, "note"))
        return [*both, await here.step("end", ledger.do, "end")]

    job = await boss.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == [10, None, 20, "note 1", "end 1"]
    assert ledger.function_done == {"note": 1, "end": 1}


async def test_a_task_group_of_branches_with_steps(app: App, clock: HandClock, pages: Pages, ledger: Ledger) -> None:
    async def branch(page: int) -> str:
        here = current()
        size = await here.call(pages.fetch.job(page))
        await here.sleep(page * 10, name=f"pause:{page}")
        return str(await here.step(f"store:{page}", ledger.do, f"store {size}"))

    pages_called = (1, 2, 3)

    @app.task
    async def boss() -> list[str]:
        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(branch(page)) for page in pages_called]
        return [task.result() for task in branches]

    job = await boss.enqueue()
    await drain(app)
    error = await error_of(app, job)  # one name in three branches at the same time
    assert "is taken in two branches" in error
    assert "name=f'fetch:{i}'" in error

    async def called(page: int, wait: Any) -> str:
        here = current()
        size = await wait
        await here.sleep(page * 10, name=f"pause:{page}")
        return str(await here.step(f"store:{page}", ledger.do, f"store {size}"))

    @app.task
    async def right() -> list[str]:
        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(called(page, pages.call(page))) for page in pages_called]
        return [task.result() for task in branches]

    job = await right.enqueue()
    for _ in range(4):
        await drain(app)
        clock.advance(10)
    await drain(app)
    assert await job.result(0) == ["store 10 1", "store 20 1", "store 30 1"]


async def test_wait_for_all(app: App, pages: Pages) -> None:
    @app.task
    async def boss() -> int:
        done, pending = await asyncio.wait([asyncio.ensure_future(pages.call(page)) for page in (1, 2)])
        assert not pending
        return sum(task.result() for task in done)

    job = await boss.enqueue()
    await drain(app)
    assert await job.result(0) == 30


async def test_tasks_in_tasks(app: App, pages: Pages) -> None:
    @app.task
    async def boss() -> list[int]:
        async def inner() -> list[int]:
            return list(await asyncio.gather(pages.call(1), pages.call(2)))

        return await asyncio.create_task(inner())

    job = await boss.enqueue()
    await drain(app)
    assert await job.result(0) == [10, 20]


@shows("a semaphore bounds the children that tasks await")
async def test_a_semaphore_bounds_calls(app: App, pages: Pages) -> None:
    @app.task
    async def boss() -> list[int]:
        gate = asyncio.Semaphore(2)

        async def bounded(call: Any) -> int:
            async with gate:
                return int(await call)

        return list(await asyncio.gather(*(bounded(pages.call(page)) for page in range(6))))

    job = await boss.enqueue()
    await drain(app, concurrency=8)
    assert await job.result(0) == [0, 10, 20, 30, 40, 50]
    assert pages.most == 2


async def test_a_queue_and_an_event_between_tasks(app: App, pages: Pages) -> None:
    @app.task
    async def boss() -> list[int]:
        queue, ready = asyncio.Queue[int](), asyncio.Event()

        async def produce(calls: list[Any]) -> None:
            for call in calls:
                await queue.put(await call)
            ready.set()

        async def consume() -> list[int]:
            taken = [await queue.get() for _ in range(2)]
            await ready.wait()
            return taken

        _, taken = await asyncio.gather(produce([pages.call(1), pages.call(2)]), consume())
        return taken

    job = await boss.enqueue()
    await drain(app)
    assert await job.result(0) == [10, 20]


@shows("a branch that awaits something else is not cut off by the wait of another branch")
async def test_a_reply_from_outside_is_awaited_before_the_run_is_suspended(app: App, pages: Pages, told: Told) -> None:
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[str] = loop.create_future()
    asked = asyncio.Event()
    answers: list[str] = []
    stored = asyncio.Event()

    def store(answer: str) -> None:
        answers.append(answer)
        loop.call_soon_threadsafe(stored.set)

    @app.task
    async def boss() -> list[Any]:
        async def ask() -> str:
            asked.set()
            answer = await asyncio.shield(reply)
            await current().step("store", store, answer)
            return answer

        return list(await asyncio.gather(current().sleep(3600), ask()))

    async with work(app, concurrency=1):
        job = await boss.enqueue()
        await asked.wait()
        assert (await app.jobs.get(job)).state is State.RUNNING
        reply.set_result("reply")
        await stored.wait()
        await told.until("deferred", id=job.id)
    assert answers == ["reply"]


async def test_the_waits_of_a_run_that_is_not_suspended_are_looked_at(app: App, pages: Pages) -> None:
    """Here one branch needs what another one gets from its child, which nothing but the program knows."""
    loop = asyncio.get_running_loop()

    @app.task
    async def boss() -> int:
        passed: asyncio.Future[int] = loop.create_future()

        async def give() -> None:
            passed.set_result(await pages.call(3))

        async def take() -> int:
            return await passed

        _, taken = await asyncio.gather(give(), take())
        return taken

    async with work(app, concurrency=2):
        job = await boss.enqueue()
        assert await job.result(30) == 30


async def test_a_failed_branch_of_a_group_cuts_off_the_others(app: App, clock: HandClock, pages: Pages) -> None:
    """A later run cuts them off again, although the child that was cut off may have ended before it was cancelled."""
    pages.broken = {1}
    caught: list[str] = []

    @app.task(retry=AGAIN)
    async def boss() -> str:
        here = current()
        try:
            async with asyncio.TaskGroup() as group:
                calls = pages.call(1), pages.call(2, delay=100)
                for call in calls:
                    group.create_task(call)
        except* JobFailed as errors:
            caught.append(str(errors.exceptions[0]))
        await here.sleep(60)
        return "caught"

    job = await boss.enqueue()
    await drain(app)
    rows = (await app.jobs.list(task="fetch", order="oldest")).records
    assert sorted(row.state for row in rows) == [State.CANCELLED, State.FAILED]
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "caught"
    assert len(caught) == 2


async def test_a_time_limit_around_tasks(app: App, clock: HandClock, pages: Pages) -> None:
    @app.task
    async def boss() -> str:
        here = current()
        try:
            async with here.timeout(30):
                await asyncio.gather(here.wait_for("a"), pages.call(1), here.sleep(3600))
        except TimeoutError:
            await here.sleep(60)
            return "late"
        return "in time"

    job = await boss.enqueue()
    await drain(app)
    clock.advance(30)
    await drain(app)
    await app.jobs.signal(job, "a")
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "late"


async def test_a_wait_inside_a_step_and_one_in_another_branch(app: App, clock: HandClock, pages: Pages) -> None:
    async def outer() -> int:
        await current().sleep(60)
        return int(await pages.call(1))

    @app.task
    async def boss() -> list[int]:
        here = current()
        both = await asyncio.gather(here.step("outer", outer), here.sleep(10, name="other"))
        return [both[0], 20]

    job = await boss.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == [10, 20]


async def test_a_child_runs_while_a_step_waits_for_its_next_try(
    app: App, clock: HandClock, pages: Pages, ledger: Ledger
) -> None:
    ledger.fail["note"] = 2

    @app.task
    async def boss() -> list[Any]:
        step = current().step.options(retry=Retry(attempts=5, base=100))
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(step("note", ledger.do, "note")), group.create_task(pages.call(2))]
        return [task.result() for task in both]

    job = await boss.enqueue()
    await drain(app)
    [row] = (await app.jobs.list(task="fetch")).records
    assert row.state is State.SUCCEEDED
    for _ in range(3):
        clock.advance(200)
        await drain(app)
    assert await job.result(0) == ["note 3", 20]


async def test_a_task_that_nothing_awaits_does_not_keep_the_run(app: App, clock: HandClock) -> None:
    """A library may have begun it in the context of the job, and it may never end."""
    for_ever: list[asyncio.Task[Any]] = []

    @app.task
    async def boss() -> str:
        for_ever.append(asyncio.create_task(asyncio.Event().wait()))  # type: ignore[arg-type]
        await current().sleep(60)
        return "slept"

    job = await boss.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == "slept"
    for task in for_ever:
        task.cancel()


@shows("a branch is found again by where it was created, however far the function had come when it began")
async def test_a_branch_next_to_the_body_of_its_group(app: App, clock: HandClock, ledger: Ledger) -> None:
    """In the first run the body awaits the storage before the branch begins; later runs have its steps at once."""

    async def branch() -> None:
        await current().step("branch", ledger.do, "branch")
        await current().sleep(30, name="branch")

    @app.task(retry=ONCE)
    async def boss() -> str:
        here = current()
        await here.step("before", ledger.do, "before")
        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
            await here.step("body", ledger.do, "body")
            await here.sleep(60, name="body")
            await here.step("more", ledger.do, "more")
        return "done"

    job = await boss.enqueue()
    for _ in range(3):
        await drain(app)
        clock.advance(31)
    await drain(app)
    assert await job.result(0) == "done"
    assert ledger.function_done == {"before": 1, "branch": 1, "body": 1, "more": 1}


# --- names of the waits of branches


async def every_wait(here: Any, fetch: Any, branch: int, **named: Any) -> list[Any]:
    """One of each wait in one branch. `named`: the name that it gives to each."""
    async with here.timeout(3600, **named):
        page = await here.call(fetch.job(branch), **named)
        pages = await here.map([fetch.job(branch), fetch.job(branch + 1)], **named)
        ended = [done.result() async for done in here.as_completed([fetch.job(branch)], **named)]
        await here.sleep(branch, **named)
        first = await here.first(*named.values(), page=here.call(fetch.job(9), name=f"race:{branch}"))
    return [page, pages, ended, first]


@shows("each wait of branches that run at the same time has a name of its own")
async def test_every_wait_in_branches_that_run_at_the_same_time(app: App, clock: HandClock, pages: Pages) -> None:
    @app.task
    async def boss() -> list[Any]:
        here = current()
        return await asyncio.gather(*(every_wait(here, pages.fetch, n, name=f"branch:{n}") for n in (1, 2)))

    job = await boss.enqueue()
    for _ in range(3):
        await drain(app)
        clock.advance(2)
    assert await job.result(0) == [[10, [10, 20], [10], ("page", 90)], [20, [20, 30], [20], ("page", 90)]]


ALONE = (
    (lambda here, fetch: here.call(fetch.job(1)), "name=f'fetch:{i}'"),
    (lambda here, fetch: here.map([fetch.job(1)]), "name=f'fetch:{i}'"),
    (lambda here, fetch: anext(here.as_completed([fetch.job(1)])), "name=f'fetch:{i}'"),
    (lambda here, fetch: here.first(late=here.sleep(1, name=f"s{id(asyncio.current_task())}")), "first(f'first:{i}'"),
    (lambda here, fetch: here.timeout(5).__aenter__(), "name=f'timeout:{i}'"),
    (lambda here, fetch: here.sleep(5), "name=f'sleep:{i}'"),
    (lambda here, fetch: here.receive("a"), "before the branches begin"),
)


@pytest.mark.parametrize(("wait", "cure"), ALONE, ids=lambda value: value if isinstance(value, str) else "")
async def test_the_error_names_what_the_wait_has(app: App, pages: Pages, wait: Any, cure: str) -> None:
    @app.task
    async def boss() -> None:
        async def branch() -> None:
            await wait(current(), pages.fetch)
            await current().sleep(60, name="end")

        await asyncio.gather(branch(), branch())

    job = await boss.enqueue()
    await drain(app)
    assert cure in await error_of(app, job)


@shows("branches answer the messages of one mailbox in any order")
async def test_branches_answer_in_any_order(app: App, clock: HandClock, told: Told) -> None:
    @app.task
    async def boss() -> None:
        here = current()

        async def answer(ask: Any) -> None:
            await here.sleep(ask.value, name=f"think:{ask.value}")
            await ask.answer(ask.value * 2)

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(answer(await here.receive_ask("double", returns=int)))
        await here.sleep(60)

    job = await boss.enqueue()
    async with work(app, concurrency=1):
        first = asyncio.create_task(app.jobs.ask(job, "double", 20, timeout=60))
        await told.until("waiting", id=job.id)
        second = asyncio.create_task(app.jobs.ask(job, "double", 10, timeout=60))
        await told.until("deferred", id=job.id)
        clock.advance(10)
        assert await second == 20
        clock.advance(10)
        assert await first == 40


# --- clocks


@pytest.mark.parametrize("hand_off", [False, True], ids=["claimed", "handed off"])
async def test_a_sleep_does_not_end_early_after_a_late_answer(
    app: App, clock: HandClock, ledger: Ledger, told: Told, monkeypatch: pytest.MonkeyPatch, hand_off: bool
) -> None:
    """The worker does not know when the storage claimed the job, or when the enqueuing process did that for it. The run
    fails, so no storage counts the sleep."""
    if hand_off and not app.storage.capabilities.hand_off:
        pytest.skip("this storage has no direct hand-off")
    monkeypatch.setattr(Spy, "capabilities", Capabilities(hand_off=hand_off))
    late, start_all = [5.0], Executor.start_all
    beats, answers = heartbeats(monkeypatch), Signal().after(monkeypatch, HandOff, "claim_ended")

    def start_late(self: Executor, records: Sequence[Record], *times: float) -> None:
        clock.advance(late.pop() if records and late else 0)
        start_all(self, records, *times)

    monkeypatch.setattr(Executor, "start_all", start_late)

    @app.task(retry=AGAIN)
    async def boss() -> None:
        await asyncio.gather(current().sleep(60), current().step("note", ledger.do, "note"))

    ledger.fail["note"] = 1
    async with work(app, poll=60) as worker:
        # A heartbeat in flight has the time of its call: a storage that has seen a later one would correct its clock.
        await beats.until(lambda: beats.sent, "a heartbeat")
        if hand_off:
            await answers.until(lambda: is_asking(worker), "a request for a job")
            clock.advance(7)
        job = await boss.enqueue()
        await told.until("deferred", id=job.id)
    clock.advance(59)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.READY
    clock.advance(2)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED


def is_asking(worker: Worker) -> bool:
    """Whether an idle worker has left a request for a job with the storage."""
    session = worker._core.session
    assert session is not None
    return session.handoff.outstanding
