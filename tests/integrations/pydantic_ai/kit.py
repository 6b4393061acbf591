"""Models and tools of the tests of agents: functions that write what they do into a ledger."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from treadle.integrations.pydantic_ai import TreadleDurability


class World:
    """A model that asks for tools, turn by turn, and then answers; and what it and the tools did."""

    def __init__(self, *turns: Sequence[tuple[str, dict[str, Any]]]) -> None:
        self.turns = turns
        self.effects: Counter[str] = Counter()
        self.fail: Counter[str] = Counter()
        self.prompts: list[str] = []

    def effect(self, name: str) -> None:
        """Count an effect, which fails as often as the test wants it to."""
        self.effects[name] += 1
        if self.fail[name] > 0:
            self.fail[name] -= 1
            raise ConnectionError(name)

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = turn_of(messages)
        self.effect(f"model {turn}")
        if turn < len(self.turns):
            return ModelResponse(parts=[ToolCallPart(name, args) for name, args in self.turns[turn]])
        return ModelResponse(parts=[TextPart(" ".join(found_in(messages)) or "nothing")])

    async def stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        turn = turn_of(messages)
        self.effect(f"model {turn}")
        if turn < len(self.turns):
            for place, (name, args) in enumerate(self.turns[turn]):
                yield {place: DeltaToolCall(name, json.dumps(args), tool_call_id=f"call-{turn}-{place}")}
        else:
            for word in found_in(messages):
                yield f"{word} "

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.answer, stream_function=self.stream)

    def tools(self) -> FunctionToolset[Any]:
        tools = FunctionToolset[Any](id="tools")

        @tools.tool_plain
        async def look(what: str) -> str:
            self.effect(f"look {what}")
            return f"found-{what}"

        @tools.tool_plain
        def read(what: str) -> str:
            self.effect(f"read {what}")
            return f"read-{what}"

        return tools

    def agent(self, name: str = "analyst", **options: Any) -> Agent[Any, str]:
        return Agent(self.model, name=name, toolsets=[self.tools()], capabilities=[TreadleDurability(**options)])


def turn_of(messages: list[ModelMessage]) -> int:
    """How many responses the model of this run has given."""
    return sum(isinstance(message, ModelResponse) for message in messages)


def found_in(messages: list[ModelMessage]) -> list[str]:
    """The results of the tools, in the order of their calls."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


def looks(*whats: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls of `look` in one response."""
    return [("look", {"what": what}) for what in whats]
