"""The types that a type checker infers for batch tasks and durable code. Only type checkers read it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, assert_type

from treadle import App, BatchTask, Job, JobSpec, Retry, current, current_batch
from treadle.execution.context import Context

app = App("memory://")


@app.batch(size=50, max_wait=0.1, by=len, retry=Retry(attempts=3), limits=["gpu"])
async def embed(texts: Sequence[str]) -> Sequence[list[float] | Exception]:
    return [[float(len(text))] for text in texts]


@app.batch()
def double(numbers: list[int]) -> list[int]:
    return [2 * n for n in numbers]


an_async_one: BatchTask[str, list[float]] = embed
a_plain_one: BatchTask[int, int] = double


async def an_item_is_a_job() -> None:
    assert_type(await embed.enqueue("hi"), Job[list[float], list[float]])
    assert_type(await (await embed.enqueue("hi")).result(), list[float])
    assert_type(double.job(1), JobSpec[int])
    assert_type(await double.options(delay=timedelta(hours=1)).enqueue(1), Job[int, int])
    assert_type(await app.enqueue(double.job(n) for n in range(3)), list[Job[int, int]])
    assert_type(current_batch(), tuple[Context, ...])


class Receipt:
    number: int


async def charge(order: int, *, currency: str = "EUR") -> Receipt:
    raise NotImplementedError


def now() -> datetime:
    raise NotImplementedError


async def steps_keep_their_types() -> None:
    here = current()
    assert_type(await here.step("charge", charge, 7, currency="USD"), Receipt)
    assert_type(await here.step("now", now), datetime)
    limited = here.step.options(limits=["bank", "tenant:7"], cost=2)
    assert_type(await limited("charge", charge, 7, currency="USD"), Receipt)
    assert_type(await here.sleep(3600), None)
    assert_type(await here.wait_for("paid", timeout=60), Any)
    assert_type(await here.wait_for("paid", returns=Receipt), Receipt)
    assert_type(here.step_key("charge"), str)
    async with here.once("monday") as first:
        assert_type(first, bool)
    await app.jobs.signal("id", "paid", {"any": "value"})


def so_do_those_in_threads() -> None:
    here = current().sync
    assert_type(here.step("now", now), datetime)
    assert_type(here.step.options(limits=["bank"])("now", now), datetime)
    assert_type(here.wait_for("paid", timeout=60, returns=int), int)
    assert_type(here.step_key("charge"), str)
    with here.once("monday") as first:
        assert_type(first, bool)
