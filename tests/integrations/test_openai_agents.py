"""The OpenAI Agents SDK in a job: model requests and tool calls are steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle import App, Retry
from treadle.testing import drain
from treadle_testkit.shows import shows

pytest.importorskip("agents", reason="openai-agents is not among the pins")

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from treadle.integrations.openai_agents import DurableModel, DurableModels, durable

AGAIN = Retry(attempts=5, base=0)


class Scripted(Model):
    """Asks for two tools, and then answers with what they returned."""

    def __init__(self) -> None:
        self.effects, self.fail = Counter[str](), Counter[str]()

    def effect(self, name: str) -> None:
        self.effects[name] += 1
        if self.fail[name] > 0:
            self.fail[name] -= 1
            raise ConnectionError(name)

    def output(self, items: Any) -> list[Any]:
        found = [item["output"] for item in items if item.get("type") == "function_call_output"] if items != "?" else []
        self.effect(f"model {len(found)}")
        if not found:
            return [
                ResponseFunctionToolCall(
                    type="function_call", name="look", call_id=f"call-{what}", arguments=f'{{"what": "{what}"}}'
                )
                for what in "ab"
            ]
        text = ResponseOutputText(type="output_text", text=" ".join(found), annotations=[], logprobs=[])
        return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(output=self.output(input), usage=Usage(), response_id=None)

    async def stream_response(  # type: ignore[override]
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        response = Response.model_construct(
            id="r",
            created_at=0.0,
            model="scripted",
            object="response",
            output=self.output(input),
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response, sequence_number=0)


def agent_of(model: Scripted) -> Agent[Any]:
    set_tracing_disabled(True)

    @function_tool(failure_error_function=None)
    async def look(what: str) -> str:
        model.effect(f"look {what}")
        return f"found-{what}"

    return Agent(name="analyst", tools=[look], model=model)


@shows("an agent of the OpenAI SDK pays for no model request and no tool call twice")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_retry_repeats_only_what_failed(app: App, streamed: bool) -> None:
    model = Scripted()
    model.fail["look b"] = model.fail["model 2"] = 2
    agent = agent_of(model)

    @app.task(retry=AGAIN)
    async def analyse() -> str:
        mine = durable(agent.clone(model=DurableModel(model, "events")))
        if not streamed:
            return str((await Runner.run(mine, "?")).final_output)
        running = Runner.run_streamed(mine, "?")
        async for _ in running.stream_events():
            pass
        return str(running.final_output)

    job = await analyse.enqueue()
    await drain(app)
    assert await job.result(0) == "found-a found-b"
    assert model.effects == {"model 0": 1, "look a": 1, "look b": 3, "model 2": 3}
    if streamed:
        assert [event["type"] for event in await app.jobs.stream(job, "events")] == ["response.completed"] * 2


async def test_models_of_a_provider(app: App) -> None:
    model = Scripted()

    class Provider(DurableModels):
        def get_model(self, model_name: str | None) -> Model:
            return model

    @app.task(retry=AGAIN)
    async def analyse() -> str:
        agent = durable(agent_of(model).clone(model="scripted"))
        config = RunConfig(model_provider=DurableModels(Provider()))
        return str((await Runner.run(agent, "?", run_config=config)).final_output)

    model.fail["model 2"] = 1
    job = await analyse.enqueue()
    await drain(app)
    assert await job.result(0) == "found-a found-b"
    assert model.effects == {"model 0": 1, "look a": 1, "look b": 1, "model 2": 2}
