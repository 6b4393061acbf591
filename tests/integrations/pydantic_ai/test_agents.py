"""An agent of Pydantic AI in a job: each model request and tool call is a step."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from tests.durable.kit import error_of
from tests.integrations.pydantic_ai.kit import World, looks
from treadle import App, BadOption, Limit, Retry, State, current
from treadle.errors import NotRunning
from treadle.integrations.pydantic_ai import TreadleDurability
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

AGAIN = Retry(attempts=5, base=0)
ONCE = Retry(attempts=1)


def analysing(app: App, agent: Agent[Any, str], **options: Any) -> Any:
    @app.task(name="analyse", **{"retry": AGAIN} | options)
    async def analyse(prompt: str) -> str:
        return (await agent.run(prompt)).output

    return analyse


async def steps_of(app: App, job: Any) -> list[str]:
    """The names of its steps, with the ids of tool calls cut off."""
    history = await app.jobs.history(job)
    return [step.name.partition(":")[0] for step in history.steps]


@shows("each model request and tool call of an agent is a step, and a retried job pays for none of them again")
async def test_a_retry_repeats_only_what_failed(app: App) -> None:
    world = World(looks("a", "b"), [("read", {"what": "c"}), *looks("d")])
    world.fail["model 1"] = world.fail["read c"] = world.fail["model 2"] = 1
    job = await analysing(app, world.agent()).enqueue("why?")
    await drain(app)
    assert await job.result(0) == "found-a found-b read-c found-d"
    once = {"model 0": 1, "look a": 1, "look b": 1, "look d": 1}
    assert world.effects == once | {"model 1": 2, "read c": 2, "model 2": 2}
    steps = await steps_of(app, job)
    assert Counter(steps) == {
        "analyst.model": 1,
        "analyst.model#2": 1,
        "analyst.model#3": 1,
        "analyst.look": 3,
        "analyst.read": 1,
    }


@shows("agents that run at the same time in one job have steps of their own")
async def test_agents_at_the_same_time_and_one_after_the_other(app: App) -> None:
    world = World(looks("a"))
    world.fail["model 1"] = 3
    agent = world.agent()

    @app.task(retry=AGAIN)
    async def analyse() -> str:
        both = await asyncio.gather(agent.run("one"), agent.run("two"))
        third = await agent.run("three", message_history=both[0].all_messages())
        named = await agent.run("four", run_id="of the caller")
        return " / ".join([*(each.output for each in both), third.output, named.run_id])

    job = await analyse.enqueue()
    await drain(app)
    assert await job.result(0) == "found-a / found-a / found-a / of the caller"
    assert world.effects["model 0"] == 3  # the third run continues where the first one ended
    steps = await steps_of(app, job)
    assert {"analyst.model", "analyst~2.model", "analyst~3.model", "analyst~of the caller.model"} <= set(steps)


@shows("an agent that a tool of another agent runs is durable, too")
async def test_an_agent_in_a_tool(app: App) -> None:
    inner = World(looks("x"))
    outer = World([("ask", {"what": "a"}), ("ask", {"what": "b"})])
    helper = inner.agent("helper")
    inner.fail["model 1"] = 2
    tools = FunctionToolset[Any](id="asking")

    @tools.tool
    async def ask(ctx: RunContext[Any], what: str) -> str:
        return (await helper.run(what, usage=ctx.usage)).output

    agent = Agent(outer.model, name="boss", toolsets=[tools], capabilities=[TreadleDurability()])
    job = await analysing(app, agent).enqueue("why?")
    await drain(app)
    assert await job.result(0) == "found-x found-x"
    assert inner.effects == {"model 0": 2, "look x": 2, "model 1": 4}
    assert outer.effects == {"model 0": 1, "model 1": 1}


async def test_a_tool_that_asks_the_model_to_try_again(app: App) -> None:
    world = World(looks("a"), looks("a"))
    tools, asked = FunctionToolset[Any](id="tools"), list[str]()

    @tools.tool_plain
    async def look(what: str) -> str:
        asked.append(what)
        if len(asked) == 1:
            raise ModelRetry("look again")
        return f"found-{what}"

    world.fail["model 2"] = 1
    agent = Agent(world.model, name="analyst", toolsets=[tools], capabilities=[TreadleDurability()])
    job = await analysing(app, agent).enqueue("why?")
    await drain(app)
    assert await job.result(0) == "look again found-a"
    assert asked == ["a", "a"]


@shows("a model request is tried again by options of its step, without a slot and without an attempt of the job")
async def test_options_of_the_model(app: App, clock: HandClock) -> None:
    world = World(looks("a"))
    world.fail["model 1"] = 2
    agent = world.agent(model_options={"retry": Retry(attempts=3, base=60, jitter=0)})
    job = await analysing(app, agent, retry=ONCE).enqueue("why?")
    for _ in range(2):
        await drain(app)
        row = await app.jobs.get(job)
        assert (row.state, row.attempt, row.due_at > clock.moment) == (State.READY, 0, True)
        clock.advance(500)
    await drain(app)
    assert await job.result(0) == "found-a"
    assert world.effects == {"model 0": 1, "look a": 1, "model 1": 3}


async def test_options_of_a_tool_override_the_defaults(app: App, clock: HandClock) -> None:
    world, tools = World([("slow", {}), ("flaky", {})]), FunctionToolset[Any](id="tools")

    @tools.tool_plain(metadata={"treadle": {"timeout": 0.001, "retry": ONCE}})
    async def slow() -> str:
        await asyncio.Event().wait()
        raise AssertionError

    @tools.tool_plain
    async def flaky() -> str:
        world.effect("flaky")
        return "flaky"

    world.fail["flaky"] = 9
    agent = Agent(
        world.model,
        name="analyst",
        toolsets=[tools],
        capabilities=[TreadleDurability(tool_options={"retry": Retry(attempts=2, base=0)})],
    )
    job = await analysing(app, agent, retry=ONCE).enqueue("why?")
    for _ in range(5):
        await drain(app)
        clock.advance(60)
    assert "TimeoutError: step 'analyst.slow" in await error_of(app, job)
    assert world.effects["flaky"] <= 2


async def test_a_tool_obeys_a_limit(app: App, clock: HandClock) -> None:
    world, tools = World([("page", {"n": n}) for n in range(3)]), FunctionToolset[Any](id="tools")

    @tools.tool_plain(metadata={"treadle": {"limits": ["site"]}})
    async def page(n: int) -> str:
        world.effect(f"page {n}")
        return f"page-{n}"

    agent = Agent(world.model, name="analyst", toolsets=[tools], capabilities=[TreadleDurability()])
    await app.limits.set(Limit("site", rate=1, per=60))
    job = await analysing(app, agent).enqueue("why?")
    for pages in (1, 2, 3):
        await drain(app)
        assert world.effects.total() == pages + 1 + (pages == 3)
        clock.advance(61)
    assert await job.result(0) == "page-0 page-1 page-2"


@shows("model requests reserve tokens of a budget, and are settled at what they really used")
async def test_tokens_are_settled(app: App) -> None:
    await app.limits.set(Limit("tokens", rate=1_000, per=86_400))
    world = World(looks("a"), looks("b"))  # three requests of fewer than 100 tokens each
    agent = world.agent(model_options={"limits": {"tokens:ann": 500}}, tokens="tokens")
    job = await analysing(app, agent).enqueue("why?")
    await drain(app)
    assert await job.result(0) == "found-a found-b"
    assert world.effects.total() == 5


async def test_tokens_of_a_limit_that_the_step_does_not_name(app: App) -> None:
    world = World()
    job = await analysing(app, world.agent(tokens="tokens"), retry=ONCE).enqueue("why?")
    await drain(app)
    assert "tokens" in await error_of(app, job)
    assert world.effects.total() == 0


@shows("a tool without a step is durable code of the job itself: it may sleep and wait")
async def test_a_tool_without_a_step_takes_its_own(app: App, clock: HandClock) -> None:
    world, tools = World([("order", {"what": "tea"}), *looks("a")]), FunctionToolset[Any](id="shop")

    @tools.tool_plain(metadata={"treadle": False})
    async def order(what: str) -> str:
        here = current()
        number = await here.step("order", lambda: world.effect(f"order {what}"))
        await here.sleep(3600)
        assert number is None
        return f"ordered-{what}"

    agent = Agent(world.model, name="analyst", toolsets=[tools, world.tools()], capabilities=[TreadleDurability()])
    job = await analysing(app, agent, retry=ONCE).enqueue("why?")
    await drain(app)
    assert (await app.jobs.get(job)).state is State.READY
    clock.advance(3601)
    await drain(app)
    assert await job.result(0) == "ordered-tea found-a"
    assert world.effects == {"model 0": 1, "order tea": 1, "look a": 1, "model 1": 1}


async def test_a_model_that_fails_is_replaced_once(app: App) -> None:
    """The decision to take another model is stored, although the first one would answer now."""
    calls = Counter[str]()

    async def first(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls["first"] += 1
        raise ModelHTTPError(503, "first", {"error": "overloaded"})

    async def second(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls["second"] += 1
        if calls["second"] < 3:
            raise ConnectionError("second")
        return ModelResponse(parts=[TextPart("of the second")])

    spare = FunctionModel(second, model_name="spare")
    agent = Agent(
        FunctionModel(first),
        name="analyst",
        capabilities=[ModelFallback("spare"), TreadleDurability(models={"spare": spare})],
    )
    job = await analysing(app, agent).enqueue("why?")
    await drain(app)
    assert await job.result(0) == "of the second"
    assert calls == {"first": 1, "second": 3}


@shows("an agent that runs outside of a job says that it is not durable")
async def test_outside_of_a_job() -> None:
    with pytest.raises(NotRunning, match=r"the agent 'analyst' is not durable here: current\(\) was called outside"):
        await World().agent().run("why?")
    assert (await World().agent(outside_jobs=True).run("why?")).output == "nothing"


@pytest.mark.parametrize("kind", ["thread", "batch"])
async def test_in_jobs_that_take_no_async_steps(app: App, kind: str) -> None:
    agent = World().agent()

    def in_thread() -> str:
        return asyncio.run(agent.run("why?")).output  # `run_sync` leaves the loop of the thread open

    async def many(items: list[int]) -> list[str]:
        return [(await agent.run("why?")).output for _ in items]

    if kind == "thread":
        job = await app.task(retry=AGAIN)(in_thread).enqueue()
    else:
        job = await app.batch(size=1, retry=AGAIN)(many).enqueue(1)
    await drain(app)
    assert "the agent 'analyst' is not durable here" in await error_of(app, job)


async def test_a_result_that_cannot_be_stored_runs_its_tool_once(app: App) -> None:
    world, tools = World([("raw", {})]), FunctionToolset[Any](id="tools")

    @tools.tool_plain
    async def raw() -> Any:
        world.effect("raw")
        return object()

    agent = Agent(world.model, name="analyst", toolsets=[tools], capabilities=[TreadleDurability()])
    job = await analysing(app, agent).enqueue("why?")
    await drain(app)
    assert "cannot be stored" in await error_of(app, job)
    assert world.effects["raw"] == 1


@pytest.mark.parametrize(
    ("options", "found"),
    [({"model_options": {"retries": 3}}, "found ['retries']"), ({"tool_options": {"timeout": 0}}, "more than 0 s")],
)
def test_mistaken_options_are_refused(options: dict[str, Any], found: str) -> None:
    with pytest.raises(BadOption) as raised:
        TreadleDurability(**options)
    assert found in str(raised.value)


async def test_mistaken_options_of_a_tool_are_refused(app: App) -> None:
    tools = FunctionToolset[Any](id="tools")

    @tools.tool_plain(metadata={"treadle": {"retries": 3}})
    async def look() -> str:
        return "found"

    agent = Agent(TestModel(), name="analyst", toolsets=[tools], capabilities=[TreadleDurability()])
    job = await analysing(app, agent, retry=ONCE).enqueue("why?")
    await drain(app)
    assert "metadata of the tool 'look'" in await error_of(app, job)
