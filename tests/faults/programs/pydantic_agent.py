"""An agent of Pydantic AI: its model asks for two tools at a time."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tests.faults.outside import effect, result
from treadle import App
from treadle.integrations.pydantic_ai import TreadleDurability

app = App()
tools = FunctionToolset[Any](id="tools")


@tools.tool_plain
async def look(what: str) -> str:
    effect(f"look {what}")
    return f"found {what}"


@tools.tool_plain
def read(what: str) -> str:
    effect(f"read {what}")
    return f"read {what}"


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    effect(f"model {turn}")
    if turn < 2:
        return ModelResponse(
            parts=[ToolCallPart("look", {"what": f"{turn}"}), ToolCallPart("read", {"what": f"{turn}"})]
        )
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return ModelResponse(
        parts=[TextPart(", ".join(str(part.content) for part in parts if isinstance(part, ToolReturnPart)))]
    )


agent = Agent(FunctionModel(answer), name="analyst", toolsets=[tools], capabilities=[TreadleDurability()])


@app.task
async def analyse(question: str) -> str:
    return (await agent.run(question)).output


# --- in the tests
KINDS = ["async"]
LINES = ["model 0", "look 0", "read 0", "model 1", "look 1", "read 1", "model 2"]
RESULT, IN_FLIGHT = "found 0, read 0, found 1, read 1", 2


async def scenario() -> str:
    return await result(app, analyse.options(id="agent").job("why?"))
