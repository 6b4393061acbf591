"""Compositions, from the code that declares them to their results, on every storage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit import Told, work
from treadle import (
    Abort,
    App,
    Conclude,
    Flow,
    Job,
    JobCancelled,
    JobFailed,
    JobSpec,
    Retry,
    State,
    UnknownJob,
    WorkflowFailed,
    all_done,
    at_least,
    chain,
    current,
    flow,
    gather,
)
from treadle.core import defaults
from treadle.core.model import CHILDREN
from treadle.storage.contract import Storage
from treadle_testkit.shows import shows


@dataclass
class Page:
    url: str
    size: int


class Site:
    """The tasks that most of these tests use."""

    def __init__(self, app: App) -> None:
        self.function_done: list[Any] = []

        @app.task(name="number")
        async def number(n: int) -> int:
            self.function_done.append(n)
            return n

        @app.task(name="add")
        async def add(n: int, more: int = 1) -> int:
            self.function_done.append(("add", n))
            return n + more

        @app.task(name="total")
        async def total(numbers: list[int], plus: int = 0) -> int:
            self.function_done.append(numbers)
            return sum(numbers) + plus

        @app.task(name="bad", retry=Retry(attempts=1))
        async def bad() -> int:
            raise ValueError("bad as ever")

        @app.task(name="nothing")
        async def nothing() -> None:
            self.function_done.append("nothing")

        @app.task(name="page")
        async def page(url: str) -> Page:
            return Page(url, len(url))

        self.number, self.add, self.total, self.bad = number, add, total, bad
        self.nothing, self.page = nothing, page


@pytest.fixture
def site(app: App) -> Site:
    return Site(app)


@shows("a parent ends after its children on a worker with one slot")
async def test_a_parent_ends_when_its_children_have_with_one_slot_in_all(app: App, site: Site) -> None:
    @app.task
    async def parent() -> Flow[int]:
        return flow(site.number.job(n) for n in range(3))

    async with work(app, concurrency=1):
        job = await parent.enqueue()
        assert await job.result(timeout=30) == 2
        assert await job.workflow.result(timeout=30) == 2
    assert sorted(site.function_done) == [0, 1, 2]
    progress = await job.workflow.progress()
    assert (progress.total, progress.done, progress.fraction) == (4, 4, 1.0)
    assert progress.states[State.SUCCEEDED] == 4


@shows("`.value(v)` gives a job its own result before its children end")
async def test_the_own_value_of_a_parent_is_available_after_its_run(app: App, site: Site) -> None:
    @app.task
    async def parent() -> Flow[str, int]:
        return flow(site.number.options(delay=3600).job(7)).value("begun")

    async with work(app):
        job = await parent.enqueue()
        assert await job.result(timeout=30) == "begun"
        with pytest.raises(TimeoutError):
            await job.workflow.result(timeout=0)
        await app.jobs.run_now(task="number")
        assert await job.workflow.result(timeout=30) == 7
        assert await job.result(timeout=30) == "begun"
        assert await (await app.jobs.handle(job)).workflow.result(timeout=30) == 7


async def test_a_waiter_for_the_value_of_a_parent_is_woken(
    app: App, site: Site, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is woken by the hint: the next poll is an hour away."""
    monkeypatch.setattr(defaults, "RESULT_POLL", 3600.0)
    go = asyncio.Event()

    @app.task
    async def parent() -> Flow[str, int]:
        await go.wait()
        return flow(site.number.options(delay=3600).job(7)).value("begun")

    async with work(app):
        waiting = asyncio.create_task((await parent.enqueue()).result(timeout=30))
        await told.until("started")  # it has read the row by now, and listens
        go.set()
        assert await waiting == "begun"


@shows(
    "`.then` waits for the jobs before it and for all their children", "`None` adds nothing to the value of a workflow"
)
async def test_then_waits_for_all_descendants_of_the_jobs_before(app: App, site: Site) -> None:
    @app.task
    async def parent(n: int) -> Flow[int]:
        site.function_done.append("parent")
        return flow(site.number.job(n), site.number.job(n + 1))

    async with work(app, concurrency=1):
        job = await flow(parent.job(1), parent.job(5)).then(site.nothing.job()).enqueue()
        assert await job.result(timeout=30) == 6  # None does not replace a value: the last number before it counts
    assert site.function_done[-1] == "nothing"
    assert len(site.function_done) == 7


@shows('`scope="job"` waits for a job and not for its children')
async def test_then_may_wait_for_the_run_alone(app: App, site: Site) -> None:
    @app.task
    async def parent() -> Flow[int]:
        return flow(site.number.options(delay=3600).job(1))

    async with work(app):
        job = await flow(parent.job(), site.add.job(5)).then(site.nothing.job(), scope="job").enqueue()
        [last] = (await app.jobs.list(task="nothing")).records
        await (await app.jobs.handle(last.id)).result(timeout=30)
        assert (await app.jobs.list(task="number", state="ready")).records
        await app.jobs.run_now(task="number")
        await job.ended(timeout=30)


@shows('a job after `scope="job"` does not run when the job before it fails, unless `when=` allows it')
@pytest.mark.parametrize("condition", [None, all_done()])
async def test_a_job_after_the_run_alone_depends_on_its_failure(app: App, site: Site, condition: Any) -> None:
    async with work(app):
        job = await flow(site.bad.job()).then(site.nothing.job(), scope="job", when=condition).enqueue()
        if condition is None:
            with pytest.raises(WorkflowFailed, match="bad as ever"):
                await job.result(timeout=30)
        else:
            assert await job.result(timeout=30) is None
    assert site.function_done == ([] if condition is None else ["nothing"])


@shows("`gather(...).into` passes the results in the order of its jobs")
async def test_gather_passes_the_values_in_order(app: App, site: Site) -> None:
    @app.task
    async def parent() -> Flow[int]:
        return gather(site.number.job(n) for n in (3, 1, 2)).into(site.total, plus=100)

    async with work(app):
        assert await (await parent.enqueue()).result(timeout=30) == 106
        outside = gather(site.number.job(4), site.number.job(5)).into(site.total)
        assert await (await outside.enqueue()).result(timeout=30) == 9
        nobody: Any = gather([]).into(site.total, plus=7)
        assert await (await nobody.enqueue()).result(timeout=30) == 7
    assert [3, 1, 2] in site.function_done


async def test_gather_of_those_that_succeeded(app: App, site: Site) -> None:
    async with work(app):
        some = gather(site.number.job(1), site.bad.job(), site.number.job(3), when=at_least(2)).into(site.total)
        assert await (await some.enqueue()).result(timeout=30) == 4
        all_: Any = gather(site.number.job(1), site.bad.job(), when=all_done()).into(site.total)
        assert await (await all_.enqueue()).result(timeout=30) == 1


@shows("`chain` passes each result to the next job")
async def test_a_chain_passes_each_result_to_the_next_job(app: App, site: Site) -> None:
    late: Any = site.add
    async with work(app):
        job = await chain(site.number.job(1), late.job(more=10), site.add).enqueue()
        assert job.task == "add"
        assert await job.result(timeout=30) == 12
        for_its_own: Any = chain(site.number.job(1), site.add.job(5), pass_result=False)
        assert await (await for_its_own.enqueue()).result(timeout=30) == 6
        alone: Any = chain(site.number.job(1), site.add.options(pass_result=False).job(4, more=3), site.add)
        assert await (await alone.enqueue()).result(timeout=30) == 8
        inside: Any = chain(
            site.number.job(2), gather(site.number.job(3), site.number.job(4)).into(site.total), late.job()
        )
        assert await (await inside.enqueue()).result(timeout=30) == 8


@shows("a failed job cancels the rest of its chain, also where no worker is")
async def test_a_chain_that_breaks_cancels_the_rest_where_no_worker_is(app: App, site: Site) -> None:
    far: Any = site.add.options(queue="nobody-serves-this")
    async with work(app, queues=["default"]):
        last = await chain(site.bad.job(), far.job(), far.job()).enqueue()
        with pytest.raises(JobCancelled):
            await last.result(timeout=30)


async def test_a_flow_inside_a_flow_is_one_job_of_it(app: App, site: Site) -> None:
    inner = flow(site.number.job(1), site.number.job(2)).then(site.add.job(10))
    async with work(app):
        outer = gather(inner, site.number.job(5)).into(site.total)
        assert await (await outer.enqueue()).result(timeout=30) == 16
        deep = flow(flow(flow(site.number.job(9))))
        assert await (await deep.enqueue()).result(timeout=30) == 9


@shows("a task that returns a job continues as that job, and its result is that job's")
async def test_a_task_that_returns_a_job_continues_as_that_job(app: App, site: Site) -> None:
    @app.task(name="loop")
    async def loop(n: int) -> int | JobSpec[int]:
        site.function_done.append(n)
        if n == 3:
            return site.add.job(n, more=100)  # a continuation
        return loop.job(n + 1)

    async with work(app, concurrency=1):
        job = await loop.enqueue(0)
        after = await app.enqueue(site.nothing.job(), after=job)
        assert await job.result(timeout=30) == 103
        await after.result(timeout=30)
    assert site.function_done == [0, 1, 2, 3, ("add", 3), "nothing"]


@pytest.mark.slow
@shows("a task may return itself as its next job two hundred times")
async def test_a_task_may_return_itself_two_hundred_times(app: App) -> None:
    @app.task(name="loop")
    async def loop(n: int) -> int | JobSpec[int]:
        return n if n == 200 else loop.job(n + 1)

    async with work(app):
        assert await (await loop.enqueue(0)).result(timeout=60) == 200


@shows("`reduce=` folds the contributions of a workflow by a built-in function or by one of the app")
async def test_reduce_folds_the_contributions_of_a_workflow(app: App, site: Site) -> None:
    @app.reducer
    def longest(values: list[Page]) -> Page:
        return max(values, key=lambda page: page.size)

    def parent_of(**options: Any) -> Any:
        async def parent() -> Flow[int]:
            return flow(site.number.job(3), site.nothing.job(), site.number.job(4))

        return app.task(name=f"parent-{options['reduce']}", **options)(parent)

    @app.task(reduce="longest")
    async def pages() -> Flow[Page]:
        return flow(site.page.job(url) for url in ("a", "abc", "ab"))

    @app.task(reduce="list")
    async def all_pages() -> Flow[Page]:
        return flow(site.page.job("a"))

    async with work(app, concurrency=1):
        for name, expected in (("last", 4), ("first", 3), ("list", [3, 4]), ("sum", 7)):
            assert await (await parent_of(reduce=name).enqueue()).result(timeout=30) == expected
        assert await (await pages.enqueue()).result(timeout=30) == Page("abc", 3)
        assert await (await all_pages.enqueue()).result(timeout=30) == [Page("a", 1)]
        summed: Any = flow([site.number.job(n) for n in range(10)], reduce="sum")
        assert await (await summed.enqueue()).result(timeout=30) == 45
        listed: Any = flow(site.page.job("xy"), site.number.job(1), reduce="list")
        job = await listed.enqueue()
        assert await job.result(timeout=30) == [Page("xy", 2), 1]
        assert await (await app.jobs.handle(job.id)).result(timeout=30) == [Page("xy", 2), 1]
        empty: Any = flow([], reduce="sum")
        assert await (await app.enqueue(empty)).result(timeout=30) == 0


@shows("ten concurrent contributions count as ten")
async def test_ten_contributions_at_once_are_exactly_ten(app: App) -> None:
    @app.task
    async def one() -> int:
        await asyncio.sleep(0)
        return 1

    @app.task(reduce="sum")
    async def ten() -> Flow[int]:
        return flow(one.job() for _ in range(10))

    async with work(app), work(app):
        jobs = [await ten.enqueue() for _ in range(10)]
        assert [await job.result(timeout=30) for job in jobs] == [10] * 10


@shows("the first `Conclude` is the value of its workflow")
async def test_the_first_conclude_is_the_value_of_the_workflow(app: App, site: Site) -> None:
    @app.task
    async def certain() -> Conclude[int]:
        return Conclude(42)

    @app.task(reduce="sum")
    async def middle() -> Flow[int]:
        return flow(site.number.job(1), certain.job())

    @app.task
    async def top() -> Flow[str, int]:
        return flow(middle.job()).then(site.number.job(7)).value("mine")

    @app.task
    async def itself() -> Flow[int]:
        return flow(site.number.job(1)).value(Conclude(5))

    async with work(app):
        job = await top.enqueue()
        assert await job.workflow.result(timeout=30) == 42
        assert await job.result(timeout=30) == "mine"
        assert await (await itself.enqueue()).workflow.result(timeout=30) == 5
        assert await (await flow(site.number.job(1), certain.job()).enqueue()).result(timeout=30) == 42


@shows("a failed child fails its parent, and `WorkflowFailed` names each failed job")
async def test_a_failed_child_fails_its_parent_and_is_named(app: App, site: Site, told: Told) -> None:
    @app.task(name="parent")
    async def parent() -> Flow[int]:
        return flow(site.bad.job(), site.number.job(1)).then(site.nothing.job())

    async with work(app):
        job = await flow(parent.job(), site.bad.job(), site.number.job(2)).enqueue()
        with pytest.raises(WorkflowFailed) as caught:
            await job.result(timeout=30)
        row = await job.ended()
    assert (row.state, row.reason) == (State.FAILED, CHILDREN)
    assert sorted(error.task for error in caught.value.exceptions) == ["bad", "bad"]
    assert {error.reason for error in caught.value.exceptions} == {"error"}
    assert "bad as ever" in str(caught.value)
    assert "did not succeed" in (row.error or "")
    some = caught.value.split(lambda error: error.task == "bad")  # type: ignore[attr-defined]
    assert isinstance(some[0], WorkflowFailed)
    assert site.function_done.count("nothing") == 0
    with pytest.raises(JobFailed):
        raise caught.value


@shows("a failure that `when=` allows does not fail the workflow")
async def test_an_allowed_failure_does_not_fail_the_workflow(app: App, site: Site) -> None:
    @app.task
    async def reports() -> list[str]:
        return [type(each).__name__ for each in await current().upstream()]

    async with work(app):
        job: Any = await flow(site.bad.job(), site.number.job(1)).then(reports.job(), when=all_done()).enqueue()
        assert await job.result(timeout=30) == ["JobFailed", "int"]
        two = flow(site.bad.job(), site.number.job(1), site.number.job(2), when=at_least(2))
        assert await (await two.enqueue()).result(timeout=30) == 2
        three = flow(site.bad.job(), site.number.job(1), when=at_least(2))
        with pytest.raises(WorkflowFailed):
            await (await three.enqueue()).result(timeout=30)


@shows("a retry of a failed workflow reopens its failed child and the parents")
async def test_a_retried_child_reopens_its_parents(app: App, site: Site, told: Told) -> None:
    well = False

    @app.task(name="flaky", retry=Retry(attempts=1))
    async def flaky() -> int:
        if not well:
            raise ValueError("not yet")
        return 5

    @app.task(name="parent")
    async def parent() -> Flow[int]:
        site.function_done.append("parent")
        return flow(flaky.job()).then(site.add.job(1))

    async with work(app):
        job = await flow(parent.job()).enqueue()
        with pytest.raises(WorkflowFailed):
            await job.result(timeout=30)
        well = True
        await app.jobs.retry(job)  # retries the workflow as a whole
        assert await job.result(timeout=30) == 2
    assert site.function_done.count("parent") == 1
    ended = [event for event in told.of("workflow.ended") if event.id == job.id]
    assert [event.record.state for event in ended if event.record] == ["failed", "succeeded"]


@shows("a reducer that raises fails the workflow and is not called again")
async def test_a_reducer_that_raises_fails_the_workflow_once(app: App, site: Site) -> None:
    calls: list[int] = []

    @app.reducer("worse")
    def worse(values: list[int]) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError("no values")
        return 11

    @app.task(reduce="worse")
    async def parent() -> Flow[int]:
        site.function_done.append("parent")
        return flow(site.number.job(1))

    async with work(app):
        job = await parent.enqueue()
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            await job.result(timeout=30)
        assert len(calls) == 1
        await app.jobs.retry(job)  # folded again; its function is not called again
        assert await job.result(timeout=30) == 11
    assert site.function_done.count("parent") == 1


@shows("a workflow value of the wrong type or size fails the workflow")
async def test_a_value_of_the_wrong_type_or_size_fails_the_workflow(storage: Storage) -> None:
    from treadle import Sizes

    async with App(storage=storage, sizes=Sizes(result=50)) as app:
        site = Site(app)

        @app.task
        async def wrong() -> Flow[str]:
            mixed: Any = flow(site.number.job(1))
            return mixed

        @app.task(reduce="list")
        async def long() -> Flow[int]:
            return flow(site.number.job(1_000_000_000 + n) for n in range(10))

        async with work(app):
            with pytest.raises(JobFailed, match="expected str"):
                await (await wrong.enqueue()).result(timeout=30)
            with pytest.raises(JobFailed, match="limit is 50"):
                await (await long.enqueue()).result(timeout=30)


@shows("children inherit the deadline, the headers and the lane of their parent, and nothing else")
async def test_children_take_deadline_headers_and_lane_and_nothing_else(app: App, site: Site, told: Told) -> None:
    @app.task(name="parent")
    async def parent() -> Flow[int]:
        return flow(
            site.number.options(delay=600, headers={"b": "own"}).job(1),
            site.number.options(delay=600, expires=900, lane="l2").job(2),
            site.number.options(delay=600, lane=("l3", 0.5)).job(3),
        )

    async with work(app):
        options: Any = {"expires": 3600, "headers": {"a": "x", "b": "y"}, "priority": 7, "labels": ["q"]}
        options["lane"] = ("l1", 4)
        job = await parent.options(**options).enqueue()
        await told.until("waiting")
    one, two, three = (await app.jobs.list(task="number", order="oldest")).records
    assert one.job.deadline is not None
    assert 3500 < one.job.deadline <= 3600
    assert (dict(one.job.headers), one.job.lane, one.job.priority, one.job.labels) == (
        {"a": "x", "b": "own"},
        "l1",
        0,
        (),
    )
    assert one.job.stride == 1 / 4  # the weight belongs to the name, so its children get the same turns
    assert (two.job.deadline, two.job.lane, two.job.stride) == (900, "l2", 1)
    assert (three.job.lane, three.job.stride) == ("l3", 2)
    assert one.job.parent == one.job.root == job.id


@shows("the id of a child is known before the child is stored", "an attempt that fails stores none of its children")
async def test_ids_are_known_before_anything_is_sent_and_derived_from_the_run(app: App, site: Site) -> None:
    made: list[list[str]] = []

    @app.task(name="parent", retry=Retry(attempts=2, base=0))
    async def parent() -> Flow[int]:
        specs = [site.number.job(n) for n in range(3)]
        made.append([spec.id for spec in specs])
        if len(made) == 1:
            raise ValueError("once")
        return flow(specs)

    async with work(app):
        job = await parent.enqueue()
        await job.result(timeout=30)
    first, second = made
    assert not set(first) & set(second)
    assert second == sorted(second)
    rows = (await app.jobs.list(parent=job.id)).records
    assert sorted(row.id for row in rows) == second  # nothing of the failed attempt is stored


@pytest.mark.slow
async def test_a_flow_of_ten_thousand(app: App, site: Site) -> None:
    specs = [site.number.job(n) for n in range(10_000)]
    job = await flow(specs).enqueue()
    assert (await job.workflow.progress()).total == 10_001


async def test_functions_in_threads_and_processes_may_return_flows(app: App, site: Site) -> None:
    @app.task
    def in_thread() -> Flow[int]:
        return flow(site.number.job(1), site.number.job(2))

    async with work(app):
        assert await (await in_thread.enqueue()).result(timeout=30) in (1, 2)


@shows("`workflow.ended` is emitted once for each workflow")
async def test_the_end_of_a_workflow_is_emitted_once(app: App, site: Site, told: Told) -> None:
    async with work(app), work(app):
        jobs = [await flow(site.number.job(n), site.number.job(n)).enqueue() for n in range(5)]
        for job in jobs:
            await job.result(timeout=30)
        await told.until("workflow.ended", 5)
        single = await site.number.enqueue(1)
        await single.result(timeout=30)
    ends = [event.id for event in told.of("workflow.ended")]
    last = told.of("workflow.ended", single.id)[0].record
    assert last is not None
    assert last.value == last.result == "1"  # as of a workflow of several jobs
    assert sorted(ends) == sorted([*(job.id for job in jobs), single.id])
    assert not [event for event in told.events if event.task == "treadle.flow" and event.name == "started"]


@shows("a cancellation of a workflow cancels all its jobs")
async def test_cancelling_a_workflow_cancels_all_of_it(app: App, site: Site, told: Told) -> None:
    @app.task(name="parent")
    async def parent() -> Flow[int]:
        return flow(site.number.options(delay=600).job(1), site.number.options(delay=600).job(2))

    async with work(app):
        job = await flow(parent.job()).enqueue()
        await told.until("waiting")
        assert await app.jobs.cancel(job) == 4
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
    assert (await job.workflow.progress()).states[State.CANCELLED] == 4
    assert [event.id for event in told.of("workflow.ended")] == [job.id]


@shows("a job that a task makes and does not return is not stored")
async def test_a_job_that_a_task_makes_and_does_not_return_is_not_stored(app: App, site: Site) -> None:
    @app.task(name="parent")
    async def parent() -> str:
        flow([site.number.job(1), site.number.job(2)])
        site.number.options(id="forgotten").job(3)
        return "done"

    async with work(app):
        job = await parent.enqueue()
        assert await job.workflow.result(timeout=30) == "done"
    assert [row.job.id for row in (await app.jobs.list()).records] == [job.id]
    with pytest.raises(UnknownJob):
        await app.jobs.get("forgotten")


@shows("a job that a run enqueues directly does not belong to the workflow of the run")
async def test_a_job_that_a_run_enqueues_directly_is_independent_of_it(app: App, site: Site) -> None:
    """It starts while its run continues, survives the run's failure, and is no part of its workflow."""
    beside: list[Job[int]] = []

    @app.task(name="parent", retry=Retry(attempts=1))
    async def parent() -> None:
        beside.append(await site.number.enqueue(7))
        assert await beside[0].result(timeout=30) == 7  # it ends before its run does
        beside.append(await site.number.options(delay=60).enqueue(8))
        raise ValueError("no")

    async with work(app):
        job = await parent.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
    first, second = [await app.jobs.get(each) for each in beside]
    assert (first.state, second.state) == (State.SUCCEEDED, State.READY)
    assert (first.job.parent, second.job.parent) == (None, None)
    assert job.id not in (first.job.root, second.job.root)
    assert (await app.jobs.get(job)).after == ()


@shows("a workflow waits for an id that is not stored yet")
async def test_a_workflow_waits_for_an_id_that_is_stored_later(app: App, site: Site) -> None:
    async with work(app):
        job = await app.enqueue(site.nothing.job(), after="to-come", wait_timeout=600)
        await site.number.options(id="to-come").enqueue(1)
        await job.result(timeout=30)


async def test_an_abort_in_a_child_is_its_reason(app: App) -> None:
    @app.task(name="gives-up")
    async def gives_up() -> int:
        raise Abort("no such thing")

    async with work(app):
        with pytest.raises(WorkflowFailed) as caught:
            await (await flow(gives_up.job()).enqueue()).result(timeout=30)
    [error] = caught.value.exceptions
    assert (error.reason, error.error) == ("aborted", "no such thing")


async def test_a_function_in_a_process_of_its_own_may_return_a_flow() -> None:
    from tests.worker.process_tasks import app, branches

    async with app, work(app):
        job = await branches.enqueue(3)
        assert await job.result(timeout=60) in (1, 2, 3)  # the result of the leaf that ends last; they run in threads
        progress = await job.workflow.progress()
    assert (progress.total, progress.done) == (4, 4)
