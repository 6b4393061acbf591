"""An agent: it calls a model, and the tools that the model asks for, until the model has an answer."""

import asyncio

from tests.faults.outside import effect, result
from treadle import App, current

app = App()


def model(messages: list[str]) -> dict[str, list[str]]:
    effect(f"model reads {len(messages)} messages")
    return {"tools": [f"search {len(messages)}", f"read {len(messages)}"]} if len(messages) < 4 else {}


def tool(call: str) -> str:
    effect(call)
    return f"result of {call}"


@app.task
async def agent(question: str) -> str:
    here, messages = current(), [question]
    while tools := (await here.step("model", model, messages)).get("tools"):
        messages += await asyncio.gather(*(here.step(f"tool:{call}", tool, call) for call in tools))
    return f"answer from {len(messages)} messages"


# --- in the tests
KINDS = ["async"]
LINES = [
    *("model reads 1 messages", "search 1", "read 1"),
    *("model reads 3 messages", "search 3", "read 3"),
    "model reads 5 messages",
]
RESULT, IN_FLIGHT = "answer from 5 messages", 2


async def scenario() -> str:
    return await result(app, agent.options(id="agent").job("why?"))
