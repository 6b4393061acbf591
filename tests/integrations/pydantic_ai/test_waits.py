"""An agent in a job waits for people and for events, without a slot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import FunctionToolset

from tests.integrations.pydantic_ai.kit import World
from treadle import App, Retry, Signalled, State
from treadle.integrations.pydantic_ai import TreadleDurability, fail_external_event, resolve_external_event
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)


def refunding(app: App, world: World, *capabilities: Any, **metadata: Any) -> Any:
    """A task whose agent refunds two orders at once, each with approval."""
    tools = FunctionToolset[Any](id="shop")

    @tools.tool_plain(requires_approval=True, metadata={"treadle": metadata} if metadata else None)
    async def refund(order: int) -> str:
        world.effect(f"refund {order}")
        return f"refunded-{order}"

    agent = Agent(world.model, name="clerk", toolsets=[tools], capabilities=[*capabilities])

    @app.task(name="refunds", retry=ONCE)
    async def refunds() -> str:
        return (await agent.run("refund both")).output

    return refunds


def two_refunds() -> World:
    return World([("refund", {"order": 7}), ("refund", {"order": 8})])


@shows("tool calls that need approval wait for people, without a slot, and the model learns why one was refused")
async def test_people_approve_tool_calls(app: App) -> None:
    world = two_refunds()
    job = await refunding(app, world, TreadleDurability(), approve={"by": "group:finance"}).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.WAITING
    requests = (await app.jobs.approvals(by="group:finance")).requests
    assert sorted([request.show["arguments"]["order"] for request in requests]) == [7, 8]
    for request in requests:
        first = request.show["arguments"]["order"] == 7
        await app.jobs.decide(request, approved=first, reason="" if first else "not in May")
        await drain(app)
    assert await job.result(0) == "refunded-7 not in May"
    assert world.effects == {"model 0": 1, "refund 7": 1, "model 1": 1}


async def test_a_call_without_a_decision_in_time_is_denied(app: App, clock: HandClock) -> None:
    world = two_refunds()
    durability = TreadleDurability[Any](approve={"by": "group:finance", "until": timedelta(days=2)})
    job = await refunding(app, world, durability).enqueue()
    await drain(app)
    clock.advance(3 * 86_400)
    await drain(app)
    assert (await job.result(0)).count("Nobody has decided about this tool call in time.") == 2
    assert world.effects == {"model 0": 1, "model 1": 1}


class Asked:
    """The tokens of the waits of `RequestInput`."""

    def __init__(self, world: World) -> None:
        self.world, self.tokens = world, list[str]()

    def ask(self, _: RunContext[Any], requests: DeferredToolRequests, token: str) -> None:
        self.world.effect("ask")
        self.tokens.append(token)


@shows("an agent's wait for an event of the outside is a signal of its job, and the question is sent once")
async def test_an_event_of_the_outside(app: App) -> None:
    world = two_refunds()
    asked = Asked(world)
    job = await refunding(app, world, RequestInput(asked.ask), TreadleDurability()).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.WAITING
    [token] = asked.tokens
    calls = [step.name for step in (await app.jobs.history(job)).steps]
    assert "deferred_tool_calls.ask" in calls
    await fail_external_event(app, token, "the clerk is on holiday")
    with pytest.raises(Signalled):
        await resolve_external_event(app, token, {})
    await drain(app)
    assert (await job.result(0)).count("the clerk is on holiday") == 2
    assert world.effects == {"model 0": 1, "ask": 1, "model 1": 1}


async def test_a_token_of_something_else(app: App) -> None:
    with pytest.raises(UserError, match="expected the token that `ask` received in a job"):
        await resolve_external_event(app, "x", {})
