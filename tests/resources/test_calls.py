"""A dependency is no part of a call: of the payload, of its schema, of an assertion, of a direct call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from treadle import App, BadArgument, BadDependency, JobFailed, Retry, Worker, chain, depends
from treadle.core.model import NewJob
from treadle.serialization.call_schema import call_schema
from treadle_testkit.shows import shows

if TYPE_CHECKING:
    from decimal import Decimal  # an annotation that only type checkers know

app = App("memory://", retry=Retry(attempts=1))


def pool() -> Any:
    return "pool"


@app.task(name="use")
async def use(n: int, m: int = 2, *rest: int, on: Decimal = depends(pool), **more: int) -> str:
    return f"{n} {m} {on}"


@app.task(name="use_here")
def use_here(n: int, on: Decimal = depends(pool)) -> str:
    return f"{n} {on}"


@app.batch(name="use_many", max_wait=0)
async def use_many(items: list[int], on: Decimal = depends(pool)) -> list[str]:
    return [f"{n} {on}" for n in items]


@shows("a dependency is no part of a call, and giving one is refused")
def test_a_dependency_is_no_part_of_the_payload() -> None:
    assert use.job(1).new.payload == "[1]"
    assert use_many.job(1).new.payload == "[1]"
    for call in (lambda: use.job(1, on=3), lambda: use_here.job(1, on=3)):  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="'on' is a dependency, which the worker provides: leave it out"):
            call()
    with pytest.raises(BadArgument, match="at most 1 positional arguments, got 2; the worker provides on"):
        use_here.job(1, 2)  # type: ignore[arg-type]
    schema = call_schema(use_here._core.signature)
    assert schema is not None
    assert (list(schema["properties"]), schema["required"]) == (["n"], ["n"])
    assert "'on'" not in str(call_schema(use._core.signature))


async def test_other_programs_cannot_pass_a_dependency() -> None:
    async with app:
        payload = '{"args": [1], "kwargs": {"on": 3}}'
        await app.storage.enqueue([NewJob(id="theirs", task="use", payload=payload)])
        late = await app.enqueue(chain(use_here.job(1), use_here.late()))
        async with Worker(app):
            with pytest.raises(JobFailed, match="'on' is a dependency"):
                await app.jobs.job_of(await app.jobs.get("theirs")).result(60)
            with pytest.raises(JobFailed, match="expected int"):
                await late.result(60)


async def test_a_task_called_directly_takes_its_dependencies_as_arguments() -> None:
    fake: Any = "fake"
    assert await use(1, on=fake) == "1 2 fake"
    assert use_here(1, fake) == "1 fake"
    assert await use_many([1], on=fake) == ["1 fake"]
    for name, call in {
        "use": lambda: use(1),
        "use_here": lambda: use_here(1),
        "use_many": lambda: use_many([1]),
    }.items():
        with pytest.raises(BadDependency, match=rf"{name}: a direct call needs on=\.\.\.: only a worker provides them"):
            call()
    marker: Any = use_here.function(1).split()[1]
    assert marker.startswith("depends(")
    with pytest.raises(AttributeError, match=r"has no value here: a worker provides it .* In a direct call, pass"):
        depends(pool).fetch  # noqa: B018


def test_tasks_without_dependencies_are_called_as_they_are() -> None:
    @app.task(name="plain")
    async def plain(n: int) -> None: ...

    core = app.find_task("plain")._core
    assert core.injector is None
    assert core.call is core.function


async def test_assertions_about_calls() -> None:
    async with app.testing() as t:
        await use_here.enqueue(n=1)
        t.assert_enqueued(use_here, 1)
        t.assert_enqueued(use_here.options(queue="default").job(1))
        t.assert_not_enqueued(use_here, 2)
        await t.drain(raise_errors=True)
