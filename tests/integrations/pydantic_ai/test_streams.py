"""The events of an agent in a job: to a handler, or to a stream that readers follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.messages import AgentStreamEvent

from tests.integrations.pydantic_ai.kit import World, looks
from treadle import App, BadOption, Retry
from treadle.integrations.pydantic_ai import TreadleDurability
from treadle.testing import drain
from treadle_testkit.shows import shows

AGAIN = Retry(attempts=5, base=0)


def text_of(events: list[Any]) -> str:
    """The text of the model."""
    deltas = [event["delta"] for event in events if event["event_kind"] == "part_delta"]
    starts = [event["part"] for event in events if event["event_kind"] == "part_start"]
    return "".join([part["content"] for part in starts if part["part_kind"] == "text"]) + "".join(
        [delta["content_delta"] for delta in deltas if delta["part_delta_kind"] == "text"]
    )


@shows("a reader of an agent's events has the text of the answer that was stored, also after a retry")
async def test_events_go_to_a_stream(app: App) -> None:
    world = World(looks("a", "b"))
    agent = world.agent(stream="events")
    failed = list[int]()

    async def stream(messages: Any, info: Any) -> Any:
        async for part in world.stream(messages, info):
            yield part
            if isinstance(part, str) and not failed:
                failed.append(1)
                raise ConnectionError("in the middle of the answer")

    agent.model.stream_function = stream  # type: ignore[union-attr]

    @app.task(retry=AGAIN)
    async def analyse() -> str:
        return (await agent.run("why?")).output

    job = await analyse.enqueue()
    await drain(app)
    assert await job.result(0) == "found-a found-b "
    assert failed == [1]
    assert world.effects == {"model 0": 1, "look a": 1, "look b": 1, "model 1": 2}
    events = await app.jobs.stream(job, "events")
    assert text_of(events) == "found-a found-b "
    kinds = Counter(event["event_kind"] for event in events)
    assert (kinds["function_tool_call"], kinds["function_tool_result"]) == (2, 2)


async def test_events_go_to_a_handler_once(app: App) -> None:
    world, kinds = World(looks("a")), Counter[str]()

    async def handle(_: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            kinds[event.event_kind] += 1

    agent = world.agent(event_stream_handler=handle)
    world.fail["model 1"] = 2

    @app.task(retry=AGAIN)
    async def analyse() -> str:
        return (await agent.run("why?")).output

    job = await analyse.enqueue()
    await drain(app)
    assert await job.result(0) == "found-a "
    assert (kinds["function_tool_call"], kinds["function_tool_result"]) == (1, 1)
    assert world.effects == {"model 0": 1, "look a": 1, "model 1": 3}


async def test_a_stream_and_a_handler_are_refused() -> None:
    async def handle(_: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None: ...

    with pytest.raises(BadOption, match="expected it or event_stream_handler"):
        TreadleDurability(stream="events", event_stream_handler=handle)
