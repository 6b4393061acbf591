"""`current().spent(...)`: a run reports its real costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle import (
    Abort,
    App,
    BadOption,
    Defer,
    Limit,
    Retry,
    State,
    current,
    current_batch,
)
from treadle.errors import NotRunning, Unsupported
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

KINDS = pytest.mark.parametrize("kind", ["async", "thread"])
RESERVED = {"tokens:ann": 60, "requests": 1}
ONCE = Retry(attempts=1)


@pytest.fixture
async def budget(app: App) -> None:
    await app.limits.set(Limit("tokens", rate=100, per=86_400), Limit("requests", rate=10, per=86_400))


async def used(app: App, key: str = "tokens:ann") -> int:
    return next((use.starts for use in await app.limits.list() if use.key == key), 0)


@shows("a run that reports its real cost makes room in the budget for the next one")
@KINDS
async def test_a_run_reports_its_real_cost(app: App, budget: None, kind: str) -> None:
    def call(tokens: int) -> None:
        current().spent(tokens=tokens - 5)
        current().spent({"tokens:ann": 3}, tokens=2)

    async def call_async(tokens: int) -> None:
        call(tokens)

    task = app.task(name="call", limits=RESERVED)(call if kind == "thread" else call_async)
    jobs = [await task.enqueue(tokens) for tokens in (10, 45, 45)]
    await drain(app)
    assert [(await app.jobs.get(job)).state for job in jobs] == [State.SUCCEEDED, State.SUCCEEDED, State.READY]
    assert (await used(app), await used(app, "requests")) == (55, 2)


@KINDS
@pytest.mark.parametrize("end", ["abort", "defer", "retry", "error", "timeout", "suspend", "unstorable"])
async def test_each_end_of_a_run_keeps_its_real_cost(
    app: App, budget: None, clock: HandClock, kind: str, end: str
) -> None:
    """The sum of two runs: the second one spends nothing, and says so."""
    runs = 0
    ends: dict[str, Exception] = {
        "abort": Abort("no"),
        "defer": Defer(5),
        "retry": ConnectionError("again"),
        "error": ValueError("boom"),
        "timeout": TimeoutError("too long"),
    }

    def call() -> Any:
        nonlocal runs
        runs += 1
        current().spent(tokens=0 if runs > 1 else 7)
        if end in ends and runs == 1:
            raise ends[end]
        if end == "suspend" and kind == "thread":
            current().sync.sleep(5)
        return object() if end == "unstorable" else None

    async def call_async() -> Any:
        result = call()
        if end == "suspend":
            await current().sleep(5)
        return result

    task = app.task(name="call", limits=RESERVED, retry=Retry(attempts=2, base=5, jitter=0))(
        call if kind == "thread" else call_async
    )
    await task.enqueue()
    await drain(app)
    clock.advance(6)
    await drain(app)
    assert await used(app) == 7
    assert await used(app, "requests") == runs


async def test_a_limit_that_is_not_named_keeps_its_cost(app: App, budget: None) -> None:
    @app.task(limits=RESERVED)
    async def call() -> None:
        current().spent(requests=4)

    await call.enqueue()
    await drain(app)
    assert (await used(app), await used(app, "requests")) == (60, 4)


async def test_a_name_means_each_limit_of_that_name(app: App, budget: None) -> None:
    """A call spends the budget of its user and that of the organization."""

    @app.task(limits={"tokens:ann": 60, "tokens:org": 60, "requests": 1})
    async def call() -> None:
        current().spent(tokens=5)
        current().spent({"tokens:org": 2})

    await call.enqueue()
    await drain(app)
    assert (await used(app), await used(app, "tokens:org")) == (5, 7)


@pytest.mark.parametrize(
    ("costs", "by_name", "problem"),
    [
        (None, {"token": 1}, "limits that the job names, found 'token'; its limits are tokens:ann, requests"),
        ({"tokens": 1}, {}, "limits that the job names, found 'tokens'; its limits are tokens:ann, requests"),
        (None, {"tokens": -1}, "tokens: expected a whole number of 0 to 1,000,000,000, found -1"),
        (None, {"tokens": 1.5}, "tokens: expected a whole number of 0 to 1,000,000,000, found 1.5"),
        (None, {"tokens": True}, "expected a whole number"),
    ],
)
async def test_a_wrong_cost_is_refused(app: App, budget: None, costs: Any, by_name: Any, problem: str) -> None:
    @app.task(limits=RESERVED, retry=ONCE)
    async def call() -> str:
        with pytest.raises(BadOption) as error:
            current().spent(costs, **by_name)
        return str(error.value)

    job = await call.enqueue()
    await drain(app)
    assert problem in await job.result(0)
    assert await used(app) == 60


async def test_the_error_of_a_job_without_limits_names_the_option(app: App) -> None:
    @app.task(retry=ONCE)
    async def call() -> str:
        with pytest.raises(BadOption, match="give its task or the step limits="):
            current().spent(tokens=1)
        return "asked"

    job = await call.enqueue()
    await drain(app)
    assert await job.result(0) == "asked"
    with pytest.raises(NotRunning):
        current().spent(tokens=1)


async def test_threads_of_one_run_add_up(app: App, budget: None) -> None:
    @app.task(limits=RESERVED)
    async def call() -> None:
        def add() -> None:
            for _ in range(100):
                current().spent(requests=1)

        await asyncio.gather(*(asyncio.to_thread(add) for _ in range(4)))

    await call.enqueue()
    await drain(app)
    assert await used(app, "requests") == 400


async def test_each_job_of_a_batch_has_spent_its_own(app: App, budget: None) -> None:
    @app.batch(size=3, max_wait=0, limits=RESERVED)
    async def call(items: list[int]) -> list[None]:
        for run, item in zip(current_batch(), items, strict=True):
            run.spent(tokens=item)
        return [None] * len(items)

    await app.limits.set(Limit("tokens", rate=1_000, per=86_400))
    for item in (1, 20, 300):
        await call.enqueue(item)
    await drain(app)
    assert await used(app) == 321


async def test_the_transaction_of_a_run_stores_what_it_has_spent(app: App, budget: None) -> None:
    @app.task(limits=RESERVED, retry=ONCE)
    async def call() -> None:
        try:
            async with current().transaction():
                current().spent(tokens=8)
        except Unsupported:
            current().spent(tokens=8)

    await call.enqueue()
    await drain(app)
    assert await used(app) == 8


# --- steps


@shows("a step with limits of its own reports the real cost of its try")
@KINDS
async def test_a_step_with_limits_reports_the_cost_of_its_try(app: App, budget: None, kind: str) -> None:
    """The job spends nothing, and a replay of its function changes nothing."""

    def ask(tokens: int) -> int:
        current().spent(tokens=tokens)
        return tokens

    async def talk() -> int:
        step = current().step.options(limits={"tokens:ann": 60})
        return await step("one", ask, 10) + await step("two", ask, 20)

    def talk_in_thread() -> int:
        step = current().sync.step.options(limits={"tokens:ann": 60})
        return step("one", ask, 10) + step("two", ask, 20)

    job = await app.task(name="talk")(talk_in_thread if kind == "thread" else talk).enqueue()
    await drain(app)
    assert await job.result(0) == 30
    assert await used(app) == 30


async def test_a_try_counts_only_what_its_step_has_spent(app: App, budget: None) -> None:
    """Its run repeats the function of the job, which says for itself what it has spent."""

    def ask(tokens: int) -> int:
        current().spent(tokens=tokens)
        return tokens

    @app.task(limits={"requests": 1}, retry=ONCE)
    async def talk() -> None:
        current().spent(requests=3)
        await current().step("plain", plain)
        await current().step.options(limits={"tokens:ann": 60})("one", ask, 10)

    async def plain() -> None:
        current().spent(requests=2)

    await talk.enqueue()
    await drain(app)
    # The first run of the job makes the plain step, and its second one begins when the step is over. The try in between
    # has the limits of the job, too, and keeps its reservation of them.
    assert (await used(app), await used(app, "requests")) == (10, 3 + 2 + 1 + 3)


async def test_each_try_of_a_step_has_spent_its_own(app: App, budget: None, clock: HandClock) -> None:
    tries = 0

    def ask() -> None:
        nonlocal tries
        tries += 1
        current().spent(tokens=tries * 10)
        if tries < 3:
            raise ConnectionError

    @app.task
    async def talk() -> None:
        step = current().step.options(limits={"tokens:ann": 40}, retry=Retry(attempts=3, base=1, jitter=0))
        await step("ask", ask)

    await talk.enqueue()
    for _ in range(3):
        await drain(app)
        clock.advance(10)
    assert (tries, await used(app)) == (3, 60)


@shows("a step that got a 429 rests its own partition of a limit")
async def test_a_step_with_limits_rests_the_partition_after_a_429(app: App, budget: None, clock: HandClock) -> None:
    asked: list[str] = []

    def ask(tenant: str) -> str:
        asked.append(tenant)
        if tenant == "ann" and asked.count("ann") == 1:
            current().spent(tokens=0)
            raise Defer(30, limit="tokens:ann")
        return tenant

    @app.task
    async def talk(tenant: str) -> str:
        return await current().step.options(limits={f"tokens:{tenant}": 60})("ask", ask, tenant)

    jobs = [await talk.enqueue(tenant) for tenant in ("ann", "bob")]
    await drain(app)
    later = await talk.enqueue("ann")
    await drain(app)
    assert (sorted(asked), await jobs[1].result(0)) == (["ann", "bob"], "bob")
    assert (await app.jobs.get(later)).state is State.WAITING
    clock.advance(31)
    await drain(app)
    assert sorted(asked) == ["ann", "ann", "bob"]
    assert await used(app) == 60


# --- over the budget


@shows("a job that is over its budget is blocked, with what is used, when there is room, and how to raise it")
async def test_a_job_over_its_budget_is_explained(app: App, budget: None, clock: HandClock) -> None:
    @app.task(limits=RESERVED)
    async def call() -> None:
        current().spent(tokens=70)

    await call.enqueue()
    await drain(app)
    clock.advance(3_600)
    jobs = [await call.enqueue() for _ in range(2)]
    await drain(app)
    sentence = await app.jobs.explain(jobs[0])
    assert "blocked until the limit 'tokens:ann' has room (70 of 100 starts per 86400 s used, it needs 60" in sentence
    assert "there is room for the first of them at" in sentence
    assert "in 82,800 s" in sentence
    assert "`treadle limits set tokens --rate 200 --per 86400` doubles the rate" in sentence
    await app.limits.set(Limit("tokens", rate=200, per=86_400))
    await drain(app)
    assert (await app.jobs.get(jobs[0])).state is State.SUCCEEDED
