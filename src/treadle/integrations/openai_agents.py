"""OpenAI Agents SDK: models whose requests are steps of a job, and tools whose calls are.

await Runner.run(durable(agent), prompt, run_config=RunConfig(model_provider=DurableModels()))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from treadle.core.extras import needing
from treadle.execution.context import current

with needing(__name__, "agents", "openai-agents>=0.24", "openai-agents"):
    from agents import Agent, FunctionTool, Model, ModelProvider, ModelResponse, MultiProvider
    from agents.items import TResponseStreamEvent
    from agents.tool_context import ToolContext

_responses = TypeAdapter(ModelResponse)
_events: TypeAdapter[list[TResponseStreamEvent]] = TypeAdapter(list[TResponseStreamEvent])


class DurableModels(ModelProvider):
    """The models of another provider, whose requests are steps of the job that runs here: `RunConfig(model_provider=
    DurableModels())`. A request outside of a job raises NotRunning.

    inner    the provider; None: that of the SDK
    options  of the steps, as those of `current().step.options`
    stream   the stream of the job to which the events of streamed responses are written; None: none
    """

    def __init__(self, inner: ModelProvider | None = None, *, stream: str | None = None, **options: Any) -> None:
        self._inner, self._stream, self._options = inner or MultiProvider(), stream, options

    def get_model(self, model_name: str | None) -> Model:
        """The model of this name. The SDK calls it."""
        return DurableModel(self._inner.get_model(model_name), self._stream, self._options)


class DurableModel(Model):
    """One model whose requests are steps: `Agent(model=DurableModel(model))`. See `DurableModels`."""

    def __init__(self, inner: Model, stream: str | None = None, options: dict[str, Any] | None = None) -> None:
        self._inner, self._stream, self._options = inner, stream, options or {}

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """The response of the model, from the history of the job if it is there. The SDK calls it."""

        async def request() -> Any:
            return _responses.dump_python(await self._inner.get_response(*args, **kwargs), mode="json")

        return _responses.validate_python(await self._step(request))

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """The events of the response, all at once when it is stored. The SDK calls it."""

        async def request() -> Any:
            events = list[Any]()
            out = None if self._stream is None else current().stream(self._stream)
            async for event in self._inner.stream_response(*args, **kwargs):
                [stored] = _events.dump_python([event], mode="json")
                events.append(stored)
                if out is not None:
                    await out.write(stored)
            return events

        for event in _events.validate_python(await self._step(request)):
            yield event

    async def _step(self, request: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await current().step.options(**self._options)("model", request)


def durable(agent: Agent[Any], **options: Any) -> Agent[Any]:
    """The agent with tools whose calls are steps of the job, named after the tool and the id of the call; so are those
    of the agents to which it hands over. `options`: as those of `current().step.options`."""
    tools = [_durable_tool(tool, options) if isinstance(tool, FunctionTool) else tool for tool in agent.tools]
    handoffs = [durable(other, **options) if isinstance(other, Agent) else other for other in agent.handoffs]
    return agent.clone(tools=tools, handoffs=handoffs)


def _durable_tool(tool: FunctionTool, options: dict[str, Any]) -> FunctionTool:
    invoke = tool.on_invoke_tool

    async def on_invoke_tool(context: ToolContext[Any], arguments: str) -> Any:
        async def call() -> Any:
            return await invoke(context, arguments)

        return await current().step.options(**options)(f"{tool.name}:{context.tool_call_id}", call)

    return replace(tool, on_invoke_tool=on_invoke_tool)
