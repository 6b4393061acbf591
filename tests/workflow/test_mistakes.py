"""Expressions that cannot be composed, and where the error is raised."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit import work
from treadle import App, BadArgument, BadOption, JobFailed, Retry, at_least, chain, flow, gather
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows


@pytest.fixture
def bare() -> App:
    return App(storage=MemoryStorage())


async def test_an_invalid_flow_raises_where_it_is_written(bare: App) -> None:
    @bare.task(name="n")
    async def number(n: int) -> int:
        return n

    @bare.task(name="two")
    async def two(a: int, b: int) -> int:
        return a + b

    @bare.task(name="late")
    async def late(n: int = 0, m: int = 1) -> int:
        return n + m

    other = App(storage=MemoryStorage())

    @other.task(name="far")
    async def far(n: int = 0) -> int:
        return n

    any_: Any = number
    one, more = number.job(1), number.job(2)
    sent = number.job(3)
    await bare.enqueue(sent)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: flow(one, one), BadOption, "twice"),
        (lambda: flow(one).then(one), BadOption, "given twice|already has"),
        (lambda: flow(sent), BadOption, "already enqueued"),
        (lambda: flow(one, far.job()), BadOption, "another app"),
        (lambda: flow(one, 5), BadOption, "expected specs"),
        (lambda: flow("one"), BadOption, "expected specs"),
        (lambda: flow(one, reduce="most"), BadOption, "unknown reducer 'most'"),
        (lambda: flow(one, when="all"), BadOption, "all_succeeded"),
        (lambda: flow(one, when=at_least(2)), BadOption, "at most as many"),
        (lambda: flow(one).then(more, when=at_least(2)), BadOption, "at most as many"),
        (lambda: flow(one).then(more, scope="all"), BadOption, "scope"),
        (lambda: flow(one).then(), BadOption, "at least one"),
        (lambda: flow(one).then(number.options(after="x").job(1)), BadOption, "already has an after="),
        (lambda: flow(one).value(1).then(more), BadOption, "before value"),
        (lambda: flow(any_.job()), BadArgument, "'n' is missing"),
        (lambda: gather(one).into(two, b=1, colour=1), BadArgument, "colour"),
        (lambda: gather(one).into(5), BadOption, "expected a task"),
        (lambda: gather(one).enqueue(), BadOption, r"write gather\(\.\.\.\)\.into\(task\)"),
        (lambda: gather(one).then(more), BadOption, r"write gather\(\.\.\.\)\.into\(task\)"),
        (lambda: flow(gather(one)), BadOption, r"write gather\(\.\.\.\)\.into\(task\)"),
        (lambda: chain(one, gather(more)), BadOption, r"write gather\(\.\.\.\)\.into\(task\)"),
        (lambda: bare.sync.enqueue(gather(one)), BadOption, r"write gather\(\.\.\.\)\.into\(task\)"),
        (lambda: bare.sync.enqueue([gather(one)]), BadOption, r"write gather\(\.\.\.\)\.into\(task\)"),
        (chain, BadOption, "at least one step"),
        (lambda: chain(one, number.job(5)), BadArgument, "at most 0"),
        (lambda: chain(one, two.job(5)), BadArgument, r"'b' is missing.* give the rest by name: two\.job\(b=\.\.\.\)"),
        (
            lambda: chain(one, late.job(5)),
            BadArgument,
            r"found 5 .* by name: late\.job\(m=\.\.\.\)",
        ),
        (lambda: chain(one, 5), BadOption, "expected specs"),
        (lambda: bare.task(name="x", reduce="most")(lambda: None), BadOption, "unknown reducer"),
        (lambda: bare.reducer("sum")(sum), BadOption, "already"),
    ]
    for build, kind, match in wrong:
        with pytest.raises(kind, match=match):
            build()
    with pytest.raises(BadOption, match="belongs to no app"):
        await flow([]).enqueue()
    with pytest.raises(BadOption, match="another app"):
        await bare.enqueue(far.job())
    with pytest.raises(BadOption, match="value"):
        await flow(number.job(1)).value(2).enqueue()
    assert len((await bare.jobs.list()).records) == 1
    await bare.close()


async def test_a_circle_is_refused_in_each_way_to_send_it(bare: App) -> None:
    @bare.task(name="n")
    async def number(n: int) -> int:
        return n

    a = number.options(id="a", after="b", wait_timeout=60).job(1)
    b = number.options(id="b", after="c", wait_timeout=60).job(2)
    c = number.options(id="c", after="a", wait_timeout=60).job(3)
    for attempt in (lambda: bare.enqueue(a, b, c), lambda: flow(a, b, c).enqueue()):
        with pytest.raises(BadOption, match="wait for each other: a -> b -> c -> a"):
            await attempt()
    assert await bare.enqueue([]) == []
    assert (await bare.jobs.list()).records == ()
    await bare.close()


@shows("a task that returns an invalid flow fails and stores none of its jobs")
async def test_a_task_that_returns_an_invalid_flow_fails_and_stores_nothing(bare: App) -> None:
    @bare.task(name="n")
    async def number(n: int) -> int:
        return n

    shared = number.job(1)

    @bare.task(name="twice", retry=Retry(attempts=1))
    async def twice() -> Any:
        return flow(shared, shared)

    @bare.task(name="late", retry=Retry(attempts=1))
    async def late() -> Any:
        lacking: Any = number
        return lacking.job()

    @bare.task(name="unencodable", retry=Retry(attempts=1))
    async def unencodable() -> Any:
        wrong: Any = number
        return flow(number.job(1), wrong.job("one"))

    @bare.task(name="bad-value", retry=Retry(attempts=1))
    async def bad_value() -> Any:
        return flow(number.job(1)).value(object())

    async with work(bare):
        for task, match in ((twice, "twice"), (late, "missing"), (unencodable, "'n'"), (bad_value, "stored")):
            with pytest.raises(JobFailed, match=match):
                await (await task.enqueue()).result(timeout=30)
    assert (await bare.jobs.list(task="n")).records == ()
