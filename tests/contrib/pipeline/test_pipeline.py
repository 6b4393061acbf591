"""Pipelines, on every storage: the fields that travel, fan-outs, choices of the next step, and what users can read of
them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit import work
from tests.waiting import Signal
from treadle import App, BadOption, JobCancelled, Limit, Retry, State, WorkflowFailed, current_batch
from treadle.contrib.pipeline import Pipeline, Step
from treadle_testkit.shows import shows


@shows(
    "the fields of a run pass from step to step, and each step adds to them",
    "a handler takes fields as its parameters and may return nothing",
)
async def test_the_state_travels_and_each_step_adds_to_it(app: App) -> None:
    p = Pipeline("p", [Step("one"), Step("two"), Step("three")], labels=["user"], app=app)
    seen: dict[str, Any] = {}

    @p.handler("one")
    async def one(user: int) -> dict[str, Any]:
        return {"a": user + 1, "b": 0}

    @p.handler("two")
    def two(a: int, missing: str = "default", **rest: Any) -> dict[str, Any]:
        seen.update(rest, missing=missing)
        return {"b": a * 2}

    @p.handler("three")
    async def three() -> None: ...

    async with p.worker(poll=0.01):
        run = await p.start(user=62)
        assert await run.result(timeout=30) == {"user": 62, "a": 63, "b": 126}
    assert seen == {"user": 62, "b": 0, "missing": "default"}
    state = await run.state()
    assert (state.step, state.state, state.fields["b"]) == ("three", State.SUCCEEDED, 126)
    first = await app.jobs.get(run.id)
    assert (first.job.queue, first.job.priority) == ("one", -1)


@shows(
    "children run on queues of their own, and the next step gets their results",
    "a step that waits for its children holds no slot of a worker",
    "a failed child gives the next step no result, and the run continues",
)
async def test_children_run_on_queues_of_their_own_and_the_next_step_gets_what_they_came_to(app: App) -> None:
    p = Pipeline("p", [Step("check", children=["a", "b"], retry=Retry(attempts=1)), Step("logic")], app=app)

    @p.handler("check")
    async def check(n: int) -> dict[str, Any]:
        return {"children": {"a": [{"part": part} for part in range(n)], "b": {}}, "checked": True}

    @p.handler("check:a")
    async def a(part: int, n: int) -> int:
        if part == 1:
            raise ValueError("not this one")
        return part * 10 + n

    @p.handler("check:b")
    def b() -> str:
        return "b"

    @p.handler("logic")
    async def logic(check_results: list[dict[str, Any]], checked: bool) -> dict[str, Any]:
        return {"results": [(each["child"], each["result"]) for each in check_results], "check_results": None}

    async with p.worker(poll=0.01, concurrency=1):
        run = await p.start(n=3)
        state = await run.result(timeout=30)
    assert state["results"] == [("a", 3), ("a", None), ("a", 23), ("b", "b")]
    assert "part" not in state
    queues = {row.job.queue for row in (await app.jobs.list(workflow=run.id, limit=100)).records}
    assert queues == {"check", "check:a", "check:b", "logic"}


@shows("`on_child_failure=` fails the run, or also cancels the other children")
@pytest.mark.parametrize("policy", ["fail", "cancel"])
async def test_a_failed_child_may_fail_the_run(app: App, policy: Any) -> None:
    failed, never = asyncio.Event(), asyncio.Event()
    app.on("failed")(lambda event: failed.set())
    p = Pipeline("p", [Step("check", children=["a", "slow"], on_child_failure=policy), Step("logic")], app=app)

    @p.handler("check:a")
    async def a() -> int:
        raise ValueError("no")

    @p.handler("check:slow")
    async def slow() -> None:
        await (failed if policy == "fail" else never).wait()

    @p.handler("logic")
    async def logic() -> None:
        raise AssertionError("never begun")

    async with p.worker(poll=0.01, grace=0.1):
        run = await p.start()
        with pytest.raises(WorkflowFailed) as caught:
            await run.result(timeout=30)
        state = await run.state()
    assert (state.step, state.state) == ("check", State.FAILED)
    assert "p.check:a" in {error.task for error in caught.value.exceptions}
    slows = (await app.jobs.list(task="p.check:slow")).records
    assert [row.state for row in slows] == [State.SUCCEEDED if policy == "fail" else State.CANCELLED]


@shows("the result of a step or the pipeline chooses the next step")
async def test_a_result_or_the_pipeline_chooses_the_next_step(app: App) -> None:
    p = Pipeline("p", [Step("a", next="c"), Step("b", next=None), Step("c"), Step("d")], app=app)
    path: list[str] = []

    @p.handler("a")
    async def a() -> None:
        path.append("a")

    @p.handler("b")
    async def b() -> dict[str, Any]:
        path.append("b")
        return {"end": True}

    @p.handler("c")
    async def c(back: bool = False) -> dict[str, Any]:
        path.append("c")
        return {"next_step": "b"} if back else {"next_step": "a", "back": True}

    @p.handler("d")
    async def d() -> None:
        path.append("d")

    async with p.worker(poll=0.01):
        assert await (await p.start()).result(timeout=30) == {"back": True, "end": True}
    assert path == ["a", "c", "a", "c", "b"]


async def test_an_unknown_next_step_fails_the_run_with_an_error_that_names_it(app: App) -> None:
    p = Pipeline("p", [Step("a")], app=app)

    @p.handler("a")
    async def a() -> dict[str, Any]:
        return {"next_step": "elsewhere"}

    async with p.worker(poll=0.01):
        run = await p.start()
        with pytest.raises(Exception, match="unknown step 'elsewhere'"):
            await run.result(timeout=30)


async def test_a_last_step_may_have_children(app: App) -> None:
    p = Pipeline("p", [Step("only", children=["child"])], app=app)

    @p.handler("only:child")
    async def child(n: int) -> int:
        return n + 1

    async with p.worker(poll=0.01):
        state = await (await p.start(n=1)).result(timeout=30)
    assert [each["result"] for each in state["only_results"]] == [2]


@shows(
    "priority 1 is the most urgent, and `priority_shift` changes it from step to step",
    "`run.position()` counts the queued jobs before a run",
)
async def test_priorities_one_is_the_most_urgent_and_steps_shift_it(app: App) -> None:
    p = Pipeline("p", [Step("a"), Step("b", priority_shift=-1), Step("c", priority_shift=-5)], app=app)
    order: list[int] = []

    @p.handler("a")
    async def a(n: int) -> None:
        order.append(n)

    @p.handler("b")
    async def b() -> None: ...

    @p.handler("c")
    async def c() -> None: ...

    runs = [await p.start(priority=priority, n=priority) for priority in (3, 1, 2)]
    assert [await run.position() for run in runs] == [2, 0, 1]
    async with p.worker(poll=0.01, concurrency=1):
        for run in runs:
            await run.result(timeout=30)
    assert order == [1, 2, 3]
    steps = {row.job.queue: row.job.priority for row in (await app.jobs.list(workflow=runs[0].id)).records}
    assert steps == {"a": -3, "b": -2, "c": -1}
    for wrong in (0, -1, True, "high"):
        with pytest.raises(BadOption, match="priority"):
            await p.start(priority=wrong)  # type: ignore[arg-type]


@shows("`find` selects runs by the values of their labels, also by one value of a list")
async def test_runs_are_found_by_their_values_until_they_are_deleted(app: App) -> None:
    p = Pipeline("p", [Step("a", delay=3600)], labels=["userId", "roleIds", "guildId"], app=app)
    other = Pipeline("q", [Step("qa")], labels=["userId"], app=app)
    one = await p.start(userId=1, roleIds=[10, 20], guildId=5)
    two = await p.start(userId=2, roleIds=[20], guildId=5)
    await other.start(userId=1)
    assert await p.find(userId=1) == [one]
    assert set(await p.find(roleIds=20)) == {one, two}
    assert await p.find(roleIds=20, userId=2) == [two]
    assert await p.find(guildId=6) == []
    await two.delete()
    with pytest.raises(JobCancelled):
        await two.result(timeout=30)
    with pytest.raises(BadOption, match="colour"):
        await p.find(colour="red")
    with pytest.raises(BadOption, match="userId"):
        await p.start(userId={"a": 1})


@shows("`pipeline.stats()` counts the waiting, processing, blocked and delayed jobs of each step")
async def test_figures_of_each_step(app: App) -> None:
    p = Pipeline("p", [Step("a", children=["x"]), Step("b", delay=3600)], app=app)
    begun, go, events = asyncio.Event(), asyncio.Event(), Signal()
    app.on("*")(events.send)

    @p.handler("a")
    async def a(n: int) -> dict[str, Any]:
        return {"children": {"x": [{}] * n}}

    @p.handler("a:x")
    async def x() -> None:
        begun.set()
        await go.wait()

    @p.handler("b")
    async def b() -> None: ...

    async with p.worker(poll=0.01, concurrency=1):
        await p.start(n=3)
        await begun.wait()
        figures = await p.stats()
        assert (figures["a:x"].processing, figures["a:x"].waiting, figures["a:x"].queue) == (1, 2, "a:x")
        assert (figures["a"].blocked, figures["b"].blocked) == (1, 1)
        go.set()

        async def delayed() -> bool:
            return (await p.stats())["b"].delayed == 1

        await events.until(delayed, "a delayed job of the last step")


@shows("a limit named after a field of the run counts each value by itself")
async def test_limits_by_a_field_of_the_run(app: App) -> None:
    p = Pipeline("p", [Step("a", limits=["discord:{guild}"])], app=app)
    running: dict[int, int] = {}
    most: dict[int, int] = {}
    both = asyncio.Barrier(2)  # a run of each guild: each waits for one that its limit does not hold back

    @p.handler("a")
    async def a(guild: int) -> None:
        running[guild] = running.get(guild, 0) + 1
        most[guild] = max(most.get(guild, 0), running[guild])
        await both.wait()
        running[guild] -= 1

    await app.limits.set(Limit("discord", slots=1))
    async with p.worker(poll=0.01, concurrency=10):
        runs = [await p.start(guild=n % 2) for n in range(8)]
        for run in runs:
            await run.result(timeout=30)
    assert most == {0: 1, 1: 1}
    with pytest.raises(BadOption, match="guild"):
        await p.start()


@shows("two pipelines share a queue and its handler")
async def test_a_step_may_be_shared_by_two_pipelines(app: App) -> None:
    one = Pipeline("one", [Step("check")], app=app)
    two = Pipeline("two", [Step("check")], app=app)

    @one.handler("check")
    @two.handler("check")
    async def check(n: int) -> dict[str, Any]:
        return {"n": n + 1}

    one.complete()
    two.complete()
    async with work(app):
        assert await (await one.start(n=1)).result(timeout=30) == {"n": 2}
        assert await (await two.start(n=2)).result(timeout=30) == {"n": 3}


async def test_a_run_can_be_started_by_a_process_without_handlers(app: App) -> None:
    far = App(storage=app.storage)
    sender = Pipeline("p", [Step("a")], app=far)
    p = Pipeline("p", [Step("a")], app=app)

    @p.handler("a")
    async def a(n: int) -> dict[str, Any]:
        return {"n": n + 1}

    run = await sender.start(n=1)
    assert (await run.state()).fields == {"n": 1}
    async with p.worker(poll=0.01):
        assert await run.result(timeout=30) == {"n": 2}


def test_an_invalid_pipeline_is_refused(tmp_path: Any) -> None:
    app = App("memory://")
    wrong: list[tuple[Any, str]] = [
        ([], "at least one"),
        ([Step("a"), Step("a")], "two steps"),
        ([Step("a:b")], "colon"),
        ([Step("a", next="z")], "unknown step"),
        ([Step("a", on_child_failure="explode")], "on_child_failure"),  # type: ignore[arg-type]
        ([Step("a", children="discord")], "children"),
        (["a"], "Step"),
    ]
    for steps, match in wrong:
        with pytest.raises(BadOption, match=match):
            Pipeline("p", steps, app=app)
    p = Pipeline("p", [Step("a", children=["x"]), Step("b")], app=app)
    with pytest.raises(BadOption, match="has no step 'c'"):
        p.handler("c")
    with pytest.raises(BadOption, match="a:y"):
        p.handler("a:y")
    with pytest.raises(BadOption, match="need a handler: a:x, b"):
        p.worker()


@shows("a task as a handler is refused where it is written")
async def test_a_task_is_no_handler(app: App) -> None:
    """The error is raised where the step is declared, and says what to write instead."""
    p = Pipeline("p", [Step("one")], app=app)

    @app.batch(size=10)
    async def many(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return items

    with pytest.raises(BadOption, match=r"expected a function for 'one', found the task .* @p.batch_handler\('one'\)"):
        p.handler("one")(many)


@dataclass
class Reward:
    user: int
    role: str


@shows("a batch handler takes the children of several runs in one call and answers each")
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_batch_handler_takes_the_children_of_many_runs_in_one_call(app: App, plain: bool) -> None:
    """Each child has the fields of its own run, and its own result. One that fails, or does not fit, fails alone."""
    once = Retry(attempts=1)
    p = Pipeline("p", [Step("give", children=["discord"], retry=once), Step("last")], app=app)
    calls: list[list[Reward]] = []
    jobs: list[int] = []

    @p.handler("give")
    async def give(roles: list[Any]) -> dict[str, Any]:
        return {"children": {"discord": [{"role": role} for role in roles]}}

    def answer(rewards: list[Reward]) -> list[Any]:
        calls.append(rewards)
        jobs.append(len(current_batch()))
        return [ValueError("no admins") if each.role == "admin" else f"{each.user} is {each.role}" for each in rewards]

    async def later(rewards: list[Reward]) -> list[Any]:
        return answer(rewards)

    p.batch_handler("give:discord", size=6, max_wait=60)(answer if plain else later)

    @p.handler("last")
    async def last(give_results: list[dict[str, Any]]) -> dict[str, Any]:
        return {"got": [each["result"] or (each["error"] or "").partition("\n")[0] for each in give_results]}

    async with p.worker(poll=0.01, concurrency=2):
        runs = [await p.start(user=n, roles=roles) for n, roles in enumerate([["a", "b"], ["c", "admin"], [5, "d"]])]
        got = [(await run.result(timeout=30))["got"] for run in runs]
    assert got[0] == ["0 is a", "0 is b"]
    assert got[1] == ["1 is c", "ValueError: no admins"]
    assert got[2][0].startswith("treadle.errors.BadArgument")
    assert got[2][1] == "2 is d"
    assert jobs == [5]
    assert sorted((each.user, each.role) for each in calls[0]) == [(0, "a"), (0, "b"), (1, "admin"), (1, "c"), (2, "d")]


async def test_a_batch_handler_of_a_step_sends_each_run_on_its_own_way(app: App) -> None:
    """Its results are those of a handler: fields, children, the next step. Runs with another key are called
    separately."""
    p = Pipeline("p", [Step("one", children=["c"]), Step("two"), Step("three")], app=app)
    sizes: list[list[int]] = []

    @p.batch_handler("one", size=3, max_wait=60)
    async def one(items: list[dict[str, Any]]) -> list[Any]:
        return [{"next_step": None} if each["n"] == 0 else {"children": {"c": [{"k": 1}]}, "a": 1} for each in items]

    @p.handler("one:c")
    async def c(n: int, k: int) -> int:
        return n + k

    @p.batch_handler("two", size=2, max_wait=0.2, by=lambda item: item["n"] % 2)
    async def two(items: list[dict[str, Any]]) -> list[Any]:
        sizes.append(sorted(each["n"] for each in items))
        return [{"sum": each["one_results"][0]["result"], "one_results": None} for each in items]

    @p.handler("three")
    async def three() -> None: ...

    async with p.worker(poll=0.01):
        runs = [await p.start(n=n) for n in range(3)]
        states = [await run.result(timeout=30) for run in runs]
    assert [(state["n"], state.get("a"), state.get("sum")) for state in states] == [
        (0, None, None),
        (1, 1, 2),
        (2, 1, 3),
    ]
    assert sorted(sizes) == [[1], [2]]


async def test_a_batch_handler_takes_items_with_fields(app: App) -> None:
    """A list of numbers has no fields: the error is raised where the handler is declared."""
    p = Pipeline("p", [Step("one")], app=app)
    with pytest.raises(BadOption, match="expected a list of dict, TypedDict, dataclass or Struct"):

        @p.batch_handler("one")
        async def one(items: list[int]) -> list[Any]:
            return items
