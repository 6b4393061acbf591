"""The types that a user's editor and mypy --strict infer. Type checkers read it in `dev.py check`."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, assert_type

from treadle import Abort, App, Failure, Job, JobSpec, Key, Options, Record, Retry, Worker, at_least, current
from treadle.tasks.task import Task
from treadle.testing import SyncTesting

app = App("memory://")


@app.task
async def double(n: int) -> int:
    return n * 2


@app.task(queue="mail", retry=Retry(attempts=3), timeout=60, limits=["smtp"], labels={"a": 1}, key=Key("x"))
async def send(to: str, *, body: str = "") -> list[str]:
    return [to, body]


def urgent_if_small(n: int) -> Options:
    return {"priority": -n}


def final_on_the_third(error: BaseException, failure: Failure) -> Abort | None:
    return Abort() if failure.attempt == 3 else None


@app.task(priority=5, options=urgent_if_small, on_error=final_on_the_third)
def half(n: int) -> float:
    return n / 2


a_task: Task[[int], int, Coroutine[Any, Any, int]] = double
a_plain_one: Task[[int], float, float] = half


async def a_call_is_the_call() -> None:
    assert_type(await double(1), int)
    assert_type(half(1), float)
    assert_type(await send("a", body="b"), list[str])


async def parameters_and_results_are_kept() -> None:
    assert_type(await double.enqueue(1), Job[int, int])
    assert_type(await (await double.enqueue(1)).result(timeout=timedelta(seconds=1)), int)
    assert_type(await (await half.enqueue(1)).result(), float)
    assert_type(double.job(1), JobSpec[int])
    assert_type(await send.options(delay=30, priority=9, key="k").enqueue("a", body="b"), Job[list[str], list[str]])
    assert_type(send.options(after=double.job(1), when=at_least(1)).job("a"), JobSpec[list[str]])


async def one_spec_is_one_job_and_many_are_a_list() -> None:
    assert_type(await app.enqueue(double.job(1)), Job[int, int])
    assert_type(await app.enqueue(double.job(1), after="x", wait_timeout=3), Job[int, int])
    assert_type(await app.enqueue([double.job(1), double.job(2)]), list[Job[int, int]])
    assert_type(await app.enqueue(double.job(n) for n in range(3)), list[Job[int, int]])
    assert_type(await app.enqueue(double.job(1), half.job(1)), list[Job[Any, Any]])


def synchronous_code() -> None:
    assert_type(double.enqueue_sync(1), Job[int, int])
    assert_type(double.enqueue_sync(1).result_sync(timeout=timedelta(seconds=1)), int)
    assert_type(half.enqueue_sync(1).result_sync(), float)
    assert_type(send.options(delay=30, within=None).enqueue_sync("a", body="b"), Job[list[str], list[str]])
    assert_type(double.enqueue_sync(1).ended_sync(), Record)
    assert_type(double.enqueue_sync(1).workflow.result_sync(5), int)
    assert_type(app.stub("far").enqueue_sync(1), Job[Any, Any])


def the_same_from_threads() -> None:
    job = app.sync.enqueue(double.job(1))
    assert_type(job, Job[int, int])
    assert_type(app.sync.result(job, timeout=1), int)
    assert_type(app.sync.enqueue([double.job(1)]), list[Job[int, int]])
    assert_type(app.sync.jobs.get(job), Record)
    assert_type(app.sync.jobs.list(queue="mail", limit=5).records[0], Record)
    assert_type(app.sync.jobs.cancel(job, tree=False), int)
    assert_type(app.sync.schedules.get("daily").name, str)


def a_fixture() -> Iterator[SyncTesting]:
    with app.sync.testing() as t:
        yield t


async def a_stub_promises_nothing() -> None:
    stub = app.stub("mail.send", queue="mail")
    assert_type(await stub.enqueue(1, x=2), Job[Any, Any])
    assert_type(stub.options(delay=1).job(), JobSpec[Any])


def a_job_of_a_subclass_is_a_job_of_its_class(
    job: Job[bool, bool], spec: JobSpec[bool]
) -> tuple[Job[int, int], JobSpec[int]]:
    return job, spec


async def inside() -> None:
    assert_type(current().id, str)
    assert_type(current().attempt, int)
    async with Worker(app, {"mail": 3}, concurrency=5, tasks=[double, "half"]) as worker:
        assert_type(worker, Worker)
